//! Decoding and encoding of each format's bytes: one file for each family of formats.
//!
//! Decoders convert whole rows. They compute values in float32, in the order of the formulas, without any further
//! rounding. All are inlined, so that they become vector code for the processor that their caller is compiled for.
//! `to_x` is the encoder for the decoder `x`. Nothing here knows files or tensors; `Format` in `format.rs` lists all
//! formats and is the place to start reading.

pub mod codebook;
pub mod floats;
pub mod int8;
pub mod iq4;
pub mod k_quants;
pub mod micro;
mod search;
pub mod small;

use half::f16;

/// Decodes blocks of `B` bytes to `N` values each.
#[inline(always)]
fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn(&[u8; B], &mut [f32; N])) {
    let (blocks, values) = (bytes.as_chunks::<B>().0, out.as_chunks_mut::<N>().0);
    values.iter_mut().zip(blocks).for_each(|(values, block)| convert(block, values));
}

/// Returns the float16 at `place` of a block.
#[inline(always)]
fn half_at(block: &[u8], place: usize) -> f32 {
    f16::from_le_bytes([block[place], block[place + 1]]).to_f32_const()
}

/// The largest magnitude of a scale.
pub const MAX: f32 = 65504.0;

/// Encodes blocks of `N` values to `B` bytes each.
fn encode_each<const B: usize, const N: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; N], &mut [u8; B]),
) {
    let blocks = out.as_chunks_mut::<B>().0.iter_mut();
    values.as_chunks::<N>().0.iter().zip(blocks).for_each(|(values, out)| encode(values, out));
}

/// Writes a float16 to `place` of a block, and returns its value.
fn put_half(out: &mut [u8], place: usize, value: f32) -> f32 {
    let half = f16::from_f32(value.clamp(-MAX, MAX));
    out[place..place + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Returns the factor that turns values into integers: 1 / `scale`, or 0 for 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Returns the scale that maps the largest magnitude `amax` to `most`: 1 for zeros, and never so small that it loses
/// bits.
fn scale_of(amax: f32, most: f32) -> f32 {
    if amax == 0.0 { 1.0 } else { (amax / most).max(f32::MIN_POSITIVE) }
}

/// Returns the largest magnitude.
pub fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |amax, value| amax.max(value.abs()))
}
