//! e4m3: 8-bit floats with a sign, 4 bits of exponent and 3 bits of mantissa, without infinities. The values of a row
//! share a float32 scale.
//!
//! The functions here give the same bits as cuda/quantize_weight.cu, so that weights may be quantized on either side.

/// The multiple to which zeros pad the bytes of a row and the rows of a weight: cuBLASLt's fp8 kernels take no other
/// sizes.
pub const MULTIPLE: usize = 16;
/// The largest value.
pub const MAX: f32 = 448.0;
/// The smallest magnitude that sets a scale. A row with smaller values gets the scale of this magnitude, so that a row
/// of zeros is not divided by zero.
const MIN_AMAX: f32 = 1e-30;
/// The smallest value with an implied bit of mantissa. Smaller values are multiples of 2^-9.
const MIN_NORMAL: f32 = 1.0 / 64.0;
const NAN: u8 = 0x7f;
/// The number of scales that are tried for a row of a weight.
const CANDIDATES: u64 = 32;
/// The unit of errors is 1 / 32. The largest half step of e4m3 is 16, so a float32 holds the sum of 32 squared errors
/// exactly.
const STEPS: f32 = 32.0;
const LANES: usize = 16;

/// Returns the value of the bits.
#[inline(always)]
pub fn to_f32(bits: u8) -> f32 {
    // The bits of exponent and mantissa are those of a float32 whose exponent is too small by the difference of the
    // biases, 127 - 7. Multiplying by a power of two is exact.
    const BIAS: f32 = f32::from_bits((127 + 120) << 23);
    let (sign, magnitude) = (u32::from(bits & 0x80) << 24, bits & 0x7f);
    let value = if magnitude == NAN { f32::NAN } else { f32::from_bits(u32::from(magnitude) << 20) * BIAS };
    f32::from_bits(value.to_bits() | sign)
}

/// Returns the bits of the nearest value. Ties go to the value whose last bit is 0, and magnitudes beyond the largest
/// value become that value. NaN stays NaN.
pub fn from_f32(value: f32) -> u8 {
    // In the sum of this constant and a smaller magnitude, the last bit is worth 2^-9.
    const SHIFT: f32 = (1 << 14) as f32;
    if value.is_nan() {
        return NAN;
    }
    let (sign, magnitude) = ((value.to_bits() >> 24) as u8 & 0x80, value.abs());
    let bits = if magnitude < MIN_NORMAL {
        (magnitude + SHIFT).to_bits() - SHIFT.to_bits()
    } else {
        // 20 of the 23 bits of mantissa are rounded away; the exponent's bias is 7 instead of 127.
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - ((127 - 7) << 3)).min(u32::from(NAN) - 1)
    };
    sign | bits as u8
}

/// Quantizes a row of a weight to the beginning of `out`, fills the rest with zeros, and returns the scale.
///
/// The scale is the one of least squared error among `amax / 448 * (1 + i / 32)`, i < 32, for the row's largest
/// magnitude amax. If errors are equal, the smallest scale counts. The candidates span an octave, and each rounds the
/// row's values differently. The root mean squared error is 3 % less than with amax / 448 in rows of 3072 normal
/// values, and 1.5 % less in rows of 12288.
pub fn quantize_row(values: &[f32], out: &mut [u8]) -> f32 {
    let amax = values.iter().fold(MIN_AMAX, |amax, value| amax.max(value.abs()));
    let (scale, inverse) = least_error(values, (amax / MAX, MAX / amax));
    let (row, padding) = out.split_at_mut(values.len());
    row.iter_mut().zip(values).for_each(|(bits, value)| *bits = from_f32(value * inverse));
    padding.fill(0);
    scale
}

