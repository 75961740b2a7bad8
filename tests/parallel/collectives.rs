//! Each collective against its definition, at sizes that do not divide.

use std::thread;
use std::time::Duration;

use flux::backend::Backend;
use flux::backend::cpu::{Cpu, Precision};
use flux::ops::{Conv, GroupNorm, Halo, RowSplit, Sharing, TokenLayout, TokenSplit};
use flux::{Result, Tensor};

use crate::bands::{BandCase, CASES};

const WORLDS: [usize; 3] = [1, 2, 4];

fn group(world: usize) -> Vec<Cpu> {
    Cpu::group(Precision::F32, world, Cpu::GROUP_LIMIT).expect("a group")
}

/// What `work` returns on each rank of a group.
fn on_each<T: Send>(world: usize, work: impl Fn(Cpu) -> Result<T> + Sync) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = group(world).into_iter().map(|cpu| scope.spawn(|| work(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The same, where all succeed.
fn all<T: Send>(world: usize, work: impl Fn(Cpu) -> Result<T> + Sync) -> Vec<T> {
    on_each(world, work).into_iter().map(|result| result.unwrap()).collect()
}

/// A whole of `cols` columns in which every value is another.
struct Whole {
    cols: usize,
    values: Vec<f32>,
}

impl Whole {
    fn new(rows: usize, cols: usize) -> Self {
        Self { cols, values: (0..rows * cols).map(|i| i as f32).collect() }
    }

    fn cells(&self, row: usize, cols: std::ops::Range<usize>) -> &[f32] {
        &self.values[row * self.cols..][cols]
    }

    /// Some rows and columns, in a tensor that is wider than they are.
    fn upload(&self, cpu: &Cpu, rows: impl IntoIterator<Item = usize>, cols: std::ops::Range<usize>) -> Tensor<Cpu> {
        let rows: Vec<usize> = rows.into_iter().collect();
        let row = |row: &usize| [self.cells(*row, cols.clone()), &[-1.0]].concat();
        let values: Vec<f32> = rows.iter().flat_map(row).collect();
        let wide = cpu.upload(&values, rows.len(), cols.len() + 1).unwrap();
        let [x, _] = wide.split_cols([cols.len(), 1]);
        x
    }
}

fn rows_of(rows: RowSplit, rank: usize) -> Vec<usize> {
    rows.runs_of(rank).flat_map(|run| run.whole).collect()
}

fn layouts() -> Vec<TokenLayout> {
    let layouts = [
        TokenLayout { references: 6, ..TokenLayout::new(1, 5, 15) },
        TokenLayout::new(3, 3, 7),
        TokenLayout::new(2, 9, 1),
        TokenLayout::single(2),
    ];
    layouts.into_iter().flat_map(|layout| [layout, layout.image_queries()]).collect()
}

#[test]
fn heads_cross_to_all_tokens_and_back() {
    const HEAD_DIM: usize = 3;
    for world in WORLDS {
        for layout in layouts() {
            let dim = 4 * HEAD_DIM;
            let whole = Whole::new(layout.rows(), 3 * dim);
            all(world, |cpu| {
                let split = TokenSplit::new(layout, cpu.rank(), world);
                let (rows, queries) = (rows_of(split.rows(), cpu.rank()), rows_of(split.query_rows(), cpu.rank()));
                // The rows of queries begin behind those that ask none.
                let skipped = layout.rows_without_query();
                let queries: Vec<usize> = queries.into_iter().map(|row| skipped + row).collect();
                let kvq = [
                    whole.upload(&cpu, rows.clone(), 0..dim),
                    whole.upload(&cpu, rows, dim..2 * dim),
                    whole.upload(&cpu, queries.clone(), 2 * dim..3 * dim),
                ];
                let crossed = Tensor::all_to_all_heads(kvq, HEAD_DIM, &split)?;
                let own = dim / world;
                let firsts = [0, 0, skipped];
                for (i, (x, first)) in crossed.iter().zip(firsts).enumerate() {
                    let cols = i * dim + cpu.rank() * own..i * dim + (cpu.rank() + 1) * own;
                    let expected: Vec<f32> =
                        (first..layout.rows()).flat_map(|row| whole.cells(row, cols.clone())).copied().collect();
                    assert_eq!(cpu.download(x)?, expected, "{layout:?}, {world}");
                }
                let [_, _, q] = crossed;
                let back = q.all_to_all_rows(&split)?;
                let expected: Vec<f32> =
                    queries.iter().flat_map(|row| whole.cells(*row, 2 * dim..3 * dim)).copied().collect();
                assert_eq!((cpu.download(&back)?, back.cols()), (expected, dim), "{layout:?}, {world}");
                Ok(())
            });
        }
    }
}

/// What each half of a group has when it crosses among itself is what a group of half as many has.
#[test]
fn halves_cross_and_gather_among_themselves_and_swap_with_each_other() {
    const HEAD_DIM: usize = 3;
    for (world, layout) in
        WORLDS.into_iter().filter(|world| world % 2 == 0).flat_map(|w| layouts().into_iter().map(move |l| (w, l)))
    {
        let (dim, half) = (4 * HEAD_DIM, world / 2);
        let all_rows = layout.rows();
        // Each half has other values.
        let whole = Whole::new(2 * all_rows, 3 * dim);
        all(world, |cpu| {
            let split = TokenSplit::shared(layout, Sharing::Half, cpu.rank(), world);
            let first = cpu.rank() / half * all_rows;
            let own = |split: RowSplit, skipped: usize| -> Vec<usize> {
                rows_of(split, cpu.rank() % half).into_iter().map(|row| first + skipped + row).collect()
            };
            let (rows, queries) = (own(split.rows(), 0), own(split.query_rows(), layout.rows_without_query()));
            let kvq = [
                whole.upload(&cpu, rows.clone(), 0..dim),
                whole.upload(&cpu, rows, dim..2 * dim),
                whole.upload(&cpu, queries.clone(), 2 * dim..3 * dim),
            ];
            let [k, _, q] = Tensor::all_to_all_heads(kvq, HEAD_DIM, &split)?;
            let own_heads = split.rank() * dim / half..(split.rank() + 1) * dim / half;
            let cells = |rows: &mut dyn Iterator<Item = usize>, cols: std::ops::Range<usize>| -> Vec<f32> {
                rows.flat_map(|row| whole.cells(row, cols.clone())).copied().collect()
            };
            assert_eq!(cpu.download(&k)?, cells(&mut (first..first + all_rows), own_heads), "{layout:?}, {world}");
            let back = q.all_to_all_rows(&split)?;
            let expected = cells(&mut queries.into_iter(), 2 * dim..3 * dim);
            assert_eq!(cpu.download(&back)?, expected, "{layout:?}, {world}");
            let images = split.image_rows();
            let image = layout.rows() - layout.img_rows();
            let gathered = whole.upload(&cpu, own(images, image), 0..3).all_gather_rows(&images)?;
            let expected = cells(&mut (first + image..first + all_rows), 0..3);
            assert_eq!(cpu.download(&gathered)?, expected, "{layout:?}, {world}");
            let swapped = gathered.swap_halves()?;
            let other = all_rows - first;
            let expected = cells(&mut (other + image..other + all_rows), 0..3);
            assert_eq!(cpu.download(&swapped)?, expected, "{layout:?}, {world}");
            Ok(())
        });
    }
}

#[test]
fn a_group_without_halves_swaps_nothing_nor_do_halves_of_different_shapes() {
    let one = Cpu::new(Precision::F32).upload(&[0.0], 1, 1).unwrap().swap_halves().map(|_| ()).unwrap_err();
    assert!(one.to_string().contains("1 ranks have no halves"), "{one}");
    let shapes = on_each(2, |cpu| cpu.upload(&vec![0.0; 1 + cpu.rank()], 1 + cpu.rank(), 1)?.swap_halves().map(|_| ()));
    for result in shapes {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("the same image"), "{text}");
    }
}

#[test]
fn gathered_rows_are_at_their_places() {
    for world in WORLDS {
        let tokens = layouts().into_iter().map(|layout| TokenSplit::new(layout, 0, world).rows());
        let bands = [RowSplit::bands(5, 3, world), RowSplit::bands(1, 4, world)];
        for split in tokens.chain(bands) {
            let whole = Whole::new(split.rows(), 3);
            for gathered in all(world, |cpu| {
                let own = whole.upload(&cpu, rows_of(split, cpu.rank()), 0..3);
                cpu.download(&own.all_gather_rows(&split)?)
            }) {
                assert_eq!(gathered, whole.values, "{split:?}");
            }
        }
    }
}

#[test]
fn a_halo_has_the_rows_of_the_neighbours_and_none_beyond_the_edges() {
    for world in WORLDS {
        for halo @ [above, below] in [[2, 2], [0, 2], [1, 0], [0, 0]] {
            let split = RowSplit::bands(9, 2, world);
            let whole = Whole::new(18, 3);
            all(world, |cpu| {
                let own = rows_of(split, cpu.rank());
                let got = whole.upload(&cpu, own.clone(), 0..3).halo_rows(halo)?;
                let (first, end) = (own[0], own[own.len() - 1] + 1);
                for (got, rows) in
                    [(got.above, first.saturating_sub(above)..first), (got.below, end..(end + below).min(18))]
                {
                    let expected: Vec<f32> = rows.flat_map(|row| whole.cells(row, 0..3)).copied().collect();
                    let got = got.map_or(Ok(Vec::new()), |got| cpu.download(&got))?;
                    assert_eq!(got, expected, "{halo:?}, rank {} of {world}", cpu.rank());
                }
                Ok(())
            });
        }
    }
    let too_few = on_each(2, |cpu| cpu.upload(&[0.0], 1, 1)?.halo_rows([2, 0]).map(|_| ()));
    assert!(too_few[0].as_ref().unwrap_err().to_string().contains("a band of 1 rows has no halo of 2"));
}

#[test]
fn convolutions_of_bands_are_those_of_the_whole() {
    for (size, channels) in CASES {
        let image = BandCase::new(size, channels);
        let whole = image.convolve(&Cpu::new(Precision::F32)).unwrap();
        for world in WORLDS {
            let bands = all(world, |cpu| image.convolve(&cpu));
            image.assert_same(&bands, &whole, 1e-4, &format!("{world} ranks"));
        }
    }
}

#[test]
fn a_halo_that_does_not_fit_is_refused() {
    let cpu = Cpu::new(Precision::F32);
    let image = |rows: usize, channels: usize| cpu.upload(&vec![0.0; rows * channels], rows, channels).unwrap();
    let (x, bias, weight) = (image(12, 3), image(1, 4), BandCase::new([4, 3], [3, 4]).kernel(&cpu));
    let refused = |above: Tensor<Cpu>| {
        let halo = Halo { above: Some(above), below: None };
        let made = x.conv2d_band(&weight, &bias, Conv::same(4, 3, 3), &halo);
        made.map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(image(4, 3)).contains("a halo of [4, 3] does not fit"));
    assert!(refused(image(3, 2)).contains("a halo of [3, 2] does not fit"));
    let (norm_weight, norm_bias) = (image(1, 3), image(1, 3));
    let norm = GroupNorm { weight: &norm_weight, bias: &norm_bias, groups: 3, eps: 1e-6, statistics: None };
    let halo = Halo { above: None, below: Some(image(3, 3)) };
    let text = x.norm_conv2d_band(&norm, &weight, &bias, Conv::same(4, 3, 3), &halo).map(|_| ()).unwrap_err();
    assert!(text.to_string().contains("statistics of the whole image"), "{text}");
}

#[test]
fn a_norm_with_reduced_statistics_is_that_of_the_whole_and_the_same_on_all_ranks() {
    let (rows, channels) = (23, 8);
    let values: Vec<f32> = (0..rows * channels).map(|i| 50.0 + ((i * 7919) % 101) as f32 / 10.0).collect();
    let normed = |x: &Tensor<Cpu>, channel: Option<&flux::backend::cpu::ChannelStatistics>| {
        let cpu = x.backend();
        let (weight, bias) = (cpu.upload(&[1.5; 8], 1, 8)?, cpu.upload(&[0.25; 8], 1, 8)?);
        let norm = GroupNorm { weight: &weight, bias: &bias, groups: 2, eps: 1e-6, statistics: channel };
        cpu.download(&x.group_norm(&norm)?)
    };
    let alone = Cpu::new(Precision::F32);
    let expected = normed(&alone.upload(&values, rows, channels).unwrap(), None).unwrap();
    for world in WORLDS {
        let split = RowSplit::bands(rows, 1, world);
        let parts = all(world, |cpu| {
            let own = rows_of(split, cpu.rank());
            let x = cpu.upload(&values[own[0] * channels..][..own.len() * channels], own.len(), channels)?;
            let reduced = x.all_reduce_statistics(None)?;
            assert_eq!(reduced.is_none(), world == 1);
            // The same rows on each rank show that all have the same statistics.
            let same = cpu.upload(&values[..channels], 1, channels)?;
            Ok((normed(&x, reduced.as_ref())?, normed(&same, reduced.as_ref())?))
        });
        let got = parts.iter().flat_map(|(own, _)| own.clone());
        for (got, expected) in got.zip(&expected) {
            assert!((got - expected).abs() < 2e-5, "{got} for {expected}, {world}");
        }
        assert!(parts.iter().all(|(_, same)| *same == parts[0].1), "{world}");
    }
}

#[test]
fn rank_0_gives_and_all_have() {
    for world in WORLDS {
        for got in all(world, |cpu| {
            let x = (cpu.rank() == 0).then(|| cpu.upload(&[1.0, 2.0, 3.0], 1, 3)).transpose()?;
            assert_eq!(cpu.gather_host("sizes", 10 + cpu.rank() as u64)?.len(), world);
            cpu.download(&Tensor::broadcast(&cpu, x, [1, 3])?)
        }) {
            assert_eq!(got, [1.0, 2.0, 3.0]);
        }
    }
    let wrong = on_each(2, |cpu| {
        let x = cpu.upload(&[1.0], 1, 1)?;
        Tensor::broadcast(&cpu, Some(x), [1, 1]).map(|_| ())
    });
    assert!(wrong[1].as_ref().unwrap_err().to_string().contains("expected x of rank 0 alone"));
}

#[test]
fn tensors_of_two_ranks_are_on_two_devices() {
    let [a, b]: [Cpu; 2] = group(2).try_into().unwrap();
    let (x, y) = (a.upload(&[1.0], 1, 1).unwrap(), b.upload(&[1.0], 1, 1).unwrap());
    let text = x.add(&y).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("CPU rank 1 of 2") && text.contains("CPU rank 0 of 2"), "{text}");
    assert!(!a.is_same_device(&Cpu::new(Precision::F32)) && a.is_same_device(&a.clone()));
}

#[test]
fn on_one_device_what_a_collective_got_is_what_it_returns() {
    let cpu = Cpu::new(Precision::F32);
    let split = TokenSplit::new(TokenLayout::new(1, 1, 2), 0, 1);
    let x = || cpu.upload(&[0.0; 12], 3, 4).unwrap();
    let buffer = |x: &Tensor<Cpu>| std::sync::Arc::as_ptr(x.buffer());
    let kvq = [x(), x(), x()];
    let before = kvq.each_ref().map(buffer);
    let crossed = Tensor::all_to_all_heads(kvq, 2, &split).unwrap();
    assert_eq!(crossed.each_ref().map(buffer), before);
    let [q, ..] = crossed;
    let same = buffer(&q);
    let x = q.all_to_all_rows(&split).unwrap().all_gather_rows(&split.rows()).unwrap();
    let x = Tensor::broadcast(&cpu, Some(x), [3, 4]).unwrap();
    assert!(buffer(&x) == same && x.writable(), "it may still be overwritten");
    assert!(x.halo_rows([1, 1]).unwrap().is_empty());
    assert!(x.all_reduce_statistics(None).unwrap().is_none());
}

#[test]
fn what_cannot_be_shared_is_refused_on_all_ranks() {
    let refused = |world, layout: TokenLayout, head_dim| {
        let texts = on_each(world, |cpu| {
            let split = TokenSplit::new(layout, cpu.rank(), world);
            let x = || cpu.upload(&vec![0.0; split.own().rows() * 6], split.own().rows(), 6);
            Tensor::all_to_all_heads([x()?, x()?, x()?], head_dim, &split).map(|_| ())
        });
        texts.into_iter().map(|result| result.unwrap_err().to_string()).collect::<Vec<_>>()
    };
    for text in refused(2, TokenLayout::single(4), 2) {
        assert!(text.contains("2 devices cannot share 3 heads") && text.contains("1, 3"), "{text}");
    }
    let cpu = &group(2)[0];
    let x = cpu.upload(&[0.0; 4], 2, 2).unwrap();
    let other = TokenSplit::new(TokenLayout::single(4), 1, 2);
    let text = x.all_to_all_rows(&other).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("tokens of rank 1 of 2 on rank 0 of 2"), "{text}");
    let parcels = on_each(2, |cpu| {
        // Rank 1 makes another image.
        let split = TokenSplit::new(TokenLayout::single(4 + 2 * cpu.rank()), cpu.rank(), 2);
        let rows = split.rows().rows_of(cpu.rank());
        cpu.upload(&vec![0.0; rows], rows, 1)?.all_gather_rows(&split.rows()).map(|_| ())
    });
    for result in parcels {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("gave [") && text.contains("the same image"), "{text}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_within_the_limit() {
    let limit = Duration::from_millis(200);
    let [a, b]: [Cpu; 2] = Cpu::group(Precision::F32, 2, limit).unwrap().try_into().unwrap();
    let x = a.upload(&[0.0; 2], 2, 1).unwrap();
    let text = x.halo_rows([1, 1]).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("rank 1 did not come within 200ms to `halo_rows`, where rank 0 waits"), "{text}");
    let late = b.upload(&[0.0; 2], 2, 1).unwrap().halo_rows([1, 1]).map(|_| ()).unwrap_err().to_string();
    assert!(late.contains("did not come"), "{late}");
    assert!(Cpu::group(Precision::F32, 0, limit).is_err());
}
