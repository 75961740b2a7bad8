//! Detection of tensors whose values are all zeros.

use crate::formats::dequantize::dequantize_rows;
use crate::formats::format::Format;
use crate::formats::tensor_view::TensorView;

/// Returns `true` if all values are zeros, of either sign. Stops at the first row with another value, which is nearly
/// always the first row.
pub fn is_zeros(view: &TensorView) -> bool {
    let bytes = view.bytes();
    match view.format() {
        Format::Bf16 | Format::F16 => bytes.as_chunks::<2>().0.iter().all(|value| u16::from_le_bytes(*value) << 1 == 0),
        Format::F32 => bytes.as_chunks::<4>().0.iter().all(|value| u32::from_le_bytes(*value) << 1 == 0),
        _ => {
            let mut values = vec![0.0; view.cols()];
            (0..view.rows()).all(|row| {
                dequantize_rows(view, row..row + 1, &mut values);
                values.iter().all(|value| *value == 0.0)
            })
        }
    }
}
