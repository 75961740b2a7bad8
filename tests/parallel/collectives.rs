//! Each collective against its definition, at sizes that do not divide.

use std::thread;
use std::time::Duration;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::{Group, Memory};
use flux::ops::{Conv, GroupNorm, Halo, Sharing, TokenLayout, TokenSplit};
use flux::{Result, Tensor};

use crate::bands::{BandCase, CASES};
use crate::ranks::{
    assert_normed, check_broadcast, check_gathered, check_halo, check_heads, layouts, normed_band, row_splits,
};

const WORLDS: [usize; 3] = [1, 2, 4];

fn group(world: usize) -> Vec<Cpu> {
    Cpu::group(Precision::F32, world, Cpu::GROUP_LIMIT).expect("a group")
}

/// Runs `work` on each rank of a group.
fn on_each<T: Send>(world: usize, work: impl Fn(Cpu) -> Result<T> + Sync) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = group(world).into_iter().map(|cpu| scope.spawn(|| work(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// As `on_each`, if all succeed.
fn all<T: Send>(world: usize, work: impl Fn(Cpu) -> Result<T> + Sync) -> Vec<T> {
    on_each(world, work).into_iter().map(|result| result.unwrap()).collect()
}

#[test]
fn heads_cross_to_all_tokens_and_back() {
    for (world, layout) in WORLDS.into_iter().flat_map(|world| layouts(&[]).into_iter().map(move |l| (world, l))) {
        all(world, |cpu| check_heads(&cpu, layout, Sharing::Group, 3));
        if world % 2 == 0 {
            all(world, |cpu| check_heads(&cpu, layout, Sharing::Half, 3));
        }
    }
}

#[test]
fn a_group_without_halves_swaps_nothing_nor_do_halves_of_different_shapes() {
    let one = Cpu::new(Precision::F32).upload(&[0.0], 1, 1).unwrap().swap_halves().map(|_| ()).unwrap_err();
    assert!(one.to_string().contains("1 ranks"), "{one}");
    let shapes = on_each(2, |cpu| cpu.upload(&vec![0.0; 1 + cpu.rank()], 1 + cpu.rank(), 1)?.swap_halves().map(|_| ()));
    for result in shapes {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("same image"), "{text}");
    }
}

#[test]
fn gathered_rows_are_at_their_places() {
    for world in WORLDS {
        for split in row_splits(&layouts(&[]), &[[5, 3], [1, 4]], world) {
            all(world, |cpu| check_gathered(&cpu, split, 3, 1));
        }
    }
}

#[test]
fn a_halo_has_the_rows_of_the_neighbours_and_none_beyond_the_edges() {
    for world in WORLDS {
        for halo in [[2, 2], [0, 2], [1, 0], [0, 0]] {
            all(world, |cpu| check_halo(&cpu, halo, 3, 1));
        }
    }
    let too_few = on_each(2, |cpu| cpu.upload(&[0.0], 1, 1)?.halo_rows([2, 0]).map(|_| ()));
    assert!(too_few[0].as_ref().unwrap_err().to_string().contains("a band of 1 rows is too short for a halo of 2"));
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
    assert!(refused(image(4, 3)).contains("[4, 3]"));
    assert!(refused(image(3, 2)).contains("[3, 2]"));
    let (norm_weight, norm_bias) = (image(1, 3), image(1, 3));
    let norm = GroupNorm { weight: &norm_weight, bias: &norm_bias, groups: 3, eps: 1e-6, statistics: None };
    let halo = Halo { above: None, below: Some(image(3, 3)) };
    let text = x.norm_conv2d_band(&norm, &weight, &bias, Conv::same(4, 3, 3), &halo).map(|_| ()).unwrap_err();
    assert!(text.to_string().contains("statistics of the whole image"), "{text}");
}

#[test]
fn a_norm_with_reduced_statistics_is_that_of_the_whole_and_the_same_on_all_ranks() {
    // Far from 0, where statistics round most.
    let whole: Vec<f32> = (0..23 * 8).map(|i| 50.0 + ((i * 7919) % 101) as f32 / 10.0).collect();
    let alone = Cpu::new(Precision::F32);
    for world in WORLDS {
        assert_normed(&alone, &whole, 8, &all(world, |cpu| normed_band(&cpu, &whole, 8)), |_| 2e-5);
    }
}

#[test]
fn rank_0_gives_and_all_have() {
    for world in WORLDS {
        all(world, |cpu| check_broadcast(&cpu));
    }
    let wrong = on_each(2, |cpu| {
        let x = cpu.upload(&[1.0], 1, 1)?;
        Tensor::broadcast(&cpu, Some(x), [1, 1]).map(|_| ())
    });
    assert!(wrong[1].as_ref().unwrap_err().to_string().contains("rank 0"));
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
        assert!(text.contains("2 devices") && text.contains("3 heads") && text.contains("1, 3"), "{text}");
    }
    let cpu = &group(2)[0];
    let x = cpu.upload(&[0.0; 4], 2, 2).unwrap();
    let other = TokenSplit::new(TokenLayout::single(4), 1, 2);
    let text = x.all_to_all_rows(&other).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2") && text.contains("rank 0 of 2"), "{text}");
    let parcels = on_each(2, |cpu| {
        // Rank 1 makes another image.
        let split = TokenSplit::new(TokenLayout::single(4 + 2 * cpu.rank()), cpu.rank(), 2);
        let rows = split.rows().rows_of(cpu.rank());
        cpu.upload(&vec![0.0; rows], rows, 1)?.all_gather_rows(&split.rows()).map(|_| ())
    });
    for result in parcels {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("sent [") && text.contains("same image"), "{text}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_within_the_limit() {
    let limit = Duration::from_millis(200);
    let [a, b]: [Cpu; 2] = Cpu::group(Precision::F32, 2, limit).unwrap().try_into().unwrap();
    let x = a.upload(&[0.0; 2], 2, 1).unwrap();
    let text = x.halo_rows([1, 1]).map(|_| ()).unwrap_err().to_string();
    assert!(
        text.contains("rank 1 ") && text.contains("200ms") && text.contains("`halo_rows`") && text.contains("rank 0 "),
        "{text}"
    );
    let late = b.upload(&[0.0; 2], 2, 1).unwrap().halo_rows([1, 1]).map(|_| ()).unwrap_err().to_string();
    assert!(late.contains("timed out"), "{late}");
    assert!(Cpu::group(Precision::F32, 0, limit).is_err());
}
