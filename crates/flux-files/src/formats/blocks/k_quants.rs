//! GGUF's K-quants: blocks of 256 values in parts. Each part has a scale s and, in some formats, a minimum m, both
//! small integers. The block has float16 factors for them: d for scales, dmin for minima.

use super::search::{code, scale, scale_and_least};
use super::small::put_nibbles;
use super::{each, encode_each, half_at, inverse, put_half};

/// Decodes `(d s) q - dmin m` from s and m of 16 parts as nibbles, 2 bits for each value, d and dmin.
#[inline(always)]
pub fn q2_k(bytes: &[u8], out: &mut [f32]) {
    each::<84, 256>(bytes, out, |block, out| {
        let (scales, codes) = (&block[..16], &block[16..80]);
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (scale, least) = (d * f32::from(scales[part] & 15), dmin * f32::from(scales[part] >> 4));
            let (from, shift) = two_bits(part);
            for (out, code) in out.iter_mut().zip(&codes[from..]) {
                *out = scale * f32::from(code >> shift & 3) - least;
            }
        }
    });
}

/// Decodes `(d (s - 32)) (q - 4 (1 - h))` from third bits h, 2 bits for each value, s of 16 parts in 6 bits, and d.
#[inline(always)]
pub fn q3_k(bytes: &[u8], out: &mut [f32]) {
    each::<110, 256>(bytes, out, |block, out| {
        let (high_bits, codes, packed, d) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
        for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let low = if part < 8 { packed[part] & 15 } else { packed[part - 8] >> 4 };
            let high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
            let scale = d * (f32::from(low | high << 4) - 32.0);
            let (from, shift) = two_bits(part);
            let codes = codes[from..].iter().zip(&high_bits[from % 32..]);
            for (out, (code, high)) in out.iter_mut().zip(codes) {
                let code = (code >> shift & 3) | (high >> (part / 2) & 1) << 2;
                *out = scale * (f32::from(code) - 4.0);
            }
        }
    });
}

/// Decodes `(d s) q - dmin m` from d, dmin, s and m of 8 parts in 6 bits, and 4 bits for each value.
#[inline(always)]
pub fn q4_k(bytes: &[u8], out: &mut [f32]) {
    each::<144, 256>(bytes, out, |block, out| {
        let codes = block[16..].as_chunks::<32>().0;
        for (j, (out, (scale, least))) in out.as_chunks_mut::<64>().0.iter_mut().zip(scale_pairs(block)).enumerate() {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), code) in low.iter_mut().zip(high).zip(&codes[j]) {
                *low = scale[0] * f32::from(code & 15) - least[0];
                *high = scale[1] * f32::from(code >> 4) - least[1];
            }
        }
    });
}

/// Decodes as [`q4_k`], with the fifth bits of the values before the others.
#[inline(always)]
pub fn q5_k(bytes: &[u8], out: &mut [f32]) {
    each::<176, 256>(bytes, out, |block, out| {
        let (high_bits, codes) = (&block[16..48], block[48..].as_chunks::<32>().0);
        for (j, (out, (scale, least))) in out.as_chunks_mut::<64>().0.iter_mut().zip(scale_pairs(block)).enumerate() {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), (code, bits)) in low.iter_mut().zip(high).zip(codes[j].iter().zip(high_bits)) {
                let fifth = |part: usize| (bits >> part & 1) << 4;
                *low = scale[0] * f32::from(code & 15 | fifth(2 * j)) - least[0];
                *high = scale[1] * f32::from(code >> 4 | fifth(2 * j + 1)) - least[1];
            }
        }
    });
}

/// Decodes `(d s) (q - 32)` from low nibbles, high 2 bits, i8 s of 16 parts, and d.
#[inline(always)]
pub fn q6_k(bytes: &[u8], out: &mut [f32]) {
    each::<210, 256>(bytes, out, |block, out| {
        let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
        for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[part] as i8);
            // The half of the block, the group of 32 values in the half, and the place in the group.
            let (half, quarter, place) = (part / 8, part / 2 % 4, part % 2 * 16);
            let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
            let low = &low[64 * half + quarter % 2 * 32 + place..];
            let high = &high[32 * half + place..];
            for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
                let code = (low >> low_shift & 15) | (high >> high_shift & 3) << 4;
                *out = scale * (f32::from(code) - 32.0);
            }
        }
    });
}

/// Returns the first byte of the codes of a part of 16 values, and their shift. A byte holds values that are 32 apart.
#[inline(always)]
fn two_bits(part: usize) -> (usize, usize) {
    (part / 8 * 32 + part % 2 * 16, part / 2 % 4 * 2)
}

