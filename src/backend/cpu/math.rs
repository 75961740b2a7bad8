//! Float32 arithmetic over slices: exponentials, reductions and the widening of weights.
//!
//! Each function is written once, as a plain loop without branches that the compiler vectorizes, and compiled twice:
//! for any CPU of the target, and on x86-64 for CPUs with AVX2 and FMA, which are detected at run time.

#![allow(unsafe_code)]

use crate::files::{TensorView, dequantize_inlined, int8};

/// Sums and maxima use this many independent lanes, so that no addition waits for the one before it.
const LANES: usize = 32;

/// Runs `$body::<true>` compiled for AVX2 and FMA if the CPU has them, otherwise `$body` for the target.
///
/// The const parameter of a body is `true` if `mul_add` is one instruction; elsewhere it would be a library call.
macro_rules! dispatch {
    ($body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn with_avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<true>($($arg),*)
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has AVX2 and FMA, as checked on the line above; `with_avx2` needs nothing else.
                return unsafe { with_avx2($($arg),*) };
            }
        }
        $body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
    }};
}

/// Replaces each value by its `e^x`, within 1 ulp.
///
/// Exactly 1 at 0. Results below the smallest normal float32 (x < -87.33) are 0, those above the largest are infinite.
#[cfg(test)]
fn exp(values: &mut [f32]) {
    dispatch!(exp_body(values: &mut [f32]))
}

/// Returns the largest value, `-inf` for an empty slice. NaN counts as smaller than all.
pub fn max(values: &[f32]) -> f32 {
    dispatch!(max_body(values: &[f32]) -> f32)
}

/// Replaces each value by `e^(value - max)` and returns the sum of the results: the middle of a softmax.
pub fn exp_sub(values: &mut [f32], max: f32) -> f32 {
    dispatch!(exp_sub_body(values: &mut [f32], max: f32) -> f32)
}

/// Replaces each value by `x / (1 + e^-x)`.
pub fn silu(values: &mut [f32]) {
    dispatch!(silu_body(values: &mut [f32]))
}

/// Computes `silu(x * scale + shift)` of each value. Panics if the lengths differ.
pub fn affine_silu(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    assert!(x.len() == out.len() && scale.len() == out.len() && shift.len() == out.len());
    dispatch!(affine_silu_body(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]))
}

/// Adds each value's deviation from its center to `sums` and the square of the deviation to `squares`, both in float64.
/// Panics if the lengths differ.
pub fn add_deviations(x: &[f32], center: &[f32], sums: &mut [f64], squares: &mut [f64]) {
    assert!(center.len() == x.len() && sums.len() == x.len() && squares.len() == x.len());
    dispatch!(add_deviations_body(x: &[f32], center: &[f32], sums: &mut [f64], squares: &mut [f64]))
}

/// Returns the sum, accumulated in float64.
pub fn sum(values: &[f32]) -> f64 {
    dispatch!(sum_body(values: &[f32]) -> f64)
}

/// Returns the sum of `(value - center)^2`, accumulated in float64; the difference is rounded to float32.
pub fn sum_squares(values: &[f32], center: f32) -> f64 {
    dispatch!(sum_squares_body(values: &[f32], center: f32) -> f64)
}

/// Converts bfloat16, little-endian and at any address, to float32. Exact. Panics unless `bytes` has two bytes for each
/// cell of `out`.
pub fn widen_bf16(bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * out.len());
    dispatch!(widen_bf16_body(bytes: &[u8], out: &mut [f32]))
}

/// Converts IEEE half precision, little-endian and at any address, to float32. Exact. Panics unless `bytes` has two
/// bytes for each cell of `out`.
pub fn widen_f16(bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * out.len());
    dispatch!(widen_f16_body(bytes: &[u8], out: &mut [f32]))
}

/// Dequantizes the values of a tensor of any format, as [`dequantize_rows`](crate::files::dequantize_rows) does. Panics
/// unless `out` has as many cells.
pub fn dequantize(view: &TensorView, out: &mut [f32]) {
    dispatch!(dequantize_body(view: &TensorView, out: &mut [f32]))
}

