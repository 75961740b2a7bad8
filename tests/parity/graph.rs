//! Work that is captured and launched as a CUDA graph: the same values from fewer launches, without leaked memory.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use flux::backend::cuda::{Cuda, Graph};
use flux::backend::{Device, Memory, Participants, Remark, WeightStore};
use flux::nn::Linear;
use flux::tensor::Tensor;
use safetensors::Dtype;

use crate::compare::{Shape, Weight, values, vector};

/// The work of a double block on its streams, in small: every kind of node, views, and memory of several sizes.
fn work(
    x: &Tensor<Cuda>,
    y: &Tensor<Cuda>,
    up: &Linear<Cuda>,
    down: &Linear<Cuda>,
    vector: &Tensor<Cuda>,
) -> flux::Result<Tensor<Cuda>> {
    let both = Tensor::concat_rows(&[x, y])?;
    let [gate, rest] = both.adaln(vector, vector, 1e-6)?.linear(up, None)?.split_cols([256, 256]);
    let h = gate.swiglu(&rest)?.linear(down, None)?;
    let (x, _) = both.gated_add(vector, &h)?.split_rows(x.rows());
    x.silu()
}

#[test]
fn captured_work_computes_the_same_from_one_launch() {
    let Some(cuda) = crate::cuda() else { return };
    let (up, down, vector) =
        (Weight::seeded(4, 512, 128).linear(&cuda), Weight::seeded(5, 128, 256).linear(&cuda), vector(&cuda, 2, 128));
    let reads = Arc::new(());
    let mut graph = Graph::default();
    let start = cuda.stats();
    for round in 0..5 {
        let input = |seed| cuda.upload(&values(seed, 96 * 128), 96, 128).unwrap();
        // The first input is a view of longer rows.
        let [x, _] = cuda.upload(&values(10 * round + 1, 96 * 256), 96, 256).unwrap().split_cols([128, 128]);
        let y = input(10 * round + 2);
        let expected = cuda.download(&work(&x, &y, &up, &down, &vector).unwrap()).unwrap();
        let before = cuda.stats();
        let got = cuda
            .run_graph(&mut graph, Participants::One, &reads, [&x, &y], |_, [x, y]| work(x, y, &up, &down, &vector))
            .unwrap();
        let after = cuda.stats();
        assert!(cuda.download(&got).unwrap() == expected, "round {round}");
        let launches = after.launches - before.launches;
        let rest =
            (after.graph_launches - before.graph_launches, after.waits - before.waits, after.copies - before.copies);
        match round {
            // Two copies, adaln, two GEMM, swiglu, gated_add, silu; two inputs and an output are copied, too; the
            // capture after them does not count.
            0 => assert_eq!((launches, rest), (11, (0, 0, 0))),
            _ => assert_eq!((launches, rest, after.allocations - before.allocations), (3, (1, 0, 0), 1)),
        }
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
    let held = cuda.stats().memory_bytes;
    drop(graph);
    assert!(cuda.stats().memory_bytes < held, "the arena holds memory as long as the graph is there");
    // The first multiplication also allocated the workspace.
    let workspace = 64 << 20;
    assert_eq!(cuda.stats().memory_bytes, start.memory_bytes + workspace);
}

/// Multiplications with more tiles than multiprocessors, whose kernels distribute tiles by a counter: each launch of a
/// graph starts from the beginning, whatever ran before.
#[test]
fn captured_products_hand_out_all_tiles_every_time() {
    let Some(cuda) = crate::cuda() else { return };
    let rows = if crate::small() { 128 } else { 4096 };
    let (up, down) = (Weight::seeded(6, 6144, 512).linear(&cuda), Weight::seeded(7, 3072, 6144).linear(&cuda));
    let work = |x: &Tensor<Cuda>| x.linear(&up, None)?.linear(&down, None);
    let reads = Arc::new(());
    let mut graphs = [Graph::default(), Graph::default()];
    for round in 0..4 {
        let x = Shape::dense(rows, 512).tensor(&cuda, 20 + round);
        let expected = cuda.download(&work(&x).unwrap()).unwrap();
        for graph in &mut graphs {
            let got = cuda.run_graph(graph, Participants::One, &reads, [&x], |_, [x]| work(x)).unwrap();
            assert!(cuda.download(&got).unwrap() == expected, "round {round}");
        }
    }
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
}

/// Closing a handle waits for all work of the context, which would break another handle's capture.
#[test]
fn handles_come_and_go_while_another_captures() {
    let Some(cuda) = crate::cuda() else { return };
    // Its multiplications keep the size of x.
    let small: Vec<f32> = values(4, 128 * 128).iter().map(|v| v / 16.0).collect();
    let weight = Weight::new(&small, &[128, 128], Dtype::F32).linear(&cuda);
    let x = Shape::dense(96, 128).tensor(&cuda, 1);
    let work =
        |_: &(), [x]: [&Tensor<Cuda>; 1]| (0..20).try_fold(x.linear(&weight, None)?, |x, _| x.linear(&weight, None));
    let (expected, done) = (cuda.download(&work(&(), [&x]).unwrap()).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let opened = || crate::cuda().unwrap().warm_up().unwrap();
            (0..).take_while(|_| !done.load(Ordering::Relaxed)).map(|_| opened()).count()
        });
        for _ in 0..200 {
            let got = cuda.run_graph(&mut Graph::default(), Participants::One, &Arc::new(()), [&x], work).unwrap();
            assert!(cuda.download(&got).unwrap() == expected);
        }
        done.store(true, Ordering::Relaxed);
        assert!(others.join().unwrap() > 0, "handles that came and went");
    });
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
}