/// Returns the candidate of least error, as a scale and its inverse. The first candidate is `largest`, which maps the
/// largest magnitude to [`MAX`].
fn least_error(values: &[f32], largest: (f32, f32)) -> (f32, f32) {
    let mut finite: Vec<f64> =
        values.iter().map(|value| if value.is_finite() { f64::from(*value) } else { 0.0 }).collect();
    finite.resize(values.len().next_multiple_of(LANES), 0.0);
    let candidate = |i: u64| {
        let factor = 1.0 + i as f32 / CANDIDATES as f32;
        (largest.0 * factor, largest.1 / factor)
    };
    // In units of the first scale. Less than 2^64 for rows of any size that fits in memory.
    let error = |i: &u64| squared_error(&finite, candidate(*i).1) * (CANDIDATES + i).pow(2);
    candidate((0..CANDIDATES).min_by_key(error).unwrap_or(0))
}

/// Returns the sum of the squared errors of e4m3 for `values * inverse`. All are first multiplied by [`STEPS`] and
/// rounded to integers, because a sum of integers is the same in any order, here and on the GPU. The error of this
/// rounding is small compared with the errors of a row's larger values.
fn squared_error(values: &[f64], inverse: f32) -> u64 {
    // Adding and subtracting these constants rounds to a multiple of 1, or of 1/8 of a power of two, because float64
    // has 52 bits after the first.
    const TO_INTEGER: f64 = 1.5 * (1u64 << 52) as f64;
    const TO_EIGHTH: f64 = 1.5 * (1u64 << 49) as f64;
    const EXPONENT: u64 = 0x7ff << 52;
    let inverse = f64::from(inverse * STEPS);
    // The sums run in lanes, because the compiler does not reorder them. Each is less than 2^53, so it is exact.
    let mut sums = [0.0; LANES];
    for values in values.chunks_exact(LANES) {
        for (sum, value) in sums.iter_mut().zip(values) {
            let scaled = (value * inverse + TO_INTEGER) - TO_INTEGER;
            // Integers below 8 are multiples of 1/8 of their power of two, so the smaller steps of e4m3 near 0 make no
            // difference.
            let power = f64::from_bits(scaled.to_bits() & EXPONENT) * TO_EIGHTH;
            let error = scaled - ((scaled + power) - power);
            *sum += error * error;
        }
    }
    sums.iter().map(|sum| *sum as u64).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::Random;

    /// Some of the format's values by their bits, from its definition.
    pub const VALUES: [(u8, f32); 7] = [
        (0x00, 0.0),
        (0x01, 1.0 / 512.0),
        (0x07, 7.0 / 512.0),
        (0x08, 1.0 / 64.0),
        (0x38, 1.0),
        (0x39, 1.125),
        (0x7e, 448.0),
    ];

    #[test]
    fn e4m3_has_the_values_of_its_definition() {
        for (bits, value) in VALUES {
            assert_eq!((to_f32(bits), to_f32(bits | 0x80)), (value, -value), "{bits:#x}");
        }
        for bits in 0..NAN {
            let (exponent, mantissa) = (i32::from(bits >> 3), f32::from(bits & 7) / 8.0);
            let significand = if exponent == 0 { mantissa } else { 1.0 + mantissa };
            assert_eq!(to_f32(bits), significand * 2f32.powi(exponent.max(1) - 7), "{bits:#x}");
        }
        assert!(to_f32(0x7f).is_nan() && to_f32(0xff).is_nan());
    }

    /// The test is exact: midpoints of neighbours, and the float32 values next to them, are values of float32.
    #[test]
    fn values_become_the_nearest_with_ties_to_even() {
        for bits in 0..0x7eu8 {
            let (low, high) = (to_f32(bits), to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            for (value, expected) in [
                (low, bits),
                (middle.next_down(), bits),
                (middle, even),
                (middle.next_up(), bits + 1),
                (high, bits + 1),
            ] {
                assert_eq!((from_f32(value), from_f32(-value)), (expected, expected | 0x80), "{value}");
            }
        }
        for large in [448.0, 463.9, 464.0, 480.0, 1e9, f32::INFINITY] {
            assert_eq!((from_f32(large), from_f32(-large)), (0x7e, 0xfe), "{large}");
        }
        assert_eq!(from_f32(f32::MIN_POSITIVE / 2.0), 0);
        assert!(to_f32(from_f32(f32::NAN)).is_nan() && to_f32(from_f32(-f32::NAN)).is_nan());
    }

    #[test]
    fn a_row_uses_the_whole_range_and_ends_in_zeros() {
        let mut out = [0xaa; 8];
        let scale = quantize_row(&[0.5, -2.0, 0.0, 1.0, f32::NAN], &mut out);
        assert_eq!(scale, 2.0 / 448.0);
        assert_eq!(out[..4].iter().map(|bits| to_f32(*bits) * scale).collect::<Vec<_>>(), [0.5, -2.0, 0.0, 1.0]);
        assert_eq!(out[4..], [NAN, 0, 0, 0]);
    }

    /// Returns roughly normal values.
    fn normal(seed: u64, len: usize) -> Vec<f32> {
        let mut random = Random(seed);
        // The upper half of a float32 is a bf16.
        (0..len).map(|_| f32::from_bits((0.02 * random.normal()).to_bits() & 0xffff_0000)).collect()
    }

    /// Returns rows of many sizes: normal, with heavy tails, over many powers of two, and with one value far above the
    /// rest.
    fn rows() -> Vec<Vec<f32>> {
        let of_size = |(seed, len): (usize, usize)| {
            let row = normal(seed as u64, len);
            let heavy = row.iter().map(|value| value * value * value).collect();
            let wide = row.iter().enumerate().map(|(i, value)| value * 2f32.powi((i * 7 % 24) as i32 - 20)).collect();
            let mut far = row.clone();
            far[len / 2] = 40.0;
            [row, heavy, wide, far]
        };
        [1, 2, 3, 15, 16, 17, 64, 300, 3072].into_iter().enumerate().flat_map(of_size).collect()
    }

    /// Returns each candidate's scale and its inverse.
    fn candidates(row: &[f32]) -> [(f32, f32); 32] {
        let amax = row.iter().fold(1e-30, |amax: f32, value| amax.max(value.abs()));
        std::array::from_fn(|i| (amax / 448.0 * (1.0 + i as f32 / 32.0), 448.0 / amax / (1.0 + i as f32 / 32.0)))
    }

    /// Returns the sum of squared differences from the row.
    fn error(row: &[f32], (scale, inverse): (f32, f32)) -> f64 {
        row.iter()
            .map(|value| (f64::from(*value) - f64::from(to_f32(from_f32(value * inverse))) * f64::from(scale)).powi(2))
            .sum()
    }

    fn scale_of(row: &[f32]) -> f32 {
        quantize_row(row, &mut vec![0; row.len()])
    }

    /// Searches all values of the format for the nearest one.
    #[test]
    fn the_scale_is_the_first_of_least_error_in_steps() {
        let magnitudes: Vec<f64> = (0..0x7f).map(|bits| 32.0 * f64::from(to_f32(bits))).collect();
        for row in rows() {
            let error = |(scale, inverse): &(f32, f32)| {
                let squared = |value: &f32| {
                    let steps = (f64::from(value.abs()) * f64::from(*inverse) * 32.0).round_ties_even();
                    magnitudes.iter().map(|magnitude| (steps - magnitude).abs()).fold(f64::INFINITY, f64::min).powi(2)
                };
                (row.iter().map(squared).sum::<f64>() as u64, *scale)
            };
            let errors: Vec<(u64, f32)> = candidates(&row).iter().map(error).collect();
            let weighted: Vec<u64> =
                errors.iter().zip(32u64..).map(|((squares, _), factor)| squares * factor * factor).collect();
            let least = *weighted.iter().min().unwrap();
            let first = weighted.iter().position(|error| *error == least).unwrap();
            assert_eq!(scale_of(&row), errors[first].1, "{} values", row.len());
        }
    }

    #[test]
    fn no_other_scale_is_nearer_to_the_weights() {
        for seed in 0..20 {
            let row = normal(seed, 3072);
            let candidates = candidates(&row);
            let scale = scale_of(&row);
            let chosen = candidates.iter().position(|candidate| candidate.0 == scale).expect("one of them");
            let errors = candidates.map(|candidate| error(&row, candidate));
            // No error is less, except through the rounding to steps of 1/32, which is a hundredth of a value's error.
            assert!(errors.iter().all(|error| errors[chosen] <= error * 1.001), "{errors:?}, chosen {chosen}");
        }
    }

    #[test]
    fn rows_are_nearer_than_with_the_least_scale() {
        for (len, gain) in [(256, 0.06), (3072, 0.02), (12288, 0.01)] {
            let [mut chosen_sum, mut least_sum] = [0.0; 2];
            for seed in 0..20 {
                let row = normal(seed, len);
                let candidates = candidates(&row);
                let scale = scale_of(&row);
                let chosen = error(&row, *candidates.iter().find(|candidate| candidate.0 == scale).unwrap());
                let least = error(&row, candidates[0]);
                assert!(chosen <= least, "{chosen} of {least}");
                chosen_sum += chosen;
                least_sum += least;
            }
            let nearer = 1.0 - (chosen_sum / least_sum).sqrt();
            println!("{len} values: {:.1} % nearer", 100.0 * nearer);
            assert!(nearer > gain, "{len} values: {nearer}");
        }
    }

    #[test]
    fn the_scale_depends_on_no_order_and_no_sign() {
        for mut row in rows() {
            let scale = scale_of(&row);
            row.reverse();
            assert_eq!(scale_of(&row), scale, "{} values, from the end", row.len());
            row.sort_by(f32::total_cmp);
            assert_eq!(scale_of(&row), scale, "{} values, sorted", row.len());
            row.iter_mut().for_each(|value| *value = -*value);
            assert_eq!(scale_of(&row), scale, "{} values, negated", row.len());
        }
    }

    #[test]
    fn equal_errors_choose_the_smallest_scale() {
        // The errors are zero at 1 and at 1.75.
        assert_eq!(scale_of(&[3.0]), 3.0 / 448.0);
        assert_eq!(scale_of(&[0.0; 3]), MIN_AMAX / 448.0);
        assert_eq!(scale_of(&[]), MIN_AMAX / 448.0);
    }

    #[test]
    fn rows_of_any_magnitude_are_quantized() {
        let mut out = [0xaa; 8];
        quantize_row(&[0.0; 3], &mut out);
        assert_eq!(out, [0; 8]);
        // The next power of two is not in the range of float32.
        let row = [f32::MAX, -f32::MAX / 3.0, 1e38, f32::MIN_POSITIVE / 4.0];
        let scale = quantize_row(&row, &mut out);
        assert!(scale.is_finite() && (to_f32(out[0]) * (scale / f32::MAX) - 1.0).abs() < 0.07, "{scale}: {out:?}");
        // These magnitudes are below the least one that sets a scale.
        let scale = quantize_row(&[1e-40, -1e-33], &mut out);
        assert_eq!((scale, &out[..2]), (MIN_AMAX / 448.0, &[0, from_f32(-1e-33 * (448.0 / MIN_AMAX))][..]));
    }

    #[test]
    fn what_is_not_a_number_changes_no_other_value() {
        let row = normal(1, 40);
        let [mut expected, mut out] = [[0; 40]; 2];
        let scale = quantize_row(&row[1..], &mut expected);
        let with_nan = [&[f32::NAN], &row[1..]].concat();
        assert_eq!(quantize_row(&with_nan, &mut out), scale);
        assert!(to_f32(out[0]).is_nan() && out[1..] == expected[..39]);
        let scale = quantize_row(&[f32::INFINITY, 1.0, f32::NEG_INFINITY], &mut out);
        assert!(
            scale == f32::INFINITY && to_f32(out[0]).is_nan() && to_f32(out[2]).is_nan(),
            "infinity divided by infinity"
        );
        assert_eq!(out[1], 0);
    }
}
