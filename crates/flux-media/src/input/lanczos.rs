//! Resizes 8-bit images with a Lanczos filter of three lobes, equal to Pillow 13.0 in every bit.
//!
//! Each direction is a pass over integers, rounded to 8 bits. When shrinking, the filter is widened by the scale, so
//! every input pixel counts. Source: Pillow's `Resample.c`.

use std::f64::consts::PI;

use rayon::prelude::*;

use flux_base::stage::CancelFlag;

/// Fractional bits of a weight.
const PRECISION: u32 = 22;
const HALF: i32 = 1 << (PRECISION - 1);

/// The input pixels of an output pixel, and their weights.
struct Taps {
    start: usize,
    weights: Vec<i32>,
}

/// Resizes pixels [height, width, CHANNELS] of size `from = [width, height]` to the size `to`. No size may be 0.
pub fn resize<const CHANNELS: usize>(pixels: &[u8], from: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    resize_unless::<CHANNELS>(pixels, from, to, &CancelFlag::default())
}

/// [`resize`] that can be cancelled: rows that remain when `cancel` is set stay black.
pub fn resize_unless<const CHANNELS: usize>(
    pixels: &[u8],
    from: [usize; 2],
    to: [usize; 2],
    cancel: &CancelFlag,
) -> Vec<u8> {
    let ([width, height], [out_width, out_height]) = (from, to);
    assert!(width > 0 && height > 0 && out_width > 0 && out_height > 0, "an image has pixels");
    assert_eq!(pixels.len(), width * height * CHANNELS);
    // The order is Pillow's, because it affects the rounding.
    let signed = |size: usize| size as i64;
    let vertical_first =
        out_height < height && signed(height) - signed(out_height) > 2 * (signed(width) - signed(out_width));
    if vertical_first {
        let rows = vertical(pixels, width * CHANNELS, [height, out_height], cancel);
        horizontal::<CHANNELS>(rows.as_deref().unwrap_or(pixels), [width, out_width], cancel)
            .unwrap_or_else(|| or_copy(rows, pixels))
    } else {
        let columns = horizontal::<CHANNELS>(pixels, [width, out_width], cancel);
        vertical(columns.as_deref().unwrap_or(pixels), out_width * CHANNELS, [height, out_height], cancel)
            .unwrap_or_else(|| or_copy(columns, pixels))
    }
}

fn or_copy(made: Option<Vec<u8>>, pixels: &[u8]) -> Vec<u8> {
    made.unwrap_or_else(|| pixels.to_vec())
}

/// Resizes rows of `width` pixels to rows of `out_width`; `None` if both are equal.
fn horizontal<const CHANNELS: usize>(
    pixels: &[u8],
    [width, out_width]: [usize; 2],
    cancel: &CancelFlag,
) -> Option<Vec<u8>> {
    if width == out_width {
        return None;
    }
    let taps = taps(width, out_width);
    let mut out = vec![0; pixels.len() / width * out_width];
    out.par_chunks_exact_mut(out_width * CHANNELS).zip(pixels.par_chunks_exact(width * CHANNELS)).for_each(
        |(out, row)| {
            if cancel.is_set() {
                return;
            }
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

/// Resizes `height` rows of `row` bytes to `out_height` rows; `None` if both are equal.
fn vertical(pixels: &[u8], row: usize, [height, out_height]: [usize; 2], cancel: &CancelFlag) -> Option<Vec<u8>> {
    if height == out_height {
        return None;
    }
    let taps = taps(height, out_height);
    let mut out = vec![0; out_height * row];
    out.par_chunks_exact_mut(row).zip(&taps).for_each_init(
        || vec![0; row],
        |sums, (out, Taps { start, weights })| {
            if cancel.is_set() {
                return;
            }
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

/// Returns the input pixels of each of `outputs` pixels.
fn taps(inputs: usize, outputs: usize) -> Vec<Taps> {
    let scale = inputs as f64 / outputs as f64;
    let filter_scale = scale.max(1.0);
    let support = 3.0 * filter_scale;
    let of = |output: usize| {
        let center = (output as f64 + 0.5) * scale;
        // Casts truncate towards zero, as in C; a negative number becomes 0.
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
