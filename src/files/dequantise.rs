//! The values that a tensor of any format stands for.

use std::ops::Range;

use super::blocks::micro::FirstNibble;
use super::blocks::{codebook, floats, int8, iq4, k_quants, micro, small};
use super::format::Format;
use super::scales::Scales;
use super::tensor_view::TensorView;

/// Writes some rows of a tensor to `out` [rows, cols] in float32. This is the definition of each [`Format`].
///
/// Panics when there are no such rows, or `out` has another length.
pub fn dequantise_rows(view: &TensorView, rows: Range<usize>, out: &mut [f32]) {
    dequantise_inlined(&view.row_range(rows), out);
}

/// [`dequantise_rows`] of all rows, for a caller that is compiled for the vector unit of its processor.
#[inline(always)]
pub fn dequantise_inlined(view: &TensorView, out: &mut [f32]) {
    assert_eq!(out.len(), view.elements(), "values of rows");
    if out.is_empty() {
        return;
    }
    let (bytes, cols, scales) = (view.bytes(), view.cols(), view.scales());
    match (view.format(), scales) {
        (Format::Bf16, _) => floats::bf16(bytes, out),
        (Format::F16, _) => floats::f16(bytes, out),
        (Format::F32, _) => floats::f32(bytes, out),
        (Format::E4m3Rows | Format::E4m3, _) => floats::e4m3(bytes, bytes.len() / view.rows(), scales, cols, out),
        (Format::E5m2, _) => floats::e5m2(bytes, scales, cols, out),
        (Format::Int8, _) => int8::int8(bytes, scales, cols, out),
        (Format::Int8Rotated { group }, _) => int8::int8_rotated(bytes, scales, cols, usize::from(group), out),
        (Format::Mxfp8, Scales::Blocks(scales)) => micro::mxfp8(bytes, scales, out),
        (Format::Nvfp4, Scales::Blocks(scales)) => micro::nvfp4(bytes, scales, FirstNibble::High, out),
        (Format::Nvfp4LowFirst, Scales::Blocks(scales)) => micro::nvfp4(bytes, scales, FirstNibble::Low, out),
        (Format::Codebook4, Scales::Codebook(book)) => codebook::codebook4(bytes, book, out),
        (Format::Q8_0, _) => small::q8_0(bytes, out),
        (Format::Q4_0, _) => small::q4_0(bytes, out),
        (Format::Q4_1, _) => small::q4_1(bytes, out),
        (Format::Q5_0, _) => small::q5_0(bytes, out),
        (Format::Q5_1, _) => small::q5_1(bytes, out),
        (Format::Q2K, _) => k_quants::q2_k(bytes, out),
        (Format::Q3K, _) => k_quants::q3_k(bytes, out),
        (Format::Q4K, _) => k_quants::q4_k(bytes, out),
        (Format::Q5K, _) => k_quants::q5_k(bytes, out),
        (Format::Q6K, _) => k_quants::q6_k(bytes, out),
        (Format::Iq4Nl, _) => iq4::iq4_nl(bytes, out),
        (Format::Iq4Xs, _) => iq4::iq4_xs(bytes, out),
        (Format::Mxfp8 | Format::Nvfp4 | Format::Nvfp4LowFirst | Format::Codebook4, _) => {
            unreachable!("a view of such a format has these scales")
        }
    }
}

impl TensorView {
    /// All values in float32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        dequantise_rows(self, 0..self.rows(), &mut values);
        values
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::bytes::Bytes;
    use super::super::e4m3::{self, MULTIPLE};
    use super::super::scales::FileSlice;
    use super::*;

    fn view(bytes: Vec<u8>, format: Format, shape: &[usize], scales: Scales) -> TensorView {
        let range = 0..bytes.len();
        TensorView::new(Arc::new(Bytes::Embedded(bytes.leak())), range, format, shape.to_vec(), scales).unwrap()
    }

    fn f32s(values: &[f32]) -> TensorView {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        view(bytes, Format::F32, &[values.len()], Scales::None)
    }

    #[test]
    fn floats_are_widened_exactly() {
        // 1, -1.5, the least positive value, infinity.
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
        // Each row ends with padding, which is none of its values.
        let row: Vec<u8> = row.chain([0x38; 16]).take(cols.next_multiple_of(MULTIPLE)).collect();
        let rows: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let rows = FileSlice::new(Arc::new(Bytes::Embedded(rows.leak())), 0..4 * scales.len()).unwrap();
        let view = view(row.repeat(3), Format::E4m3Rows, &[3, cols], Scales::Rows(Box::new(rows)));
        let of_row = |scale: &f32| {
            let scale = *scale;
            e4m3::tests::VALUES.into_iter().flat_map(move |(_, value)| [value * scale, -value * scale])
        };
        let expected: Vec<f32> = scales.iter().flat_map(of_row).collect();
        assert_eq!(view.to_f32(), expected);
        assert_eq!(view.row_range(1..3).to_f32(), expected[cols..]);
        let mut out = vec![0.0; cols];
        dequantise_rows(&view, 2..3, &mut out);
        assert_eq!(out, expected[2 * cols..]);
        dequantise_rows(&view, 2..2, &mut []);
    }
}
