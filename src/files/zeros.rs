//! Whether all values of a tensor are zeros: by its bytes, or by what these are multiplied by.

use super::dequantise::dequantise_rows;
use super::format::Format;
use super::tensor_view::TensorView;

/// Whether all values are zeros, of either sign. This ends at the first row that has another, which is nearly always
/// the first row.
pub fn is_zeros(view: &TensorView) -> bool {
    let bytes = view.bytes();
    match view.format() {
        Format::Bf16 | Format::F16 => bytes.as_chunks::<2>().0.iter().all(|value| u16::from_le_bytes(*value) << 1 == 0),
        Format::F32 => bytes.as_chunks::<4>().0.iter().all(|value| u32::from_le_bytes(*value) << 1 == 0),
        _ => {
            let mut values = vec![0.0; view.cols()];
            (0..view.rows()).all(|row| {
                dequantise_rows(view, row..row + 1, &mut values);
                values.iter().all(|value| *value == 0.0)
            })
        }
    }
}
