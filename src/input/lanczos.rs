//! Resizes 8-bit images with a Lanczos filter of three lobes, equal to Pillow 13.0 in every bit.
//!
//! Each direction is a pass over whole numbers, with a rounding to 8 bits after each. Where the filter shrinks, it is
//! widened by the scale, so every input pixel counts. Source: Pillow's `Resample.c`.

use std::f64::consts::PI;

use rayon::prelude::*;

/// Bits behind the point of a weight.
const PRECISION: u32 = 22;
const HALF: i32 = 1 << (PRECISION - 1);

/// The input pixels that make an output pixel, and their weights.
struct Taps {
    start: usize,
    weights: Vec<i32>,
}

/// pixels [height, width, CHANNELS] of `from = [width, height]` -> the same of the size `to`. No size may be 0.
pub fn resize<const CHANNELS: usize>(pixels: &[u8], from: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    let ([width, height], [out_width, out_height]) = (from, to);
    assert!(width > 0 && height > 0 && out_width > 0 && out_height > 0, "an image has pixels");
    assert_eq!(pixels.len(), width * height * CHANNELS);
    // The order is Pillow's: it shows in the rounding.
    let signed = |size: usize| size as i64;
    let vertical_first =
        out_height < height && signed(height) - signed(out_height) > 2 * (signed(width) - signed(out_width));
    if vertical_first {
        let rows = vertical(pixels, width * CHANNELS, height, out_height);
        horizontal::<CHANNELS>(rows.as_deref().unwrap_or(pixels), width, out_width)
            .unwrap_or_else(|| or_copy(rows, pixels))
    } else {
        let columns = horizontal::<CHANNELS>(pixels, width, out_width);
        vertical(columns.as_deref().unwrap_or(pixels), out_width * CHANNELS, height, out_height)
            .unwrap_or_else(|| or_copy(columns, pixels))
    }
}

fn or_copy(made: Option<Vec<u8>>, pixels: &[u8]) -> Vec<u8> {
    made.unwrap_or_else(|| pixels.to_vec())
}

/// Rows of `width` pixels -> rows of `out_width`; `None` where nothing is to be done.
fn horizontal<const CHANNELS: usize>(pixels: &[u8], width: usize, out_width: usize) -> Option<Vec<u8>> {
    if width == out_width {
        return None;
    }
    let taps = taps(width, out_width);
    let mut out = vec![0; pixels.len() / width * out_width];
    out.par_chunks_exact_mut(out_width * CHANNELS).zip(pixels.par_chunks_exact(width * CHANNELS)).for_each(
        |(out, row)| {
            for (pixel, Taps { start, weights }) in out.chunks_exact_mut(CHANNELS).zip(&taps) {
                let mut sums = [HALF; CHANNELS];
                for (input, weight) in row[start * CHANNELS..].chunks_exact(CHANNELS).zip(weights) {
                    for (sum, value) in sums.iter_mut().zip(input) {
                        *sum += i32::from(*value) * weight;
                    }
                }
                for (value, sum) in pixel.iter_mut().zip(sums) {
                    *value = rounded(sum);
                }
            }
        },
    );
    Some(out)
}

/// `height` rows of `row` bytes -> `out_height` of them; `None` where nothing is to be done.
fn vertical(pixels: &[u8], row: usize, height: usize, out_height: usize) -> Option<Vec<u8>> {
    if height == out_height {
        return None;
    }
    let taps = taps(height, out_height);
    let mut out = vec![0; out_height * row];
    out.par_chunks_exact_mut(row).zip(&taps).for_each_init(
        || vec![0; row],
        |sums, (out, Taps { start, weights })| {
            sums.fill(HALF);
            for (input, weight) in pixels[start * row..].chunks_exact(row).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(input) {
                    *sum += i32::from(*value) * weight;
                }
            }
            for (value, sum) in out.iter_mut().zip(sums) {
                *value = rounded(*sum);
            }
        },
    );
    Some(out)
}

fn rounded(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// For each of `outputs` pixels, which of `inputs` pixels make it.
fn taps(inputs: usize, outputs: usize) -> Vec<Taps> {
    let scale = inputs as f64 / outputs as f64;
    let filter_scale = scale.max(1.0);
    let support = 3.0 * filter_scale;
    let of = |output: usize| {
        let center = (output as f64 + 0.5) * scale;
        // Casts cut off towards zero, as in C; a negative number becomes 0.
        let start = (center - support + 0.5) as usize;
        let end = ((center + support + 0.5) as usize).min(inputs);
        let weights: Vec<f64> =
            (start..end).map(|input| lanczos((input as f64 - center + 0.5) * (1.0 / filter_scale))).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: f64| {
            let scaled = weight / sum * f64::from(1 << PRECISION);
            (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
        };
        Taps { start, weights: weights.into_iter().map(fixed).collect() }
    };
    (0..outputs).map(of).collect()
}

fn lanczos(x: f64) -> f64 {
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}
