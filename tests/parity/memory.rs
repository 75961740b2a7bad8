//! Counters of the backend: memory, launches, waits and copies.

use std::collections::VecDeque;
use std::sync::Arc;

use flux::backend::cuda::{Cuda, Graph};
use flux::backend::{Device, Memory, Participants};
use flux::tensor::Tensor;

use crate::compare::{Shape, Weight, values, vector};

#[test]
fn a_chain_of_ops_waits_for_nothing_and_copies_nothing() {
    let Some(cuda) = crate::cuda() else { return };
    let (x, shift, scale) = (Shape::dense(64, 128).tensor(&cuda, 1), vector(&cuda, 2, 128), vector(&cuda, 3, 128));
    let (up, down) = (Weight::seeded(4, 512, 128).linear(&cuda), Weight::seeded(5, 128, 256).linear(&cuda));
    let mut x = x;
    let mut counted = Vec::new();
    for _ in 0..3 {
        let before = cuda.stats();
        let h = x.adaln(&shift, &scale, 1e-6).unwrap().linear(&up, None).unwrap();
        let [gate, up_half] = h.split_cols([256, 256]);
        let h = gate.swiglu(&up_half).unwrap().linear(&down, None).unwrap();
        x = x.gated_add(&shift, &h).unwrap();
        let after = cuda.stats();
        assert_eq!(
            (after.waits - before.waits, after.copies - before.copies, after.composed - before.composed),
            (0, 0, 0)
        );
        counted.push(after.launches - before.launches);
    }
    assert_eq!(counted, [5, 5, 5]);
    assert_eq!(cuda.download(&x).unwrap().len(), 64 * 128);
    assert_eq!(cuda.stats().waits, 1);
}

#[test]
fn dropped_tensors_give_their_memory_back() {
    let Some(cuda) = crate::cuda() else { return };
    let before = cuda.stats().memory_bytes;
    let x: Tensor<Cuda> = Shape::dense(1000, 512).tensor(&cuda, 1);
    assert_eq!(cuda.stats().memory_bytes - before, 1000 * 512 * 2);
    let (top, bottom) = x.split_rows(10);
    drop(top);
    assert_eq!(cuda.stats().memory_bytes - before, 1000 * 512 * 2);
    drop(bottom);
    assert_eq!(cuda.stats().memory_bytes, before);
    assert!(cuda.stats().peak_memory_bytes >= before + 1000 * 512 * 2);
}

#[test]
fn memory_over_the_cap_is_an_error_and_the_device_goes_on() {
    if crate::cuda().is_none() {
        return;
    }
    let cuda = Cuda::new(0, Some(64 << 20)).unwrap();
    let error = cuda.upload(&vec![0.0; 1 << 26], 1 << 13, 1 << 13).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("128 MiB more") && error.contains("0 MiB of 64 MiB") && error.contains("`gpu_memory`"),
        "{error}"
    );
    let x = cuda.upload(&[1.0, 2.0], 1, 2).unwrap();
    assert_eq!(cuda.download(&x.silu().unwrap()).unwrap().len(), 2);
}

/// Tensors of many sizes are allocated and freed, so that free memory is fragmented.
#[test]
fn what_the_driver_holds_stays_under_the_cap() {
    if crate::cuda().is_none() {
        return;
    }
    let cap = 256 << 20;
    let cuda = Cuda::new(0, Some(cap)).unwrap();
    let sizes = values(1, 400).into_iter().map(|value| (1 << 20) + (value.abs() * 1e7) as usize);
    let mut tensors = VecDeque::new();
    let (mut refused, mut most) = (0, 0);
    for (turn, size) in sizes.enumerate() {
        match cuda.upload(&vec![1.0; size], 1, size) {
            Ok(tensor) => tensors.push_back(tensor),
            Err(error) => {
                assert!(error.to_string().contains("out of GPU memory"), "{error}");
                refused += 1;
                // The neighbours of the remaining tensors are mostly in use.
                let mut index = 0;
                tensors.retain(|_| {
                    index += 1;
                    index % 3 == 0
                });
            }
        }
        let reserved = cuda.reserved_bytes().unwrap();
        assert!(reserved <= cap && reserved >= cuda.stats().memory_bytes, "turn {turn}: {reserved}");
        most = most.max(cuda.stats().memory_bytes);
    }
    println!("refused {refused} times, {most} bytes at most");
    assert!(refused > 0 && most > cap / 2, "refused {refused} times, {most} bytes at most");
}

#[test]
fn graphs_count_as_used() {
    let Some(cuda) = crate::cuda() else { return };
    let reads = Arc::new(());
    let mut graph = Graph::default();
    let x = Shape::dense(64, 128).tensor(&cuda, 1);
    for _ in 0..2 {
        cuda.run_graph(&mut graph, Participants::One, &reads, [&x], |_, [x]| x.row_view(0..64).silu()).unwrap();
        assert!(cuda.reserved_bytes().unwrap() >= cuda.stats().memory_bytes);
    }
    assert_eq!(cuda.stats().graph_launches, 1, "{:?}", cuda.remarks());
    drop(graph);
    assert_eq!(cuda.stats().memory_bytes, 64 * 128 * 2, "x is left");
}

#[test]
fn events_time_the_work_between_them() {
    let Some(cuda) = crate::cuda() else { return };
    let mut x: Tensor<Cuda> = Shape::dense(2048, 1024).tensor(&cuda, 1);
    let from = cuda.event().unwrap();
    for _ in 0..50 {
        x = x.silu().unwrap();
    }
    let to = cuda.event().unwrap();
    cuda.wait(&to).unwrap();
    assert!(cuda.is_done(&from).unwrap() && cuda.is_done(&to).unwrap());
    let time = cuda.elapsed(&from, &to).unwrap();
    assert!(time.as_micros() > 0 && time.as_secs() < 10, "{time:?}");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    if crate::cuda().is_none() {
        return;
    }
    let error = Cuda::new(4096, None).map(drop).unwrap_err().to_string();
    assert!(error.contains("no GPU 4096"), "{error}");
}