/// As [`int8::quantize_row`].
pub fn quantize_row(values: &mut [f32], group: usize, out: &mut [i8]) -> f32 {
    dispatch!(quantize_row_body(values: &mut [f32], group: usize, out: &mut [i8]) -> f32)
}

/// Rounds each value to bfloat16 bits (to nearest, ties to even), and leaves the remainder in `values`.
///
/// So `value == rounded + rest` exactly, and three calls split a finite normal float32 without a remainder. NaN stays
/// NaN; an infinity leaves NaN. Panics if the lengths differ.
pub fn take_bf16(values: &mut [f32], rounded: &mut [u16]) {
    assert_eq!(values.len(), rounded.len());
    dispatch!(take_bf16_body(values: &mut [f32], rounded: &mut [u16]))
}

#[inline(always)]
fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Computes `e^x = 2^n e^r` with n an integer and |r| <= ln(2) / 2; `e^r` is a polynomial.
#[inline(always)]
fn exp_one<const FMA: bool>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln(2) in two parts; the first has so few bits that n times it is exact even without FMA.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // ln of the smallest normal and of the largest float32.
    const MIN: f32 = -87.336_54;
    const MAX: f32 = 88.722_84;

    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -LN2_HIGH, x);
    let r = mul_add::<FMA>(n, -LN2_LOW, r);

    // e^r = 1 + r + r^2 p(r), with p of least maximum error over |r| <= 0.3466.
    let p = P[0];
    let p = mul_add::<FMA>(p, r, P[1]);
    let p = mul_add::<FMA>(p, r, P[2]);
    let p = mul_add::<FMA>(p, r, P[3]);
    let p = mul_add::<FMA>(p, r, P[4]);
    let y = mul_add::<FMA>(p, r * r, r) + 1.0;

    // 2^n in two halves: n = 128 occurs, and 2^128 exceeds float32.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let y = y * power(n >> 1) * power(n.wrapping_sub(n >> 1));
    let y = if x < MIN { 0.0 } else { y };
    if x > MAX { f32::INFINITY } else { y }
}

/// Coefficients of r^4 down to 1 of `(e^r - 1 - r) / r^2`.
/// A Remez fit, relative error of `e^r` 2^-28.
const P: [f32; 5] = [1.381_454e-3, 8.368_745e-3, 4.166_839e-2, 0.166_665_2, 0.499_999_94];

#[cfg(test)]
#[inline(always)]
fn exp_body<const FMA: bool>(values: &mut [f32]) {
    for value in values {
        *value = exp_one::<FMA>(*value);
    }
}

#[inline(always)]
fn max_body<const FMA: bool>(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

#[inline(always)]
fn exp_sub_body<const FMA: bool>(values: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut chunks = values.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *value = exp_one::<FMA>(*value - max);
            *lane += *value;
        }
    }
    let mut sum = lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
    for value in chunks.into_remainder() {
        *value = exp_one::<FMA>(*value - max);
        sum += f64::from(*value);
    }
    sum as f32
}

#[inline(always)]
fn silu_body<const FMA: bool>(values: &mut [f32]) {
    for value in values {
        *value /= 1.0 + exp_one::<FMA>(-*value);
    }
}

#[inline(always)]
fn affine_silu_body<const FMA: bool>(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    for (((out, x), scale), shift) in out.iter_mut().zip(x).zip(scale).zip(shift) {
        let value = x * scale + shift;
        *out = value / (1.0 + exp_one::<FMA>(-value));
    }
}

#[inline(always)]
fn add_deviations_body<const FMA: bool>(x: &[f32], center: &[f32], sums: &mut [f64], squares: &mut [f64]) {
    for (((x, center), sum), square) in x.iter().zip(center).zip(sums).zip(squares) {
        let difference = f64::from(*x) - f64::from(*center);
        *sum += difference;
        *square += difference * difference;
    }
}

