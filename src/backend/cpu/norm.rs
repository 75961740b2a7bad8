//! Norms. Sums are accumulated in float64, so that the length of a row or an image costs no accuracy.

use rayon::prelude::*;

use super::{Cpu, Rows, math};
use crate::error::{Error, Result};
use crate::ops::GroupNorm;

pub(super) fn layer_norm(x: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f64;
    let mean = (math::sum(x) / n) as f32;
    let variance = math::sum_squares(x, mean) / n;
    let rstd = (1.0 / (variance + eps as f64).sqrt()) as f32;
    out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - mean) * rstd);
}

/// Computes the RMS norm of each run of `weight.len()` values of a row.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let mean_square = math::sum_squares(x, 0.0) / x.len() as f64;
        let rstd = (1.0 / (mean_square + eps as f64).sqrt()) as f32;
        out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = x * rstd * weight);
    }
}

/// Returns a group norm as one multiplication and one addition for each channel: (scale, shift).
pub(super) fn group_norm_affine(x: Rows<'_>, norm: &GroupNorm<'_, Cpu>) -> (Vec<f32>, Vec<f32>) {
    let (weight, bias) = (Rows::new(norm.weight).row(0), Rows::new(norm.bias).row(0));
    match norm.statistics {
        Some(statistics) => statistics.affine(weight, bias, norm.groups, norm.eps),
        None => affine(x, weight, bias, norm.groups, norm.eps),
    }
}

fn affine(x: Rows<'_>, weight: &[f32], bias: &[f32], groups: usize, eps: f32) -> (Vec<f32>, Vec<f32>) {
    let per_group = x.cols / groups;
    // Sums are relative to one value of the group, so that squares lose no digits if the mean is large.
    let center: Vec<f32> =
        (0..x.cols).map(|channel| x.data.get(channel / per_group * per_group).copied().unwrap_or_default()).collect();
    let sums = channel_sums(x, &center);
    let count = (x.rows * per_group) as f64;
    let group = |sums: &[f64]| sums.iter().sum::<f64>() / count;
    let (mut scale, mut shift) = (vec![0.0; x.cols], vec![0.0; x.cols]);
    for first in (0..x.cols).step_by(per_group) {
        let channels = first..first + per_group;
        let (mean, square) = (group(&sums.0[channels.clone()]), group(&sums.1[channels.clone()]));
        let rstd = 1.0 / (square - mean * mean + eps as f64).sqrt();
        let mean = mean + center[first] as f64;
        for channel in channels {
            (scale[channel], shift[channel]) = affine_of(mean, rstd, weight[channel], bias[channel]);
        }
    }
    (scale, shift)
}

/// Returns (scale, shift) of a channel.
fn affine_of(mean: f64, rstd: f64, weight: f32, bias: f32) -> (f32, f32) {
    let factor = weight as f64 * rstd;
    (factor as f32, (bias as f64 - mean * factor) as f32)
}

/// Means of the channels of an image, and sums of squares about the means.
#[derive(Clone)]
pub struct ChannelStatistics {
    pixels: usize,
    means: Vec<f64>,
    squares: Vec<f64>,
}

impl ChannelStatistics {
    pub(super) fn new(x: Rows<'_>) -> Self {
        let center = if x.rows == 0 { vec![0.0; x.cols] } else { x.row(0).to_vec() };
        let (sums, mut squares) = channel_sums(x, &center);
        let pixels = x.rows.max(1) as f64;
        squares.iter_mut().zip(&sums).for_each(|(square, sum)| *square -= sum * sum / pixels);
        let means = sums.iter().zip(center).map(|(sum, center)| f64::from(center) + sum / pixels).collect();
        Self { pixels: x.rows, means, squares }
    }

    /// Combines the statistics of the parts of an image.
    ///
    /// Errors if the parts have different channels.
    pub(super) fn combine(parts: &[Self]) -> Result<Self> {
        let channels = parts[0].means.len();
        if let Some(other) = parts.iter().find(|part| part.means.len() != channels) {
            let other = other.means.len();
            return Err(Error::new(format!("ranks differ in channels, {channels} and {other}"))
                .at("op `all_reduce_statistics`"));
        }
        let pixels: usize = parts.iter().map(|part| part.pixels).sum();
        let merged = |channel: usize| {
            let weighted = |part: &Self| part.pixels as f64 * part.means[channel];
            let mean = parts.iter().map(weighted).sum::<f64>() / pixels.max(1) as f64;
            let about = |part: &Self| part.squares[channel] + part.pixels as f64 * (part.means[channel] - mean).powi(2);
            (mean, parts.iter().map(about).sum::<f64>())
        };
        let (means, squares) = (0..channels).map(merged).unzip();
        Ok(Self { pixels, means, squares })
    }

    fn affine(&self, weight: &[f32], bias: &[f32], groups: usize, eps: f32) -> (Vec<f32>, Vec<f32>) {
        let channels = self.means.len() / groups;
        let of_group = |(means, squares): (&[f64], &[f64])| {
            let mean = means.iter().sum::<f64>() / channels as f64;
            let about = |(own, squares): (&f64, &f64)| squares + self.pixels as f64 * (own - mean).powi(2);
            let variance = means.iter().zip(squares).map(about).sum::<f64>() / (self.pixels * channels) as f64;
            (mean, 1.0 / (variance + eps as f64).sqrt())
        };
        let groups: Vec<_> = self.means.chunks(channels).zip(self.squares.chunks(channels)).map(of_group).collect();
        let of_channel = |channel: usize| {
            let (mean, rstd) = groups[channel / channels];
            affine_of(mean, rstd, weight[channel], bias[channel])
        };
        (0..self.means.len()).map(of_channel).unzip()
    }
}

