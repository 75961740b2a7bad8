//! Norms. Sums are taken in float64, so that the length of a row or a picture costs no accuracy.

use rayon::prelude::*;

use super::{Rows, math};

pub(super) fn layer_norm(x: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f64;
    let mean = (math::sum(x) / n) as f32;
    let variance = math::sum_squares(x, mean) / n;
    let rstd = (1.0 / (variance + eps as f64).sqrt()) as f32;
    out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - mean) * rstd);
}

/// Over each run of `weight.len()` values.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let mean_square = math::sum_squares(x, 0.0) / x.len() as f64;
        let rstd = (1.0 / (mean_square + eps as f64).sqrt()) as f32;
        out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = x * rstd * weight);
    }
}

/// Group norm as one multiplication and one addition for each channel: (scale, shift).
pub(super) fn group_norm_affine(x: Rows<'_>, weight: &[f32], bias: &[f32], groups: usize, eps: f32) -> (Vec<f32>, Vec<f32>) {
    let per_group = x.cols / groups;
    let mean = group_means(&channel_sums(x, |sums, row| sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += v as f64)), per_group, x.rows);
    // The second pass is about the mean: one pass over squares would lose digits where the mean is large.
    let squares = channel_sums(x, |sums, row| {
        sums.iter_mut().zip(row).zip(&mean).for_each(|((sum, &v), mean)| *sum += (v as f64 - mean) * (v as f64 - mean));
    });
    let variance = group_means(&squares, per_group, x.rows);
    let scale: Vec<f64> = weight.iter().zip(variance).map(|(&w, variance)| w as f64 / (variance + eps as f64).sqrt()).collect();
    let shift = bias.iter().zip(mean).zip(&scale).map(|((&b, mean), scale)| (b as f64 - mean * scale) as f32).collect();
    (scale.into_iter().map(|s| s as f32).collect(), shift)
}

/// The mean of each channel's group, from the sums of the channels over `rows` rows.
fn group_means(sums: &[f64], per_group: usize, rows: usize) -> Vec<f64> {
    let count = (rows * per_group) as f64;
    sums.chunks_exact(per_group).flat_map(|group| std::iter::repeat_n(group.iter().sum::<f64>() / count, per_group)).collect()
}

/// A sum over all rows for each channel; `add` adds a row. Blocks are summed in order, so that the result does not depend on threads.
fn channel_sums(x: Rows<'_>, add: impl Fn(&mut [f64], &[f32]) + Sync) -> Vec<f64> {
    const BLOCK: usize = 512;
    let block_sums = |block: usize| {
        let mut sums = vec![0.0; x.cols];
        (block * BLOCK..((block + 1) * BLOCK).min(x.rows)).for_each(|row| add(&mut sums, x.row(row)));
        sums
    };
    let blocks: Vec<Vec<f64>> = (0..x.rows.div_ceil(BLOCK)).into_par_iter().map(block_sums).collect();
    let mut total = vec![0.0; x.cols];
    blocks.iter().for_each(|sums| total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum));
    total
}
