//! Floats of 32, 16 and 8 bits, with a scale for each row or tile, or without.

use half::{bf16, f16};

use super::scale_of;
use crate::formats::e4m3;
use crate::formats::scales::{Scales, TileScales};

/// Decodes bfloat16.
#[inline(always)]
pub fn bf16(bytes: &[u8], out: &mut [f32]) {
    values(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32());
}

/// Decodes IEEE half precision.
#[inline(always)]
pub fn f16(bytes: &[u8], out: &mut [f32]) {
    values(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32());
}

/// Decodes IEEE single precision.
#[inline(always)]
pub fn f32(bytes: &[u8], out: &mut [f32]) {
    values(bytes, out, f32::from_le_bytes);
}

/// Decodes e4m3 times the scale of the row. Rows are `row_bytes` apart.
#[inline(always)]
pub fn e4m3(bytes: &[u8], row_bytes: usize, scales: &Scales, cols: usize, out: &mut [f32]) {
    scaled(bytes, row_bytes, scales, cols, out, e4m3::to_f32);
}

/// Decodes e4m3 times the scale of the tile.
#[inline(always)]
pub fn e4m3_tiles(bytes: &[u8], scales: &TileScales, cols: usize, out: &mut [f32]) {
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(cols)).enumerate() {
        let tiles = out.chunks_mut(scales.columns()).zip(bytes.chunks(scales.columns()));
        for ((out, bytes), scale) in tiles.zip(scales.row(row)) {
            out.iter_mut().zip(bytes).for_each(|(out, bits)| *out = e4m3::to_f32(*bits) * scale);
        }
    }
}

/// Decodes e5m2 times the scale of the row.
#[inline(always)]
pub fn e5m2(bytes: &[u8], scales: &Scales, cols: usize, out: &mut [f32]) {
    scaled(bytes, cols, scales, cols, out, e5m2_value);
}

/// Returns the value of e5m2 bits, which are the upper half of a float16.
#[inline(always)]
fn e5m2_value(bits: u8) -> f32 {
    // As float32 bits, the exponent is too small by the difference of the biases, 127 - 15. Multiplying by a power of
    // two is exact. The largest exponent stands for infinity and NaN.
    const BIAS: f32 = f32::from_bits((127 + 112) << 23);
    let (sign, magnitude) = (u32::from(bits & 0x80) << 24, u32::from(bits & 0x7f) << 21);
    let finite = (f32::from_bits(magnitude) * BIAS).to_bits();
    f32::from_bits(sign | if bits & 0x7c == 0x7c { magnitude | 0x7f80_0000 } else { finite })
}

#[inline(always)]
fn scaled(bytes: &[u8], row_bytes: usize, scales: &Scales, cols: usize, out: &mut [f32], value: impl Fn(u8) -> f32) {
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(row_bytes)).enumerate() {
        let scale = scales.row_scale(row);
        out.iter_mut().zip(bytes).for_each(|(out, bits)| *out = value(*bits) * scale);
    }
}

/// Decodes values of `N` bytes each.
#[inline(always)]
fn values<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (values, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(values).for_each(|(out, bytes)| *out = value(*bytes));
}

/// Encodes bfloat16, rounded to nearest.
pub fn to_bf16(values: &[f32], out: &mut [u8]) {
    each_to(values, out, |value| bf16::from_f32(value).to_le_bytes());
}

/// Encodes IEEE single precision.
pub fn to_f32(values: &[f32], out: &mut [u8]) {
    each_to(values, out, f32::to_le_bytes);
}

/// Returns the scale of a whole tensor in e4m3.
pub fn e4m3_scale(amax: f32) -> f32 {
    scale_of(amax, e4m3::MAX)
}

/// Encodes e4m3, with the values divided by the scale.
pub fn to_e4m3(values: &[f32], scale: f32, out: &mut [u8]) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out = e4m3::from_f32(value / scale));
}

/// Encodes values as `N` bytes each.
fn each_to<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    out.as_chunks_mut::<N>().0.iter_mut().zip(values).for_each(|(out, value)| *out = bytes(*value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e5m2_is_the_upper_half_of_a_float16() {
        for bits in 0..=u8::MAX {
            let expected = f16::from_bits(u16::from(bits) << 8).to_f32();
            let value = e5m2_value(bits);
            assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(), "{bits:#x}: {value}");
        }
    }
}
