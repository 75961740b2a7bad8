//! The values that a tensor of any format stands for.

use std::ops::Range;

use half::{bf16, f16};

use super::e4m3;
use super::format::Format;
use super::tensor_view::TensorView;

/// Writes some rows of a tensor to `out` [rows, cols] in float32, exactly. This is the definition of each [`Format`].
pub fn dequantise_rows(view: &TensorView, rows: Range<usize>, out: &mut [f32]) {
    let some = view.row_range(rows);
    assert_eq!(out.len(), some.elements(), "values of rows");
    let bytes = some.bytes();
    match some.format() {
        Format::Bf16 => each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        Format::F16 => each(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Format::F32 => each(bytes, out, f32::from_le_bytes),
        Format::E4m3Rows => dequantise_e4m3(&some, out),
    }
}

/// Converts values of `N` bytes each, one by one.
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (values, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(values).for_each(|(out, bytes)| *out = value(*bytes));
}

fn dequantise_e4m3(view: &TensorView, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let scales = view.scales().expect("a view of this format has scales").to_f32();
    let rows = out.chunks_exact_mut(view.cols()).zip(view.bytes().chunks_exact(view.row_bytes()));
    for ((out, row), scale) in rows.zip(scales) {
        out.iter_mut().zip(row).for_each(|(out, bits)| *out = e4m3::to_f32(*bits) * scale);
    }
}

impl TensorView {
    /// All values in float32, exactly.
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
    use super::super::e4m3::MULTIPLE;
    use super::*;

    fn view(bytes: Vec<u8>, format: Format, shape: &[usize], scales: Option<TensorView>) -> TensorView {
        let range = 0..bytes.len();
        TensorView::new(Arc::new(Bytes::Embedded(bytes.leak())), range, format, shape.to_vec(), scales).unwrap()
    }

    fn f32s(values: &[f32]) -> TensorView {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        view(bytes, Format::F32, &[values.len()], None)
    }

    #[test]
    fn floats_are_widened_exactly() {
        // 1, -1.5, the least positive value, infinity.
        let bf16 = [0x3f80u16, 0xbfc0, 0x0001, 0x7f80].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let expected = [1.0, -1.5, f32::from_bits(1 << 16), f32::INFINITY];
        assert_eq!(view(bf16, Format::Bf16, &[2, 2], None).to_f32(), expected);
        let f16 = [0x3c00u16, 0xbe00, 0x0001, 0x7c00].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(view(f16, Format::F16, &[4], None).to_f32(), [1.0, -1.5, 2f32.powi(-24), f32::INFINITY]);
        assert_eq!(f32s(&[1.0, f32::MIN_POSITIVE / 2.0]).to_f32(), [1.0, f32::MIN_POSITIVE / 2.0]);
    }

    #[test]
    fn e4m3_rows_are_their_values_times_the_scale_of_the_row() {
        let scales = [0.1f32, 3.0, 1e-3];
        let cols = e4m3::tests::VALUES.len() * 2;
        let row = e4m3::tests::VALUES.iter().flat_map(|(bits, _)| [*bits, bits | 0x80]);
        // Each row ends with padding, which is none of its values.
        let row: Vec<u8> = row.chain([0x38; 16]).take(cols.next_multiple_of(MULTIPLE)).collect();
        let view = view(row.repeat(3), Format::E4m3Rows, &[3, cols], Some(f32s(&scales)));
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