#[inline(always)]
fn sum_of(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += term(value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&value| term(value)).sum::<f64>()
}

#[inline(always)]
fn sum_body<const FMA: bool>(values: &[f32]) -> f64 {
    sum_of(values, f64::from)
}

#[inline(always)]
fn sum_squares_body<const FMA: bool>(values: &[f32], center: f32) -> f64 {
    sum_of(values, |value| {
        let difference = f64::from(value - center);
        difference * difference
    })
}

#[inline(always)]
fn widen_bf16_body<const FMA: bool>(bytes: &[u8], out: &mut [f32]) {
    for (value, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    }
}

#[inline(always)]
fn widen_f16_body<const FMA: bool>(bytes: &[u8], out: &mut [f32]) {
    for (value, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        let bits = u32::from(u16::from_le_bytes([pair[0], pair[1]]));
        let magnitude = (bits & 0x7fff) << 13;
        // A float32 with these bits has an exponent that is too small by 127 - 15. The factor corrects it, also for
        // subnormals, which become normal.
        let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
        let finite = if magnitude >= 0x7c00 << 13 { magnitude | 0x7f80_0000 } else { scaled };
        *value = f32::from_bits(finite | (bits & 0x8000) << 16);
    }
}

#[inline(always)]
fn dequantize_body<const FMA: bool>(view: &TensorView, out: &mut [f32]) {
    dequantize_inlined(view, out);
}

#[inline(always)]
fn quantize_row_body<const FMA: bool>(values: &mut [f32], group: usize, out: &mut [i8]) -> f32 {
    int8::quantize_row(values, group, out)
}

