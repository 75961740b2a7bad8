//! Floats of 8 and 4 bits whose blocks of columns share a scale of 8 bits: mxfp8 and nvfp4.

use super::super::e4m3;
use super::super::scales::BlockScales;

/// The values of e2m1, by their bits.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Which half of a byte holds the first of its two values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FirstNibble {
    /// The upper one.
    High,
    /// The lower one.
    Low,
}

/// e4m3 times a power of two for each 32 values.
#[inline(always)]
pub fn mxfp8(bytes: &[u8], scales: &BlockScales, out: &mut [f32]) {
    let blocks = out.as_chunks_mut::<32>().0.iter_mut().zip(bytes.as_chunks::<32>().0);
    for (index, (out, block)) in blocks.enumerate() {
        let scale = power_of_two(scales.get(index / scales.blocks(), index % scales.blocks()));
        out.iter_mut().zip(block).for_each(|(out, bits)| *out = e4m3::to_f32(*bits) * scale);
    }
}

/// e2m1 times `e4m3 scale * scale of the tensor` for each 16 values.
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

/// 2^(bits - 127), and 0 for 0.
#[inline(always)]
fn power_of_two(bits: u8) -> f32 {
    f32::from_bits(u32::from(bits) << 23)
}
