//! GGUF's blocks of 32 values with one scale d, or a scale d and a minimum m: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

use super::search::{code, scale, scale_and_least};
use super::{each, encode_each, half_at, inverse, largest, put_half};

/// Decodes `d q` from d and i8 q\[32\].
#[inline(always)]
pub fn q8_0(bytes: &[u8], out: &mut [f32]) {
    each::<34, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        out.iter_mut().zip(&block[2..]).for_each(|(out, q)| *out = d * f32::from(*q as i8));
    });
}

/// Decodes `d (n - 8)` from d and nibbles.
#[inline(always)]
pub fn q4_0(bytes: &[u8], out: &mut [f32]) {
    each::<18, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        nibbles(&block[2..], out, |n| d * (f32::from(n) - 8.0));
    });
}

/// Decodes `d n + m` from d, m and nibbles.
#[inline(always)]
pub fn q4_1(bytes: &[u8], out: &mut [f32]) {
    each::<20, 32>(bytes, out, |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        nibbles(&block[4..], out, |n| d * f32::from(n) + m);
    });
}

/// Decodes `d (n + 16 h - 16)` from d, fifth bits h and nibbles.
#[inline(always)]
pub fn q5_0(bytes: &[u8], out: &mut [f32]) {
    each::<22, 32>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        five_bits(&block[2..], out, |n| d * (f32::from(n) - 16.0));
    });
}

/// Decodes `d (n + 16 h) + m` from d, m, fifth bits h and nibbles.
#[inline(always)]
pub fn q5_1(bytes: &[u8], out: &mut [f32]) {
    each::<24, 32>(bytes, out, |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        five_bits(&block[4..], out, |n| d * f32::from(n) + m);
    });
}

/// Decodes sixteen bytes: the low halves are values 0 to 15, the high halves values 16 to 31.
#[inline(always)]
pub fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (value(byte & 15), value(byte >> 4));
    }
}

/// Decodes four bytes, with the fifth bit of value e in bit e, then sixteen bytes as [`nibbles`].
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

/// Encodes `d q` as d and i8 q\[32\].
pub fn to_q8_0(values: &[f32], out: &mut [u8]) {
    encode_each::<34, 32>(values, out, |values, out| {
        let inverse = inverse(put_half(out, 0, largest(values) / 127.0));
        for (out, value) in out[2..].iter_mut().zip(values) {
            *out = code(value * inverse, [-127.0, 127.0]) as i8 as u8;
        }
    });
}

/// Encodes `d (n - 8)` as d and nibbles.
pub fn to_q4_0(values: &[f32], out: &mut [u8]) {
    encode_each::<18, 32>(values, out, |values, out| {
        let inverse = inverse(put_half(out, 0, scale(values, 8.0)));
        let codes = values.map(|value| (code(value * inverse, [-8.0, 7.0]) + 8.0) as u8);
        put_nibbles(&codes, &mut out[2..]);
    });
}

/// Encodes `d n + m` as d, m and nibbles.
pub fn to_q4_1(values: &[f32], out: &mut [u8]) {
    encode_each::<20, 32>(values, out, |values, out| {
        let codes = put_least(values, 15.0, out);
        put_nibbles(&codes, &mut out[4..]);
    });
}

/// Encodes `d (n - 16)` as d, fifth bits and nibbles.
pub fn to_q5_0(values: &[f32], out: &mut [u8]) {
    encode_each::<22, 32>(values, out, |values, out| {
        let inverse = inverse(put_half(out, 0, scale(values, 16.0)));
        let codes = values.map(|value| (code(value * inverse, [-16.0, 15.0]) + 16.0) as u8);
        put_fifth_bits(&codes, &mut out[2..]);
    });
}

/// Encodes `d n + m` as d, m, fifth bits and nibbles.
pub fn to_q5_1(values: &[f32], out: &mut [u8]) {
    encode_each::<24, 32>(values, out, |values, out| {
        let codes = put_least(values, 31.0, out);
        put_fifth_bits(&codes, &mut out[4..]);
    });
}

/// Writes d and m, and returns the codes of `d n + m`.
fn put_least(values: &[f32; 32], levels: f32, out: &mut [u8]) -> [u8; 32] {
    let [scale, least] = scale_and_least(values, levels, false);
    let (scale, least) = (put_half(out, 0, scale), put_half(out, 2, least));
    let inverse = inverse(scale);
    values.map(|value| code((value - least) * inverse, [0.0, levels]) as u8)
}

/// Writes the first half of the codes to low nibbles, the second half to high nibbles.
pub fn put_nibbles(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(codes.len() / 2);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}

/// Writes the fifth bit of each code, then the nibbles as [`put_nibbles`].
fn put_fifth_bits(codes: &[u8; 32], out: &mut [u8]) {
    let bits = codes.iter().zip(0..).fold(0u32, |bits, (code, place)| bits | u32::from(code >> 4) << place);
    out[..4].copy_from_slice(&bits.to_le_bytes());
    put_nibbles(codes, &mut out[4..]);
}
