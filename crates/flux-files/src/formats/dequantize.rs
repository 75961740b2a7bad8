//! Conversion of tensors in any format to float32.

use std::ops::Range;

use crate::formats::tensor_view::TensorView;

/// Writes rows of a tensor to `out` [rows, cols] in float32.
///
/// Panics if there are no such rows, or `out` has another length.
pub fn dequantize_rows(view: &TensorView, rows: Range<usize>, out: &mut [f32]) {
    dequantize_inlined(&view.row_range(rows), out);
}

/// Converts all rows as [`dequantize_rows`], for a caller that is compiled for the vector unit of its processor.
#[inline(always)]
pub fn dequantize_inlined(view: &TensorView, out: &mut [f32]) {
    assert_eq!(out.len(), view.elements(), "values of rows");
    if out.is_empty() {
        return;
    }
    view.format().decode(view.bytes(), view.scales(), [view.rows(), view.cols()], out);
}

impl TensorView {
    /// Returns all values in float32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        dequantize_rows(self, 0..self.rows(), &mut values);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::e4m3::{self, MULTIPLE};
    use crate::formats::format::Format;
    use crate::formats::scales::{FileSlice, Scales};
    use crate::testing::view;

    fn f32s(values: &[f32]) -> TensorView {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        view(bytes, Format::F32, &[values.len()], Scales::None)
    }

    #[test]
    fn floats_are_widened_exactly() {
        // 1, -1.5, the smallest positive value, infinity.
        let bf16 = [0x3f80u16, 0xbfc0, 0x0001, 0x7f80].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let expected = [1.0, -1.5, f32::from_bits(1 << 16), f32::INFINITY];
        assert_eq!(view(bf16, Format::Bf16, &[2, 2], Scales::None).to_f32(), expected);
        let f16 = [0x3c00u16, 0xbe00, 0x0001, 0x7c00].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(view(f16, Format::F16, &[4], Scales::None).to_f32(), [1.0, -1.5, 2f32.powi(-24), f32::INFINITY]);
        assert_eq!(f32s(&[1.0, f32::MIN_POSITIVE / 2.0]).to_f32(), [1.0, f32::MIN_POSITIVE / 2.0]);
    }

    #[test]
    fn e4m3_rows_are_their_values_times_the_scale_of_the_row() {
        let scales = [0.1f32, 3.0, 1e-3];
        let cols = e4m3::tests::VALUES.len() * 2;
        let row = e4m3::tests::VALUES.iter().flat_map(|(bits, _)| [*bits, bits | 0x80]);
        // Each row ends with padding, which belongs to no value.
        let row: Vec<u8> = row.chain([0x38; 16]).take(cols.next_multiple_of(MULTIPLE)).collect();
        let rows: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scales_of_rows = Scales::Rows(Box::new(FileSlice::owned(rows)));
        let view = view(row.repeat(3), Format::E4m3Rows, &[3, cols], scales_of_rows);
        let of_row = |scale: &f32| {
            let scale = *scale;
            e4m3::tests::VALUES.into_iter().flat_map(move |(_, value)| [value * scale, -value * scale])
        };
        let expected: Vec<f32> = scales.iter().flat_map(of_row).collect();
        assert_eq!(view.to_f32(), expected);
        assert_eq!(view.row_range(1..3).to_f32(), expected[cols..]);
        let mut out = vec![0.0; cols];
        dequantize_rows(&view, 2..3, &mut out);
        assert_eq!(out, expected[2 * cols..]);
        dequantize_rows(&view, 2..2, &mut []);
    }
}