/// Returns `d s` and `dmin m` of parts 0 and 1, 2 and 3, and so on, for a block of [`q4_k`] or [`q5_k`].
#[inline(always)]
fn scale_pairs(block: &[u8]) -> [([f32; 2], [f32; 2]); 4] {
    let (d, dmin, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let part = |j: usize| {
        let (s, m) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        };
        (d * f32::from(s), dmin * f32::from(m))
    };
    std::array::from_fn(|pair| {
        let (first, second) = (part(2 * pair), part(2 * pair + 1));
        ([first.0, second.0], [first.1, second.1])
    })
}

/// Encodes `(d s) q - dmin m` as d, dmin, s and m of 8 parts in 6 bits, and 4 bits for each value.
pub fn to_q4_k(values: &[f32], out: &mut [u8]) {
    encode_each::<144, 256>(values, out, |values, out| {
        let codes = put_parts(values, 15.0, out);
        put_nibble_pairs(&codes, &mut out[16..]);
    });
}

/// Encodes as [`to_q4_k`], with the fifth bits of the values before the others.
pub fn to_q5_k(values: &[f32], out: &mut [u8]) {
    encode_each::<176, 256>(values, out, |values, out| {
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
    const MAX_PART: f32 = 63.0;
    let (parts, _) = values.as_chunks::<32>();
    let found: [[f32; 2]; 8] = std::array::from_fn(|part| {
        let [scale, least] = scale_and_least(&parts[part], levels, true);
        [scale, -least]
    });
    let largest = |which: usize| found.iter().fold(0f32, |largest, found| largest.max(found[which]));
    let d = put_half(out, 0, largest(0) / MAX_PART);
    let dmin = put_half(out, 2, largest(1) / MAX_PART);
    let whole = |value: f32, unit: f32| code(value * inverse(unit), [0.0, MAX_PART]);
    let rounded = found.map(|[scale, least]| [whole(scale, d), whole(least, dmin)]);
    put_scale_pairs(&rounded.map(|pair| pair.map(|value| value as u8)), &mut out[4..16]);
    let mut codes = [0; 256];
    for ((codes, values), [s, m]) in codes.as_chunks_mut::<32>().0.iter_mut().zip(parts).zip(rounded) {
        let (inverse, least) = (inverse(d * s), dmin * m);
        *codes = values.map(|value| code((value + least) * inverse, [0.0, levels]) as u8);
    }
    codes
}

/// Writes s and m of 8 parts, 6 bits each, to 12 bytes.
fn put_scale_pairs(pairs: &[[u8; 2]; 8], out: &mut [u8]) {
    for j in 0..4 {
        let ([s, m], [later_s, later_m]) = (pairs[j], pairs[j + 4]);
        out[j] = s | later_s >> 4 << 6;
        out[j + 4] = m | later_m >> 4 << 6;
        out[j + 8] = later_s & 15 | later_m << 4;
    }
}

/// Writes the low nibbles of parts 0 and 1, 2 and 3, and so on. The first part of each pair is in the low half of a
/// byte.
fn put_nibble_pairs(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        put_nibbles(codes, out);
    }
}

/// Encodes `(d s) (q - 32)` as low nibbles, high 2 bits, i8 s of 16 parts, and d.
pub fn to_q6_k(values: &[f32], out: &mut [u8]) {
    encode_each::<210, 256>(values, out, |values, out| {
        let (parts, _) = values.as_chunks::<16>();
        let found: [f32; 16] = std::array::from_fn(|part| scale(&parts[part], 32.0));
        let extreme = found.iter().fold(0f32, |a, found| if found.abs() > a.abs() { *found } else { a });
        let d = put_half(out, 208, extreme / -128.0);
        out[..192].fill(0);
        for (part, (values, found)) in parts.iter().zip(found).enumerate() {
            let s = code(found * inverse(d), [-128.0, 127.0]);
            out[192 + part] = s as i8 as u8;
            let inverse = inverse(d * s);
            // The half of the block, the group of 32 values in the half, and the place in the group.
            let (half, quarter, place) = (part / 8, part / 2 % 4, part % 2 * 16);
            for (i, value) in values.iter().enumerate() {
                let code = (code(value * inverse, [-32.0, 31.0]) + 32.0) as u8;
                out[64 * half + quarter % 2 * 32 + place + i] |= (code & 15) << (quarter / 2 * 4);
                out[128 + 32 * half + place + i] |= code >> 4 << (quarter * 2);
            }
        }
    });
}
