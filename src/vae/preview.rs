//! Fast previews: a linear map from latents to a small image, fitted to the VAE's own encoder on a chart of colours.
//!
//! Each packed latent becomes 2 x 2 pixels, so the preview has an eighth of the VAE's width and height. The fit is a
//! ridge regression over the latents of the chart.

use crate::rgb::Rgb;

/// Pixels on a side for each packed latent.
const SIDE: usize = 2;
/// Values for each packed latent.
const VALUES: usize = SIDE * SIDE * 3;
/// Pixels on a side of the chart.
const CHART: usize = 320;
/// Strength of the ridge penalty for each latent, whose variance is 1. It keeps the fit from depending on the chart
/// alone.
const RIDGE: f64 = 0.02;

/// The linear map of a VAE.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewMap {
    channels: usize,
    /// [channels + 1, VALUES]; the last row is added.
    weights: Vec<f32>,
}

/// Draws the chart: patches of even colours, and waves of all lengths.
pub fn chart() -> Rgb {
    let pixel = |x: usize, y: usize| -> [u8; 3] {
        if x < CHART / 2 {
            // 4 x 4 x 4 colours, in an order in which neighbours differ.
            let patch = (x * 8 / (CHART / 2) + 8 * (y * 8 / CHART)) * 37 % 64;
            [patch % 4, patch / 4 % 4, patch / 16].map(|level| (level * 85) as u8)
        } else {
            let (x, y) = (x as f32, y as f32);
            let wave = |a: f32, b: f32, phase: f32| ((x * a + y * b) * 0.02 + phase).sin();
            [(3.1, 1.3, 0.0), (-1.7, 2.9, 2.0), (0.6, -5.3, 4.0)].map(|(a, b, phase)| {
                let value = 0.7 * wave(a, b, phase) + 0.3 * wave(4.0 * b, -3.0 * a, 2.0 * phase);
                (127.5 + 127.5 * value) as u8
            })
        }
    };
    let bytes = (0..CHART).flat_map(|y| (0..CHART).flat_map(move |x| pixel(x, y))).collect();
    Rgb { width: CHART, height: CHART, bytes }
}

impl PreviewMap {
    /// Fits the map to the packed latents of an image, [height / patch * width / patch, channels].
    ///
    /// `None` if the latents do not have the image's size, or are not numbers.
    pub fn fit(latents: &[f32], channels: usize, image: &Rgb, patch: usize) -> Option<Self> {
        let (rows, size) = (image.height / patch * (image.width / patch), channels + 1);
        if latents.len() != rows * channels || latents.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let row = |row: usize| latents[row * channels..][..channels].iter().map(|x| f64::from(*x)).chain([1.0]);
        // X^T X and X^T Y.
        let (mut normal, mut right) = (vec![0.0; size * size], vec![0.0; size * VALUES]);
        for place in 0..rows {
            let x: Vec<f64> = row(place).collect();
            let y = pixels(image, place, patch);
            for (i, a) in x.iter().enumerate() {
                x.iter().zip(&mut normal[i * size..][..size]).for_each(|(b, sum)| *sum += a * b);
                y.iter().zip(&mut right[i * VALUES..][..VALUES]).for_each(|(y, sum)| *sum += a * y);
            }
        }
        (0..channels).for_each(|i| normal[i * size + i] += RIDGE * rows as f64);
        let solved = solved(normal, right, size)?;
        Some(Self { channels, weights: solved.into_iter().map(|weight| weight as f32).collect() })
    }

    /// Maps packed latents [height * width, channels] to an image with twice as many pixels on a side.
    pub fn apply(&self, latents: &[f32], [height, width]: [usize; 2]) -> Rgb {
        let (wide, mut bytes) = (width * SIDE, vec![0; height * width * VALUES]);
        for (place, latent) in latents.chunks_exact(self.channels).take(height * width).enumerate() {
            let (top, left) = (place / width * SIDE, place % width * SIDE);
            // All values of a latent at once, so that the compiler vectorizes the loop.
            let mut sums = [0.0; VALUES];
            for (x, weights) in latent.iter().chain([&1.0]).zip(self.weights.chunks_exact(VALUES)) {
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
            }
            for (value, sum) in sums.into_iter().enumerate() {
                let (pixel, colour) = (value / 3, value % 3);
                let at = (top + pixel / SIDE) * wide + left + pixel % SIDE;
                // NaN becomes 0.
                bytes[3 * at + colour] = (255.0 * sum).round().clamp(0.0, 255.0) as u8;
            }
        }
        Rgb { width: wide, height: height * SIDE, bytes }
    }
}

