//! GGUF's blocks of 32 values with one scale d, or a scale and a least value m: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

use super::{each, half_at};

/// d, i8 q\[32\]: `d q`.
#[inline(always)]
pub fn q8_0(bytes: &[u8], out: &mut [f32]) {
    each::<34, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        out.iter_mut().zip(&block[2..]).for_each(|(out, q)| *out = d * f32::from(*q as i8));
    });
}

/// d, nibbles: `d (n - 8)`.
#[inline(always)]
pub fn q4_0(bytes: &[u8], out: &mut [f32]) {
    each::<18, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        nibbles(&block[2..], out, |n| d * (f32::from(n) - 8.0));
    });
}

/// d, m, nibbles: `d n + m`.
#[inline(always)]
pub fn q4_1(bytes: &[u8], out: &mut [f32]) {
    each::<20, 32>(bytes, out, |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        nibbles(&block[4..], out, |n| d * f32::from(n) + m);
    });
}

/// d, fifth bits, nibbles: `d (n + 16 h - 16)`.
#[inline(always)]
pub fn q5_0(bytes: &[u8], out: &mut [f32]) {
    each::<22, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        five_bits(&block[2..], out, |n| d * (f32::from(n) - 16.0));
    });
}

/// d, m, fifth bits, nibbles: `d (n + 16 h) + m`.
#[inline(always)]
pub fn q5_1(bytes: &[u8], out: &mut [f32]) {
    each::<24, 32>(bytes, out, |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        five_bits(&block[4..], out, |n| d * f32::from(n) + m);
    });
}

/// Sixteen bytes: the low halves are values 0 to 15, the high halves 16 to 31.
#[inline(always)]
pub fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (value(byte & 15), value(byte >> 4));
    }
}

/// Four bytes of which bit e is the fifth bit of value e, then sixteen bytes as [`nibbles`].
#[inline(always)]
fn five_bits(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (high_bits, nibbles) = bytes.split_at(4);
    let high_bits = u32::from_le_bytes([high_bits[0], high_bits[1], high_bits[2], high_bits[3]]);
    let fifth = |e: usize| ((high_bits >> e & 1) << 4) as u8;
    for (e, byte) in nibbles.iter().enumerate() {
        out[e] = value(byte & 15 | fifth(e));
        out[e + 16] = value(byte >> 4 | fifth(e + 16));
    }
}
