//! Checks of all values of a tensor: finite, zeros, and the largest magnitude.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::formats::dequantize::dequantize_rows;
use crate::formats::format::Format;
use crate::formats::tensor_view::TensorView;
use flux_base::error::{Error, Result};

const BYTES_AT_ONCE: usize = 1 << 18;

/// Errors with the name of a tensor that holds infinities or NaN. Reads all tensors, on all cores, except those for
/// which `tensor` errors.
pub fn check_finite<'a>(
    names: impl Iterator<Item = &'a str>,
    tensor: impl Fn(&str) -> Result<TensorView> + Sync,
) -> Result<()> {
    let names: Vec<&str> = names.collect();
    match names.par_iter().filter(|name| tensor(name).is_ok_and(|view| !is_finite(&view))).min() {
        Some(name) => Err(Error::new(format!("tensor `{name}` contains NaN or infinite values"))
            .hint("the file is damaged: fetch it again")),
        None => Ok(()),
    }
}

/// Returns `true` if all values are finite. Infinities and NaN have all bits of the exponent set.
fn is_finite(view: &TensorView) -> bool {
    let all_finite = |bytes: &[u8]| match view.format() {
        Format::Bf16 => none(bytes, |value| u16::from_le_bytes(value) & 0x7f80 == 0x7f80),
        Format::F16 => none(bytes, |value| u16::from_le_bytes(value) & 0x7c00 == 0x7c00),
        _ => none(bytes, |value| u32::from_le_bytes(value) & 0x7f80_0000 == 0x7f80_0000),
    };
    if view.format().is_float() {
        return view.bytes().par_chunks(BYTES_AT_ONCE).all(all_finite);
    }
    if view.shape().len() < 2 {
        return view.to_f32().iter().all(|value| value.is_finite());
    }
    (0..view.rows()).into_par_iter().all(|row| row_of(view, row).iter().all(|value| value.is_finite()))
}

/// Returns a row in float32.
fn row_of(view: &TensorView, row: usize) -> Vec<f32> {
    let mut values = vec![0.0; view.cols()];
    dequantize_rows(view, row..row + 1, &mut values);
    values
}

/// Returns `true` if no value of `N` bytes is `bad`. The loop has no early exit, so that the compiler vectorizes it.
fn none<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> bool {
    let (values, _) = bytes.as_chunks::<N>();
    !values.iter().fold(false, |found, value| found | bad(*value))
}

/// Returns `true` if all values are zeros, of either sign. Stops at the first row with another value, which is nearly
/// always the first row.
pub fn is_zeros(view: &TensorView) -> bool {
    let bytes = view.bytes();
    match view.format() {
        Format::Bf16 | Format::F16 => bytes.as_chunks::<2>().0.iter().all(|value| u16::from_le_bytes(*value) << 1 == 0),
        Format::F32 => bytes.as_chunks::<4>().0.iter().all(|value| u32::from_le_bytes(*value) << 1 == 0),
        _ => (0..view.rows()).all(|row| row_of(view, row).iter().all(|value| *value == 0.0)),
    }
}

/// Returns the largest magnitude of a tensor's values. All values must be finite.
pub fn largest(view: &TensorView) -> f64 {
    if view.format().is_float() {
        let chunks = view.bytes().par_chunks(BYTES_AT_ONCE);
        return chunks.map(|bytes| largest_of(view.format(), bytes)).reduce(|| 0.0, f64::max);
    }
    let of_row = |row: usize| row_of(view, row).iter().fold(0f32, |most, value| most.max(value.abs()));
    (0..view.rows()).map(of_row).fold(0.0, f32::max).into()
}

/// As [`largest`], for plain floats. Magnitudes of floats are ordered like their bits, and the compiler vectorizes the
/// comparison of integers.
fn largest_of(format: Format, bytes: &[u8]) -> f64 {
    let halves = || {
        let (values, _) = bytes.as_chunks::<2>();
        values.iter().fold(0, |most: i16, value| most.max(i16::from_le_bytes(*value) & i16::MAX)) as u16
    };
    match format {
        Format::Bf16 => bf16::from_bits(halves()).into(),
        Format::F16 => f16::from_bits(halves()).into(),
        _ => {
            let (values, _) = bytes.as_chunks::<4>();
            let most = values.iter().fold(0, |most: i32, value| most.max(i32::from_le_bytes(*value) & i32::MAX));
            f32::from_bits(most as u32).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scales;
    use crate::testing::view;

    #[test]
    fn the_largest_magnitude_is_found_in_every_type_and_part() {
        let values = |count: usize, place: usize| (0..count).map(move |i| if i == place { -48.0 } else { 3.5 });
        let view = |format: Format, bytes: Vec<u8>, count: usize| view(bytes, format, &[count], Scales::None);
        for count in [1, 5, BYTES_AT_ONCE] {
            for place in [0, count - 1] {
                let f32s = values(count, place).flat_map(|value: f32| value.to_le_bytes()).collect();
                assert_eq!(largest(&view(Format::F32, f32s, count)), 48.0);
                let bf16s = values(count, place).flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
                assert_eq!(largest(&view(Format::Bf16, bf16s, count)), 48.0);
                let f16s = values(count, place).flat_map(|value| f16::from_f32(value).to_le_bytes()).collect();
                assert_eq!(largest(&view(Format::F16, f16s, count)), 48.0);
            }
        }
    }
}
