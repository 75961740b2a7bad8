//! GGUF's blocks: what [`blocks`](super::super::blocks) reads, from the values.

use half::f16;

use super::search::{code, scale, scale_and_least};

/// The largest magnitude of a scale.
pub const MOST: f32 = 65504.0;

/// Encodes blocks of `N` values to `B` bytes each, one by one.
fn each<const B: usize, const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(&[f32; N], &mut [u8; B])) {
    let blocks = out.as_chunks_mut::<B>().0.iter_mut();
    values.as_chunks::<N>().0.iter().zip(blocks).for_each(|(values, out)| encode(values, out));
}

/// Writes a float16 to `place` of a block, and returns its value.
fn put_half(out: &mut [u8], place: usize, value: f32) -> f32 {
    let half = f16::from_f32(value.clamp(-MOST, MOST));
    out[place..place + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// What values are multiplied by to become integers.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// d, i8 q\[32\]: `d q`.
pub fn q8_0(values: &[f32], out: &mut [u8]) {
    each::<34, 32>(values, out, |values, out| {
        let amax = values.iter().fold(0f32, |amax, value| amax.max(value.abs()));
        let inverse = inverse(put_half(out, 0, amax / 127.0));
        for (out, value) in out[2..].iter_mut().zip(values) {
            *out = code(value * inverse, [-127.0, 127.0]) as i8 as u8;
        }
    });
}

/// d, nibbles: `d (n - 8)`.
pub fn q4_0(values: &[f32], out: &mut [u8]) {
    each::<18, 32>(values, out, |values, out| {
        let inverse = inverse(put_half(out, 0, scale(values, 8.0)));
        let codes = values.map(|value| (code(value * inverse, [-8.0, 7.0]) + 8.0) as u8);
        put_nibbles(&codes, &mut out[2..]);
    });
}

/// d, m, nibbles: `d n + m`.
pub fn q4_1(values: &[f32], out: &mut [u8]) {
    each::<20, 32>(values, out, |values, out| {
        let codes = put_least(values, 15.0, out);
        put_nibbles(&codes, &mut out[4..]);
    });
}

/// d, fifth bits, nibbles: `d (n - 16)`.
pub fn q5_0(values: &[f32], out: &mut [u8]) {
    each::<22, 32>(values, out, |values, out| {
        let inverse = inverse(put_half(out, 0, scale(values, 16.0)));
        let codes = values.map(|value| (code(value * inverse, [-16.0, 15.0]) + 16.0) as u8);
        put_fifth_bits(&codes, &mut out[2..]);
    });
}

/// d, m, fifth bits, nibbles: `d n + m`.
pub fn q5_1(values: &[f32], out: &mut [u8]) {
    each::<24, 32>(values, out, |values, out| {
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

/// The first half of the codes in low nibbles, the second half in high ones.
fn put_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    let (low, high) = codes.split_at(16);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}

/// The fifth bit of each code, then [`put_nibbles`].
fn put_fifth_bits(codes: &[u8; 32], out: &mut [u8]) {
    let bits = codes.iter().zip(0..).fold(0u32, |bits, (code, place)| bits | u32::from(code >> 4) << place);
    out[..4].copy_from_slice(&bits.to_le_bytes());
    put_nibbles(codes, &mut out[4..]);
}

/// d, dmin, s and m of 8 parts in 6 bits, 4 bits a value: `(d s) q - dmin m`.
pub fn q4_k(values: &[f32], out: &mut [u8]) {
    each::<144, 256>(values, out, |values, out| {
        let codes = put_parts(values, 15.0, out);
        put_nibble_pairs(&codes, &mut out[16..]);
    });
}

/// As [`q4_k`], with the fifth bits of the values before the others.
pub fn q5_k(values: &[f32], out: &mut [u8]) {
    each::<176, 256>(values, out, |values, out| {
        let codes = put_parts(values, 31.0, out);
        let high_bits = &mut out[16..48];
        high_bits.fill(0);
        for (part, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            high_bits.iter_mut().zip(codes).for_each(|(bits, code)| *bits |= code >> 4 << part);
        }
        put_nibble_pairs(&codes, &mut out[48..]);
    });
}

/// Writes d, dmin, s and m, and returns the codes.
fn put_parts(values: &[f32; 256], levels: f32, out: &mut [u8]) -> [u8; 256] {
    const MOST_PART: f32 = 63.0;
    let (parts, _) = values.as_chunks::<32>();
    let found: [[f32; 2]; 8] = std::array::from_fn(|part| {
        let [scale, least] = scale_and_least(&parts[part], levels, true);
        [scale, -least]
    });
    let largest = |which: usize| found.iter().fold(0f32, |largest, found| largest.max(found[which]));
    let d = put_half(out, 0, largest(0) / MOST_PART);
    let dmin = put_half(out, 2, largest(1) / MOST_PART);
    let whole = |value: f32, unit: f32| code(value * inverse(unit), [0.0, MOST_PART]);
    let rounded = found.map(|[scale, least]| [whole(scale, d), whole(least, dmin)]);
    put_scale_pairs(&rounded.map(|pair| pair.map(|value| value as u8)), &mut out[4..16]);
    let mut codes = [0; 256];
    for ((codes, values), [s, m]) in codes.as_chunks_mut::<32>().0.iter_mut().zip(parts).zip(rounded) {
        let (inverse, least) = (inverse(d * s), dmin * m);
        *codes = values.map(|value| code((value + least) * inverse, [0.0, levels]) as u8);
    }
    codes
}

/// s and m of 8 parts, of 6 bits each, in 12 bytes.
fn put_scale_pairs(pairs: &[[u8; 2]; 8], out: &mut [u8]) {
    for j in 0..4 {
        let ([s, m], [later_s, later_m]) = (pairs[j], pairs[j + 4]);
        out[j] = s | later_s >> 4 << 6;
        out[j + 4] = m | later_m >> 4 << 6;
        out[j + 8] = later_s & 15 | later_m << 4;
    }
}

/// Low nibbles of parts 0 and 1, 2 and 3, and so on, the first of each in the low half of a byte.
fn put_nibble_pairs(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let (low, high) = codes.split_at(32);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = low & 15 | high << 4;
        }
    }
}

/// Low nibbles, high 2 bits, i8 s of 16 parts, d: `(d s) (q - 32)`.
pub fn q6_k(values: &[f32], out: &mut [u8]) {
    each::<210, 256>(values, out, |values, out| {
        let (parts, _) = values.as_chunks::<16>();
        let found: [f32; 16] = std::array::from_fn(|part| scale(&parts[part], 32.0));
        let extreme = found.iter().fold(0f32, |a, found| if found.abs() > a.abs() { *found } else { a });
        let d = put_half(out, 208, extreme / -128.0);
        out[..192].fill(0);
        for (part, (values, found)) in parts.iter().zip(found).enumerate() {
            let s = code(found * inverse(d), [-128.0, 127.0]);
            out[192 + part] = s as i8 as u8;
            let inverse = inverse(d * s);
            // Of the half of the block: which 32 values, and the place in them.
            let (half, quarter, place) = (part / 8, part / 2 % 4, part % 2 * 16);
            for (i, value) in values.iter().enumerate() {
                let code = (code(value * inverse, [-32.0, 31.0]) + 32.0) as u8;
                out[64 * half + quarter % 2 * 32 + place + i] |= (code & 15) << (quarter / 2 * 4);
                out[128 + 32 * half + place + i] |= code >> 4 << (quarter * 2);
            }
        }
    });
}