/// Returns, for each channel, the sums over all rows of the deviations from `center` and of their squares. Blocks are
/// summed in order, so that the result does not depend on threads.
fn channel_sums(x: Rows<'_>, center: &[f32]) -> (Vec<f64>, Vec<f64>) {
    const BLOCK: usize = 512;
    let none = || (vec![0.0; x.cols], vec![0.0; x.cols]);
    let block_sums = |block: usize| {
        let (mut sums, mut squares) = none();
        (block * BLOCK..((block + 1) * BLOCK).min(x.rows))
            .for_each(|row| math::add_deviations(x.row(row), center, &mut sums, &mut squares));
        (sums, squares)
    };
    let blocks: Vec<_> = (0..x.rows.div_ceil(BLOCK)).into_par_iter().map(block_sums).collect();
    blocks.iter().fold(none(), |mut total, block| {
        let add = |total: &mut [f64], block: &[f64]| total.iter_mut().zip(block).for_each(|(total, sum)| *total += sum);
        add(&mut total.0, &block.0);
        add(&mut total.1, &block.1);
        total
    })
}

#[cfg(test)]
mod tests {
    use super::super::Precision;
    use super::*;
    use crate::backend::Memory;
    use crate::ops::group_norm;

    #[test]
    fn a_group_norm_with_silu_is_its_definition() {
        let cpu = Cpu::new(Precision::F32);
        let values = |n: usize| (0..n).map(|i| ((i * 7919) % 1009) as f32 / 200.0 - 2.0).collect::<Vec<_>>();
        let upload = |rows: usize, cols: usize| cpu.upload(&values(rows * cols), rows, cols).unwrap();
        let (x, weight, bias) = (upload(77, 36), upload(1, 36), upload(1, 36));
        let norm = GroupNorm { weight: &weight, bias: &bias, groups: 4, eps: 1e-6, statistics: None };
        let got = x.group_norm_silu(&norm).unwrap();
        let expected = group_norm::compose_silu(&cpu, &x, &norm).unwrap();
        assert_eq!(cpu.download(&got).unwrap(), cpu.download(&expected).unwrap());
    }

    #[test]
    fn statistics_of_parts_are_those_of_the_whole() {
        let (rows, cols) = (700, 12);
        let values: Vec<f32> = (0..rows * cols).map(|i| 300.0 + ((i * 7919) % 1009) as f32 / 504.5).collect();
        let of = |first: usize, rows: usize| Rows { data: &values[first * cols..], rows, cols, stride: cols };
        let parts = [of(0, 1), of(1, 0), of(1, 498), of(499, 201)].map(ChannelStatistics::new);
        let whole = ChannelStatistics::combine(&parts).unwrap();
        let (weight, bias) = (vec![1.5; cols], vec![0.25; cols]);
        let (got, expected) = (whole.affine(&weight, &bias, 3, 1e-6), affine(of(0, rows), &weight, &bias, 3, 1e-6));
        for (got, expected) in got.0.iter().chain(&got.1).zip(expected.0.iter().chain(&expected.1)) {
            assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{got}, expected {expected}");
        }
        let other = ChannelStatistics::new(Rows { data: &values, rows: 2, cols: 5, stride: 5 });
        assert!(ChannelStatistics::combine(&[other, whole]).is_err());
    }

    #[test]
    fn a_group_norm_keeps_its_digits_where_the_mean_is_large() {
        for (rows, cols, groups, mean) in [(1, 8, 2, 0.0), (700, 12, 3, 0.0), (1025, 40, 4, 3000.0), (600, 6, 6, -1e5)]
        {
            let values: Vec<f32> =
                (0..rows * (cols + 1)).map(|i| mean + ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
            let x = Rows { data: &values, rows, cols, stride: cols + 1 };
            let (weight, bias) = (vec![1.5; cols], vec![0.25; cols]);
            let (scale, shift) = affine(x, &weight, &bias, groups, 1e-6);
            let per_group = cols / groups;
            for channel in 0..cols {
                let first = channel / per_group * per_group;
                let group =
                    || (0..rows).flat_map(|row| &x.row(row)[first..first + per_group]).map(|&value| f64::from(value));
                let count = (rows * per_group) as f64;
                let mean = group().sum::<f64>() / count;
                let variance = group().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
                let expected = 1.5 / (variance + 1e-6).sqrt();
                assert!(
                    (f64::from(scale[channel]) / expected - 1.0).abs() < 1e-6,
                    "{mean}, {channel}: {}, expected {expected}",
                    scale[channel]
                );
                let expected = 0.25 - mean * expected;
                assert!(
                    (f64::from(shift[channel]) - expected).abs() < 1e-6 * expected.abs().max(1.0),
                    "{mean}, {channel}"
                );
            }
        }
    }
}
