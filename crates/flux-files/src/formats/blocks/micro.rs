//! Floats of 8 and 4 bits with an 8-bit scale for each block of columns: mxfp8 and nvfp4.

use super::{largest, scale_of};
use crate::formats::e4m3;
use crate::formats::scales::BlockScales;

/// The values of e2m1 by their bits.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The largest and the second largest value of e2m1.
const E2M1_MAX: f32 = 6.0;
const E2M1_NEXT: f32 = 4.0;

/// The half of a byte that holds the first of its two values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FirstNibble {
    /// The lower half.
    Low,
    /// The upper half.
    High,
}

/// Decodes e4m3 times a power of two for each 32 values.
#[inline(always)]
pub fn mxfp8(bytes: &[u8], scales: &BlockScales, out: &mut [f32]) {
    let blocks = out.as_chunks_mut::<32>().0.iter_mut().zip(bytes.as_chunks::<32>().0);
    for (index, (out, block)) in blocks.enumerate() {
        let scale = power_of_two(scales.get(index / scales.blocks(), index % scales.blocks()));
        out.iter_mut().zip(block).for_each(|(out, bits)| *out = e4m3::to_f32(*bits) * scale);
    }
}

/// Decodes e2m1 times `e4m3 scale * scale of the tensor` for each 16 values.
#[inline(always)]
pub fn nvfp4(bytes: &[u8], scales: &BlockScales, first: FirstNibble, out: &mut [f32]) {
    let blocks = out.as_chunks_mut::<16>().0.iter_mut().zip(bytes.as_chunks::<8>().0);
    for (index, (out, block)) in blocks.enumerate() {
        let scale = e4m3::to_f32(scales.get(index / scales.blocks(), index % scales.blocks())) * scales.tensor();
        for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(block) {
            let [low, high] = [byte & 15, byte >> 4].map(|code| E2M1[usize::from(code)] * scale);
            *pair = if first == FirstNibble::High { [high, low] } else { [low, high] };
        }
    }
}

/// Returns 2^(bits - 127), or 0 for 0.
#[inline(always)]
fn power_of_two(bits: u8) -> f32 {
    f32::from_bits(u32::from(bits) << 23)
}

/// Encodes e4m3 with a power of two for each 32 values, whose exponent goes to `scales`.
pub fn to_mxfp8(values: &[f32], _: f32, out: &mut [u8], scales: &mut [u8]) {
    let blocks = values.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0);
    for ((values, out), scale) in blocks.zip(scales) {
        let exponent = exponent_of(largest(values));
        *scale = exponent;
        // The inverse of a power of two is exact.
        let inverse = f32::from_bits((254 - u32::from(exponent)) << 23);
        out.iter_mut().zip(values).for_each(|(out, value)| *out = e4m3::from_f32(value * inverse));
    }
}

/// Returns the smallest exponent whose power of two scales `amax` to [`e4m3::MAX`] or below, with a bias of 127; 0 for
/// zeros.
fn exponent_of(amax: f32) -> u8 {
    if amax == 0.0 {
        return 0;
    }
    let (exponent, mantissa) = (amax.to_bits() >> 23, amax.to_bits() & 0x7f_ffff);
    // 448 is 1.75 times 2^8.
    let above = u32::from(mantissa > 0x60_0000);
    (exponent + above).saturating_sub(8).max(1) as u8
}

/// Returns the factor of all block scales of a tensor.
pub fn nvfp4_scale(amax: f32) -> f32 {
    scale_of(amax, e4m3::MAX * E2M1_MAX)
}