/// Returns the mean colours of a packed latent's pixels, from 0 to 1: 2 x 2 parts of three colours.
fn pixels(image: &Rgb, place: usize, patch: usize) -> [f64; VALUES] {
    let (columns, side) = (image.width / patch, patch / SIDE);
    let (top, left) = (place / columns * patch, place % columns * patch);
    std::array::from_fn(|value| {
        let (part, colour) = (value / 3, value % 3);
        let (top, left) = (top + part / SIDE * side, left + part % SIDE * side);
        let rows = (top..top + side).map(|y| 3 * (y * image.width + left));
        let sum = rows.flat_map(|start| image.bytes[start..start + 3 * side].iter().skip(colour).step_by(3));
        sum.map(|byte| f64::from(*byte)).sum::<f64>() / (side * side) as f64 / 255.0
    })
}

/// Solves `normal * solution = right` by Cholesky decomposition of the symmetric [size, size]; right is [size,
/// VALUES]. `None` if there is no solution.
fn solved(mut normal: Vec<f64>, mut right: Vec<f64>, size: usize) -> Option<Vec<f64>> {
    for i in 0..size {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| normal[i * size + k] * normal[j * size + k]).sum();
            let left = normal[i * size + j] - sum;
            normal[i * size + j] = if i > j {
                left / normal[j * size + j]
            } else if left > 0.0 {
                left.sqrt()
            } else {
                return None;
            };
        }
    }
    for value in 0..VALUES {
        for i in 0..size {
            let sum: f64 = (0..i).map(|k| normal[i * size + k] * right[k * VALUES + value]).sum();
            right[i * VALUES + value] = (right[i * VALUES + value] - sum) / normal[i * size + i];
        }
        for i in (0..size).rev() {
            let sum: f64 = (i + 1..size).map(|k| normal[k * size + i] * right[k * VALUES + value]).sum();
            right[i * VALUES + value] = (right[i * VALUES + value] - sum) / normal[i * size + i];
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latents from which a map can reproduce the image: the means of its parts, mixed, and some channels of noise.
    fn latents(image: &Rgb, channels: usize) -> Vec<f32> {
        let places = image.height / 16 * (image.width / 16);
        let of = |place: usize| {
            let parts = pixels(image, place, 16);
            (0..channels).map(move |channel| {
                let noise = ((place * 31 + channel * 17) % 101) as f64 / 50.0 - 1.0;
                let mixed = parts[channel % VALUES] * 3.0 - parts[(channel + 5) % VALUES] - 1.0;
                (if channel < 20 { mixed } else { noise }) as f32
            })
        };
        (0..places).flat_map(of).collect()
    }

    #[test]
    fn an_image_whose_latents_are_linear_in_it_is_found_again() {
        let chart = chart();
        let map = PreviewMap::fit(&latents(&chart, 40), 40, &chart, 16).unwrap();
        let small = map.apply(&latents(&chart, 40), [20, 20]);
        assert_eq!((small.width, small.height), (40, 40));
        let wanted: Vec<f64> = (0..400).flat_map(|place| pixels(&chart, place, 16)).collect();
        let got = |place: usize, value: usize| {
            let (part, colour) = (value / 3, value % 3);
            let at = (place / 20 * 2 + part / 2) * 40 + place % 20 * 2 + part % 2;
            f64::from(small.bytes[3 * at + colour]) / 255.0
        };
        let apart = (0..400).flat_map(|place| (0..VALUES).map(move |value| (place, value)));
        let mean = apart.map(|(place, value)| (got(place, value) - wanted[place * VALUES + value]).abs()).sum::<f64>()
            / (400 * VALUES) as f64;
        assert!(mean < 0.05, "{mean}");
    }

    #[test]
    fn latents_that_do_not_fit_or_are_no_numbers_have_no_map() {
        let chart = chart();
        assert!(PreviewMap::fit(&[0.0; 40], 40, &chart, 16).is_none());
        let mut bad = latents(&chart, 40);
        bad[7] = f32::NAN;
        assert!(PreviewMap::fit(&bad, 40, &chart, 16).is_none());
        let map = PreviewMap::fit(&latents(&chart, 40), 40, &chart, 16).unwrap();
        assert_eq!(map.apply(&[f32::NAN; 40], [1, 1]).bytes.len(), 12);
    }
}
