//! The largest magnitude of a tensor's values.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::formats::dequantize::dequantize_rows;
use crate::formats::format::Format;
use crate::formats::tensor_view::TensorView;

const BYTES_AT_ONCE: usize = 1 << 18;

/// Returns the largest magnitude of a tensor's values. All values must be finite.
pub fn largest(view: &TensorView) -> f64 {
    if view.format().is_float() && view.bytes().len() > BYTES_AT_ONCE {
        let chunks = view.bytes().par_chunks(BYTES_AT_ONCE);
        return chunks.map(|bytes| largest_of(view.format(), bytes)).reduce(|| 0.0, f64::max);
    }
    match view.format() {
        format @ (Format::Bf16 | Format::F16 | Format::F32) => largest_of(format, view.bytes()),
        _ => {
            let mut values = vec![0.0; view.cols()];
            let of_row = |row: usize| {
                dequantize_rows(view, row..row + 1, &mut values);
                values.iter().fold(0f32, |most, value| most.max(value.abs()))
            };
            (0..view.rows()).map(of_row).fold(0.0, f32::max).into()
        }
    }
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
    use std::sync::Arc;

    use super::*;
    use crate::{Bytes, Scales};

    #[test]
    fn the_largest_magnitude_is_found_in_every_type_and_part() {
        let values = |count: usize, place: usize| (0..count).map(move |i| if i == place { -48.0 } else { 3.5 });
        let view = |format: Format, bytes: Vec<u8>, count: usize| {
            let length = bytes.len();
            TensorView::new(Arc::new(Bytes::Owned(bytes)), 0..length, format, vec![count], Scales::None).unwrap()
        };
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
