//! Floats of 32, 16 and 8 bits, one by one.

use half::{bf16, f16};

use super::super::e4m3;
use super::super::scales::Scales;

/// bfloat16
pub fn bf16(bytes: &[u8], out: &mut [f32]) {
    values(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32());
}

/// IEEE half precision
pub fn f16(bytes: &[u8], out: &mut [f32]) {
    values(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32());
}

/// IEEE single precision
pub fn f32(bytes: &[u8], out: &mut [f32]) {
    values(bytes, out, f32::from_le_bytes);
}

/// e4m3 times the scale of the row; rows are `row_bytes` apart.
pub fn e4m3(bytes: &[u8], row_bytes: usize, scales: &Scales, cols: usize, out: &mut [f32]) {
    scaled(bytes, row_bytes, scales, cols, out, e4m3::to_f32);
}

/// e5m2 times the scale of the row.
pub fn e5m2(bytes: &[u8], scales: &Scales, cols: usize, out: &mut [f32]) {
    // It is the upper half of a float16.
    scaled(bytes, cols, scales, cols, out, |bits| f16::from_bits(u16::from(bits) << 8).to_f32());
}

fn scaled(bytes: &[u8], row_bytes: usize, scales: &Scales, cols: usize, out: &mut [f32], value: impl Fn(u8) -> f32) {
    let table: [f32; 256] = std::array::from_fn(|bits| value(bits as u8));
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(row_bytes)).enumerate() {
        let scale = scales.of_row(row);
        out.iter_mut().zip(bytes).for_each(|(out, bits)| *out = table[usize::from(*bits)] * scale);
    }
}

/// Converts values of `N` bytes each, one by one.
fn values<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (values, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(values).for_each(|(out, bytes)| *out = value(*bytes));
}