#[inline(always)]
fn take_bf16_body<const FMA: bool>(values: &mut [f32], rounded: &mut [u16]) {
    for (value, rounded) in values.iter_mut().zip(rounded) {
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
        let nearest = if value.is_nan() { 0x7fc0_0000 } else { nearest };
        *rounded = (nearest >> 16) as u16;
        *value -= f32::from_bits(nearest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the distance in units of the last place of the expected value.
    fn ulps(got: f32, expected: f64) -> f64 {
        let exponent = expected.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
        (f64::from(got) - expected).abs() / (exponent - 23.0).exp2()
    }

    /// Returns reproducible pseudo-random values in -scale..scale.
    fn noise(len: usize, scale: f32) -> Vec<f32> {
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next() * scale).collect()
    }

    /// Also for the portable version, which `dispatch` hides on a CPU with AVX2.
    fn worst_ulps(xs: &[f32], exp: impl Fn(&mut [f32])) -> f64 {
        let mut got = xs.to_vec();
        exp(&mut got);
        xs.iter().zip(got).map(|(&x, got)| ulps(got, f64::from(x).exp())).fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_within_an_ulp_of_float64() {
        let mut xs: Vec<f32> = (0..2_000_000).map(|i| -87.33 + i as f32 * (88.72 + 87.33) / 2e6).collect();
        xs.extend(noise(1_000_000, 1.0));
        xs.extend(noise(100_000, 1e-3));
        for (name, worst) in [("dispatched", worst_ulps(&xs, exp)), ("portable", worst_ulps(&xs, exp_body::<false>))] {
            println!("exp, {name}: {worst:.3} ulp");
            assert!(worst < 1.0, "{name}: {worst} ulp");
        }
    }

    #[test]
    fn exp_holds_at_the_edges() {
        let mut xs = [0.0, -0.0, f32::NEG_INFINITY, -1e30, -87.34, -104.0, f32::INFINITY, 88.73, 1e30, f32::NAN];
        exp(&mut xs);
        assert_eq!(xs[..9], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
        assert!(xs[9].is_nan());
        let mut last = [88.722_83];
        exp(&mut last);
        assert!(last[0].is_finite());
    }

    #[test]
    fn softmax_pieces_match_float64_at_every_length() {
        for len in [0, 1, 7, 31, 32, 33, 512, 1001] {
            let xs = noise(len, 20.0);
            let largest = max(&xs);
            assert_eq!(largest, xs.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let mut got = xs.clone();
            let sum = exp_sub(&mut got, largest);
            let expected: Vec<f64> = xs.iter().map(|&x| f64::from(x - largest).exp()).collect();
            let total: f64 = expected.iter().sum();
            assert!((f64::from(sum) - total).abs() <= 2e-7 * total, "{len}: {sum}, expected {total}");
            for (&got, &expected) in got.iter().zip(&expected) {
                assert!(ulps(got, expected) < 1.0);
            }
        }
        let mut masked = [0.5, f32::NEG_INFINITY];
        assert_eq!(exp_sub(&mut masked, 0.5), 1.0);
        assert_eq!(masked, [1.0, 0.0]);
    }

    #[test]
    fn silu_matches_float64_and_ends_flat() {
        let xs = noise(10_001, 30.0);
        let mut got = xs.clone();
        silu(&mut got);
        for (&x, &got) in xs.iter().zip(&got) {
            let expected = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            assert!(ulps(got, expected) < 3.0, "silu({x}) = {got}, expected {expected}");
        }
        let mut ends = [-1000.0, 1000.0, 0.0];
        silu(&mut ends);
        assert_eq!(ends, [0.0, 1000.0, 0.0]);
    }

    #[test]
    fn sums_are_those_of_float64() {
        for len in [0, 1, 31, 33, 3072, 100_003] {
            let xs: Vec<f32> = noise(len, 1.0).iter().map(|x| x + 100.0).collect();
            let expected: f64 = xs.iter().map(|&x| f64::from(x)).sum();
            assert!((sum(&xs) - expected).abs() <= 1e-12 * expected);
            let expected: f64 = xs.iter().map(|&x| f64::from(x - 100.0).powi(2)).sum();
            assert!((sum_squares(&xs, 100.0) - expected).abs() <= 1e-12 * expected);
        }
    }

    #[test]
    fn widening_is_exact_for_every_bit_pattern_at_any_address() {
        let patterns: Vec<u16> = (0..=u16::MAX).collect();
        let mut bytes = vec![0xffu8];
        bytes.extend(patterns.iter().flat_map(|bits| bits.to_le_bytes()));
        let mut out = vec![0.0f32; patterns.len()];
        let same = |got: f32, expected: f32| got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        widen_bf16(&bytes[1..], &mut out);
        assert!(patterns.iter().zip(&out).all(|(&bits, &got)| same(got, half::bf16::from_bits(bits).to_f32())));
        widen_f16(&bytes[1..], &mut out);
        for (&bits, &got) in patterns.iter().zip(&out) {
            let expected = half::f16::from_bits(bits).to_f32();
            assert!(same(got, expected), "{bits:#06x}: {got}, expected {expected}");
        }
    }

    #[test]
    fn bf16_terms_round_as_the_half_crate_and_three_leave_no_rest() {
        let mut xs = noise(4097, 7.0);
        xs.extend([0.0, -0.0, 1e-20, -1e20, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]);
        let mut rest = xs.clone();
        let mut total = vec![0.0f64; xs.len()];
        for _ in 0..3 {
            let expected: Vec<u16> = rest.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
            let mut rounded = vec![0; xs.len()];
            take_bf16(&mut rest, &mut rounded);
            assert_eq!(rounded, expected);
            for (total, &bits) in total.iter_mut().zip(&rounded) {
                *total += half::bf16::from_bits(bits).to_f64();
            }
        }
        assert!(rest.iter().all(|&rest| rest == 0.0));
        assert!(xs.iter().zip(total).all(|(&x, total)| f64::from(x) == total));
        let mut nan = [f32::from_bits(0x7fff_ffff)];
        let mut rounded = [0];
        take_bf16(&mut nan, &mut rounded);
        assert!(half::bf16::from_bits(rounded[0]).is_nan());
    }
}
