//! What the bytes of each format stand for: one file a family.
//!
//! Each function converts whole rows. Values are computed in float32, in the order in which the formulas are written,
//! and nothing is rounded to fewer bits. All are inlined, so that they become vector code of the processor that their
//! caller is compiled for.

pub mod codebook;
pub mod floats;
pub mod int8;
pub mod iq4;
pub mod k_quants;
pub mod micro;
pub mod small;

use half::f16;

/// Converts blocks of `B` bytes to `N` values each, one by one.
#[inline(always)]
fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn(&[u8; B], &mut [f32; N])) {
    let (blocks, values) = (bytes.as_chunks::<B>().0, out.as_chunks_mut::<N>().0);
    values.iter_mut().zip(blocks).for_each(|(values, block)| convert(block, values));
}

/// The float16 at `place` of a block.
#[inline(always)]
fn half_at(block: &[u8], place: usize) -> f32 {
    f16::from_le_bytes([block[place], block[place + 1]]).to_f32_const()
}
