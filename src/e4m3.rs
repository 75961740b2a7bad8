//! e4m3: floats of 8 bits, which are a sign, 4 bits of exponent and 3 of mantissa, without infinities. Rows of them share a float32 scale.
//!
//! What is here gives the bits that cuda/e4m3.cuh gives, so that weights may be quantised on either side.

/// Rows are padded with zeros to whole 16 bytes, and weights with rows of zeros, because cuBLASLt's fp8 kernels take no other sizes.
pub const MULTIPLE: usize = 16;
/// The largest value.
const MAX: f32 = 448.0;
/// Stands for a smaller largest magnitude of a row, so that a row of zeros divides by something.
const LEAST_AMAX: f32 = 1e-30;
/// The least value with an implied bit of mantissa; those below are multiples of 2^-9.
const LEAST_NORMAL: f32 = 1.0 / 64.0;
const NAN: u8 = 0x7f;

/// The value of the bits.
pub fn to_f32(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The bits of the nearest value, of two as near those whose last bit is 0; the largest for all that is larger. A NaN stays one.
pub fn from_f32(value: f32) -> u8 {
    // Added to a magnitude below it, its last bit is worth 2^-9.
    const SHIFT: f32 = (1 << 14) as f32;
    if value.is_nan() {
        return NAN;
    }
    let (sign, magnitude) = ((value.to_bits() >> 24) as u8 & 0x80, value.abs());
    let bits = if magnitude < LEAST_NORMAL {
        (magnitude + SHIFT).to_bits() - SHIFT.to_bits()
    } else {
        // 20 of the 23 bits of mantissa go; the exponent counts from 7 instead of 127.
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - ((127 - 7) << 3)).min(u32::from(NAN) - 1)
    };
    sign | bits as u8
}

/// `values` over the scale that is returned, their largest magnitude over 448; zeros in `out` behind them.
pub fn quantise_row(values: &[f32], out: &mut [u8]) -> f32 {
    let amax = values.iter().fold(LEAST_AMAX, |amax, value| amax.max(value.abs()));
    let inverse = MAX / amax;
    let (row, padding) = out.split_at_mut(values.len());
    row.iter_mut().zip(values).for_each(|(bits, value)| *bits = from_f32(value * inverse));
    padding.fill(0);
    amax / MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_has_the_values_of_its_definition() {
        let values =
            [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x07, 7.0 * 2f32.powi(-9)), (0x08, 2f32.powi(-6)), (0x38, 1.0), (0x39, 1.125), (0x7e, 448.0)];
        for (bits, value) in values {
            assert_eq!((to_f32(bits), to_f32(bits | 0x80)), (value, -value), "{bits:#x}");
        }
        assert!(to_f32(0x7f).is_nan() && to_f32(0xff).is_nan());
    }

    /// Exact: halves of neighbours, and the float32 values beside them, are values of float32.
    #[test]
    fn values_become_the_nearest_with_ties_to_even() {
        for bits in 0..0x7eu8 {
            let (low, high) = (to_f32(bits), to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            for (value, expected) in [(low, bits), (middle.next_down(), bits), (middle, even), (middle.next_up(), bits + 1), (high, bits + 1)] {
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
        let scale = quantise_row(&[0.5, -2.0, 0.0, 1.0, f32::NAN], &mut out);
        assert_eq!(scale, 2.0 / 448.0);
        assert_eq!(out[..4].iter().map(|bits| to_f32(*bits) * scale).collect::<Vec<_>>(), [0.5, -2.0, 0.0, 1.0]);
        assert_eq!(out[4..], [NAN, 0, 0, 0]);
        let scale = quantise_row(&[0.0; 3], &mut out);
        assert!(scale > 0.0 && out == [0; 8]);
        quantise_row(&[f32::INFINITY, 1.0], &mut out);
        assert!(to_f32(out[0]).is_nan(), "an infinity over itself");
    }
}