#[test]
fn results_of_captured_work_are_tensors_of_their_own() {
    let Some(cuda) = crate::cuda() else { return };
    let reads = Arc::new(());
    let mut graph = Graph::default();
    let mut run = |seed| {
        cuda.run_graph(&mut graph, Participants::One, &reads, [&Shape::dense(64, 128).tensor(&cuda, seed)], |_, [x]| {
            x.row_view(0..64).silu()
        })
        .unwrap()
    };
    let results: Vec<Tensor<Cuda>> = (1..6).map(&mut run).collect();
    for (seed, result) in (1..6).zip(&results) {
        let expected = Shape::dense(64, 128).tensor(&cuda, seed).silu().unwrap();
        assert_eq!(cuda.download(result).unwrap(), cuda.download(&expected).unwrap(), "{seed}");
    }
}

#[test]
fn several_pieces_of_work_share_their_memory_and_do_not_disturb_each_other() {
    let Some(cuda) = crate::cuda() else { return };
    let sizes = [(300, 256), (64, 512), (1000, 128), (64, 8)];
    let reads = Arc::new(());
    let mut graphs = sizes.map(|_| Graph::default());
    for round in 0..4 {
        for (i, (rows, cols)) in sizes.into_iter().enumerate() {
            let x = Shape::dense(rows, cols).tensor(&cuda, round);
            let work = |x: &Tensor<Cuda>| x.row_view(0..x.rows()).silu()?.add(x)?.silu();
            let expected = cuda.download(&work(&x).unwrap()).unwrap();
            let got = cuda.run_graph(&mut graphs[i], Participants::One, &reads, [&x], |_, [x]| work(x)).unwrap();
            assert_eq!(cuda.download(&got).unwrap(), expected, "round {round} of {i}");
        }
        // Less than each would hold alone.
        println!("round {round}: {} bytes", cuda.stats().memory_bytes);
    }
    assert_eq!(cuda.stats().graph_launches, 3 * sizes.len() as u64);
}

#[test]
fn work_that_cannot_be_captured_runs_all_the_same_and_says_so() {
    let Some(cuda) = crate::cuda() else { return };
    let reads = Arc::new(());
    let mut graph = Graph::default();
    for round in 0..4 {
        let x = Shape::dense(64, 128).tensor(&cuda, round);
        let waiting = |x: &Tensor<Cuda>| {
            let host = cuda.download(x)?;
            cuda.upload(&host, 64, 128)?.silu()
        };
        let got = cuda.run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| waiting(x)).unwrap();
        assert_eq!(cuda.download(&got).unwrap(), cuda.download(&x.silu().unwrap()).unwrap(), "round {round}");
    }
    assert_eq!((cuda.stats().uncaptured, cuda.stats().graph_launches), (1, 0));
    let remarks = cuda.remarks();
    let told = |remark: &Remark| matches!(remark, Remark::Warning(text) if text.contains("could not be captured"));
    assert!(remarks.iter().any(told), "{remarks:?}");
}

