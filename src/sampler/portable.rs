//! Noise that does not depend on the size of the image, so that a seed gives a similar composition at every size.
//!
//! A seed determines the strength of each wave over the whole image, not the value of a pixel: the coefficient of the
//! orthonormal cosine transform (DCT-II) with `ky` half waves down and `kx` across. An image of `height` x `width`
//! latents is the inverse transform of the coefficients below its height and width. A larger image has further, finer
//! waves; the coarse waves, which determine the composition, are the same. An orthonormal transform of independent
//! standard normal coefficients gives independent standard normal values, so at each size the noise is exactly what
//! the model expects.
//!
//! Coefficients come from a [`RandomStream`] of the seed, with the number `channel * 2^32 + ky`. Along kx two outputs
//! `a`, `b` of 53 bits make two coefficients `sqrt(-2 ln((a + 1) / 2^53))` times cos and sin of `2 pi b / 2^53`.

use std::f64::consts::{SQRT_2, TAU};
use std::sync::Arc;

use rayon::prelude::*;
use rustdct::{DctPlanner, TransformType2And3};

use super::stream::RandomStream;

/// Fills `planes` [channels, height, width] with the noise of a seed.
pub(super) fn normal(seed: u64, planes: &mut [f32], height: usize, width: usize) {
    let mut planner = DctPlanner::new();
    let (down, across) = (planner.plan_dct3(height), planner.plan_dct3(width));
    planes.par_chunks_exact_mut((height * width).max(1)).enumerate().for_each(|(channel, plane)| {
        let mut coefficients = vec![0.0; plane.len()];
        for (ky, row) in coefficients.chunks_exact_mut(width).enumerate() {
            draw(seed, (channel << 32 | ky) as u64, row);
            inverse(&across, row);
        }
        let mut column = vec![0.0; height];
        for x in 0..width {
            column.iter_mut().zip(coefficients[x..].iter().step_by(width)).for_each(|(to, value)| *to = *value);
            inverse(&down, &mut column);
            plane[x..].iter_mut().step_by(width).zip(&column).for_each(|(to, value)| *to = *value as f32);
        }
    });
}

/// Generates the first standard normal values of a stream.
fn draw(seed: u64, stream: u64, values: &mut [f64]) {
    let mut random = RandomStream::new(seed, stream);
    for pair in values.chunks_mut(2) {
        let radius = (-2.0 * ((random.bits() + 1.0) * RandomStream::SCALE).ln()).sqrt();
        let (sin, cos) = (TAU * random.uniform()).sin_cos();
        pair.iter_mut().zip([radius * cos, radius * sin]).for_each(|(to, value)| *to = value);
    }
}

/// Computes the inverse of the orthonormal DCT-II.
fn inverse(transform: &Arc<dyn TransformType2And3<f64>>, line: &mut [f64]) {
    // The transform halves its first input and leaves out the factor.
    line[0] *= SQRT_2;
    transform.process_dct3(line);
    let scale = (2.0 / line.len() as f64).sqrt();
    line.iter_mut().for_each(|value| *value *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNELS: usize = 128;

    fn noise(seed: u64, height: usize, width: usize) -> Vec<f32> {
        let mut planes = vec![0.0; CHANNELS * height * width];
        normal(seed, &mut planes, height, width);
        planes
    }

    fn correlation(a: &[f32], b: &[f32]) -> f64 {
        assert_eq!(a.len(), b.len());
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    }

    /// Halves height and width: the mean of each square of four.
    fn halved(planes: &[f32], height: usize, width: usize) -> Vec<f32> {
        let at = |c: usize, y: usize, x: usize| planes[(c * height + y) * width + x];
        let mean = |c, y, x| (at(c, y, x) + at(c, y + 1, x) + at(c, y, x + 1) + at(c, y + 1, x + 1)) / 4.0;
        let rows = (0..CHANNELS).flat_map(|c| (0..height / 2).map(move |y| (c, 2 * y)));
        rows.flat_map(|(c, y)| (0..width / 2).map(move |x| mean(c, y, 2 * x))).collect()
    }

    // The expected values come from a direct implementation of the definition in Python.
    #[test]
    fn the_first_values_stay_as_they_are() {
        let mut coefficients = [0.0; 4];
        draw(42, 0, &mut coefficients);
        let expected = [-0.323063215562, 1.416076914820, -0.802052199085, 0.877091048310];
        for (got, expected) in coefficients.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-9, "{coefficients:?}");
        }
        let values = noise(42, 3, 5);
        let expected = [0.348361, -0.010456, -0.438819, 0.017247];
        for (got, expected) in values.iter().zip(expected) {
            assert!((got - expected).abs() < 2e-6, "{:?}", &values[..4]);
        }
    }

    #[test]
    fn it_is_standard_normal_at_every_size() {
        for (height, width) in [(64, 64), (33, 65), (1, 300), (7, 120)] {
            let values = noise(1, height, width);
            let n = values.len() as f64;
            let moment = |power: i32| values.iter().map(|value| f64::from(*value).powi(power)).sum::<f64>() / n;
            // Five standard deviations of the moments of n independent normal values.
            let bound = |variance: f64| 5.0 * (variance / n).sqrt();
            for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
                let got = moment(power);
                assert!((got - expected).abs() < bound(variance), "{height} x {width}: moment {power} is {got}");
            }
            // Neighbours across, down if there are rows, and in the next channel.
            for step in [1, width, height * width] {
                let got = correlation(&values[..values.len() - step], &values[step..]);
                assert!(got.abs() < bound(1.0), "{height} x {width}: {got} at a distance of {step}");
            }
        }
    }

    #[test]
    fn seeds_and_channels_are_independent_and_all_64_bits_of_a_seed_count() {
        let first = noise(1, 16, 16);
        for other in [2, 1 << 32 | 1, 1 << 63 | 1, u64::MAX] {
            let got = correlation(&first, &noise(other, 16, 16));
            assert!(got.abs() < 5.0 / (first.len() as f64).sqrt(), "{other}: {got}");
        }
        assert!(noise(1, 16, 16) == first);
    }

    #[test]
    fn the_coarse_part_is_the_same_at_another_size() {
        let (small, large) = (noise(7, 16, 24), noise(7, 32, 48));
        // For independent noise this would be 0; a mean of four cannot hold all of the finest waves.
        let got = correlation(&small, &halved(&large, 32, 48));
        assert!(got > 0.75, "{got}");
        // Twice as coarse, nearly all of it.
        let got = correlation(&halved(&small, 16, 24), &halved(&halved(&large, 32, 48), 16, 24));
        assert!(got > 0.9, "{got}");
        // Sizes that are no multiple of each other have the same coefficients too.
        let mean = |planes: &[f32], size: usize| planes[..size].iter().sum::<f32>() / (size as f32).sqrt();
        let (a, b) = (mean(&noise(7, 9, 13), 9 * 13), mean(&noise(7, 20, 11), 20 * 11));
        assert!((a - b).abs() < 1e-4, "{a} and {b}: the first coefficient");
    }
}
