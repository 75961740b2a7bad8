//! GGUF's IQ4_NL and IQ4_XS: 4-bit codes that index a table of uneven steps.

use super::small::nibbles;
use super::{each, half_at};

const TABLE: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// Decodes `d C[n]` from d and nibbles of 32 values.
#[inline(always)]
pub fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    each::<18, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        nibbles(&block[2..], out, |n| d * TABLE[usize::from(n)]);
    });
}

/// Decodes `(d s) C[n]` from d, a u16 with the high bits of eight scales, nibbles with their low bits, and the codes.
/// Each scale has 32 values.
#[inline(always)]
pub fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    each::<136, 256>(bytes, out, |block, out| {
        let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
        let parts = out.as_chunks_mut::<32>().0.iter_mut().zip(block[8..].as_chunks::<16>().0);
        for (j, (out, codes)) in parts.enumerate() {
            let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
            let scale = i16::from(low | ((high >> (2 * j) & 3) << 4) as u8) - 32;
            let scale = d * f32::from(scale);
            nibbles(codes, out, |n| scale * TABLE[usize::from(n)]);
        }
    });
}