/// A capture of one thread includes no launches of other threads, which would then be skipped or repeated.
#[test]
fn launches_of_another_thread_are_never_captured() {
    let Some(cuda) = crate::cuda() else { return };
    let (rounds, expect) = (if crate::small() { 3 } else { 300 }, "the same values");
    let (stop, mut launched) = (AtomicBool::new(false), 0);
    let turns: [AtomicUsize; 3] = Default::default();
    thread::scope(|scope| {
        let others: Vec<_> = (1..)
            .zip(&turns)
            .map(|(seed, turns)| {
                let (cuda, stop) = (&cuda, &stop);
                scope.spawn(move || {
                    let x = Shape::dense(200, 136).tensor(cuda, seed);
                    let weight = Weight::seeded(seed, 72, 136).linear(cuda);
                    let work = || cuda.download(&x.linear(&weight, None).unwrap().silu().unwrap()).unwrap();
                    let expected = work();
                    while !stop.load(Ordering::Relaxed) {
                        // Uploads, multiplications, memory and downloads: a graph could capture each of them.
                        let y = Shape::dense(200, 136).tensor(cuda, seed);
                        assert!(cuda.download(&y).unwrap() == values(seed, 200 * 136), "{expect}");
                        assert!(work() == expected, "{expect}");
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let reads = Arc::new(());
        let all_had_a_turn = || turns.iter().all(|turns| turns.load(Ordering::Relaxed) > 0);
        let failed = || others.iter().any(|other| other.is_finished());
        for round in (0..).take_while(|round| *round < rounds || !(all_had_a_turn() || failed())) {
            launched += 2;
            let mut graph = Graph::default();
            for seed in 0..3 {
                let x = Shape::dense(64, 128).tensor(&cuda, round + seed);
                let got = cuda.run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| {
                    x.row_view(0..64).silu()?.add(x)?.silu()
                });
                let expected = x.row_view(0..64).silu().unwrap().add(&x).unwrap().silu().unwrap();
                assert!(
                    cuda.download(&got.unwrap()).unwrap() == cuda.download(&expected).unwrap(),
                    "{expect} in round {round}"
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
        for other in others {
            other.join().unwrap();
        }
    });
    assert_eq!((cuda.stats().uncaptured, cuda.stats().graph_launches), (0, launched), "{:?}", cuda.remarks());
}

#[test]
fn a_graph_keeps_what_it_reads() {
    let Some(cuda) = crate::cuda() else { return };
    let weight = Weight::seeded(1, 128, 128);
    let reads = Arc::new(weight.linear(&cuda));
    let weak = Arc::downgrade(&reads);
    let x = Shape::dense(64, 128).tensor(&cuda, 2);
    let expected = cuda.download(&x.linear(&reads, None).unwrap()).unwrap();
    let mut graph = Graph::default();
    let product = |weight: &Linear<Cuda>, [x]: [&Tensor<Cuda>; 1]| x.linear(weight, None);
    cuda.run_graph(&mut graph, Participants::One, &reads, [&x], product).unwrap();
    drop(reads);
    let reads = weak.upgrade().expect("the graph keeps the weight");
    let got = cuda.run_graph(&mut graph, Participants::One, &reads, [&x], product).unwrap();
    assert_eq!(cuda.download(&got).unwrap(), expected);
    let other = Arc::new(weight.linear(&cuda));
    let error = cuda.run_graph(&mut graph, Participants::One, &other, [&x], product).map(drop).unwrap_err().to_string();
    assert!(error.contains("different inputs"), "{error}");
    drop((graph, reads));
    assert!(weak.upgrade().is_none(), "and no longer than it lives");
}

#[test]
fn work_is_captured_while_another_thread_loads_weights() {
    let Some(cuda) = crate::cuda() else { return };
    let reads = Arc::new(());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut loads = 0;
            while !stop.load(Ordering::Relaxed) {
                let weight = Weight::seeded(3, 500, 1000);
                let load =
                    |uploads: &_| Ok((weight.linear_with(&cuda, Some(uploads)), cuda.upload(&values(4, 100), 1, 100)?));
                let (linear, vector) = cuda.load(load, &mut |_| {}).unwrap();
                assert!(cuda.weight_values(&linear).unwrap() == values(3, 500 * 1000));
                assert!(cuda.download(&vector).unwrap() == values(4, 100));
                loads += 1;
            }
            loads
        });
        for _ in 0..if crate::small() { 10 } else { 100 } {
            let mut graph = Graph::default();
            for seed in 0..3 {
                let x = Shape::dense(64, 128).tensor(&cuda, seed);
                let got = cuda
                    .run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| x.row_view(0..64).silu())
                    .unwrap();
                assert!(cuda.download(&got).unwrap() == cuda.download(&x.silu().unwrap()).unwrap(), "{seed}");
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(loading.join().unwrap() > 0);
    });
    assert_eq!(cuda.stats().uncaptured, 0, "{:?}", cuda.remarks());
}

#[test]
fn a_panic_while_work_is_captured_leaves_the_device_usable() {
    let Some(cuda) = crate::cuda() else { return };
    let runs = Cell::new(0);
    let reads = Arc::new(());
    let mut graph = Graph::default();
    let mut run = |seed| {
        let x = Shape::dense(64, 128).tensor(&cuda, seed);
        let work = |_: &(), [x]: [&Tensor<Cuda>; 1]| {
            runs.set(runs.get() + 1);
            let out = x.row_view(0..64).silu();
            // The first call runs it in the arena, then captures it.
            assert!(runs.get() != 2, "on purpose");
            out
        };
        let got = cuda.run_graph(&mut graph, Participants::One, &reads, [&x], work).unwrap();
        assert_eq!(cuda.download(&got).unwrap(), cuda.download(&x.silu().unwrap()).unwrap(), "{seed}");
    };
    assert!(catch_unwind(AssertUnwindSafe(|| run(1))).is_err());
    // Another thread would wait forever for a capture that never ends.
    thread::scope(|scope| scope.spawn(|| cuda.event().map(drop)).join().unwrap()).unwrap();
    for seed in 3..6 {
        run(seed);
    }
    assert_eq!((cuda.stats().uncaptured, cuda.stats().graph_launches), (0, 2));
}

#[test]
fn inputs_of_another_shape_are_an_error() {
    let Some(cuda) = crate::cuda() else { return };
    let reads = Arc::new(());
    let mut graph = Graph::default();
    let mut run = |rows| {
        cuda.run_graph(&mut graph, Participants::One, &reads, [&Shape::dense(rows, 128).tensor(&cuda, 1)], |_, [x]| {
            x.row_view(0..x.rows()).silu()
        })
    };
    for _ in 0..3 {
        run(64).unwrap();
    }
    let error = run(65).map(drop).unwrap_err().to_string();
    assert!(error.contains("a different shape"), "{error}");
}

#[test]
fn work_that_does_not_fit_twice_is_not_captured_but_done() {
    if crate::cuda().is_none() {
        return;
    }
    // Room for the input, the result and one more; captured work also has an input of its own.
    let bytes = 32 << 20;
    let cuda = Cuda::new(0, Some(3 * bytes)).unwrap();
    let reads = Arc::new(());
    let mut graph = Graph::default();
    for round in 0..4 {
        let x = Shape::dense(4096, 4096).tensor(&cuda, round);
        let got =
            cuda.run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| x.row_view(0..4096).silu()).unwrap();
        drop(x);
        let expected = cuda.download(&Shape::dense(4096, 4096).tensor(&cuda, round).silu().unwrap()).unwrap();
        assert_eq!(cuda.download(&got).unwrap(), expected, "round {round}");
    }
    assert_eq!((cuda.stats().uncaptured, cuda.stats().graph_launches), (1, 0));
}