/// Encodes e2m1 with an e4m3 scale for each 16 values, times the factor `all`. The e4m3 scales go to `scales`.
///
/// Candidates are the scales that bring the largest magnitude of a block to one of the two largest values of e2m1, or
/// in between. The one with the least squared error is taken.
pub fn to_nvfp4(values: &[f32], all: f32, out: &mut [u8], scales: &mut [u8]) {
    let blocks = values.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<8>().0);
    for ((values, out), scale) in blocks.zip(scales) {
        let amax = largest(values);
        let bits = |most: f32| e4m3::from_f32(amax / most / all);
        let candidates = bits(E2M1_MAX).saturating_sub(1).max(1)..=bits(E2M1_NEXT).max(1);
        // In units of `all`, so that the squares of large values are finite.
        let error = |bits: &u8| {
            let scale = e4m3::to_f32(*bits);
            let inverse = 1.0 / (scale * all).max(f32::MIN_POSITIVE);
            let mut squares = [0.0; 8];
            for values in values.as_chunks::<8>().0 {
                for (square, value) in squares.iter_mut().zip(values) {
                    let value = (value * inverse).abs();
                    let off = (value - nearest_e2m1(value)) * scale;
                    *square += off * off;
                }
            }
            squares.iter().sum::<f32>()
        };
        let best = candidates.map(|bits| (error(&bits), bits)).min_by(|a, b| a.0.total_cmp(&b.0));
        *scale = if amax == 0.0 { 0 } else { best.map_or(0, |best| best.1) };
        let unit = scale_of(e4m3::to_f32(*scale) * all, 1.0);
        for (out, pair) in out.iter_mut().zip(values.as_chunks::<2>().0) {
            let [first, second] = pair.map(|value| e2m1(value / unit));
            *out = first << 4 | second;
        }
    }
}

/// Returns the bits of the nearest value of e2m1. Ties go to the value whose last bit is 0.
fn e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let passed = [
        magnitude > 0.25,
        magnitude >= 0.75,
        magnitude > 1.25,
        magnitude >= 1.75,
        magnitude > 2.5,
        magnitude >= 3.5,
        magnitude > 5.0,
    ];
    let code = passed.iter().map(|passed| u8::from(*passed)).sum::<u8>();
    code | u8::from(value.is_sign_negative()) << 3
}

/// Returns the value of e2m1 that is nearest to a magnitude.
#[inline(always)]
fn nearest_e2m1(magnitude: f32) -> f32 {
    // Sums with these constants have no bits below 1/2, 1 and 2, the steps of e2m1.
    const MAGIC: f32 = (3 << 22) as f32;
    let magic = if magnitude < 4.0 { MAGIC } else { 2.0 * MAGIC };
    let magic = if magnitude < 2.0 { 0.5 * MAGIC } else { magic };
    let rounded = (magnitude + magic) - magic;
    if rounded < E2M1_MAX { rounded } else { E2M1_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2m1_is_the_nearest_value_with_ties_to_even() {
        for bits in 0..7u8 {
            let [low, high] = [bits, bits + 1].map(|bits| E2M1[usize::from(bits)]);
            let middle = (low + high) / 2.0;
            let even = bits + bits % 2;
            for (value, expected) in [
                (low, bits),
                (middle.next_down(), bits),
                (middle, even),
                (middle.next_up(), bits + 1),
                (high, bits + 1),
            ] {
                assert_eq!((e2m1(value), e2m1(-value)), (expected, expected | 8), "{value}");
            }
        }
        assert_eq!(e2m1(1e30), 7);
        for value in (0..7000).map(|i| i as f32 / 1000.0).chain([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 1e9]) {
            assert_eq!(nearest_e2m1(value), E2M1[usize::from(e2m1(value))], "{value}");
        }
    }

    #[test]
    fn powers_of_two_hold_the_largest_magnitude_and_no_less() {
        for amax in [1e-3f32, 0.02, 1.0, 448.0, 448.1, 1e30, f32::MAX] {
            let power = f32::from_bits(u32::from(exponent_of(amax)) << 23);
            assert!(amax <= 448.0 * power && amax > 224.0 * power, "{amax}: {power}");
        }
        assert_eq!((exponent_of(0.0), exponent_of(1e-44), exponent_of(f32::MIN_POSITIVE)), (0, 1, 1));
    }
}
