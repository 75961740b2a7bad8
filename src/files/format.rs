//! How the values of a tensor lie in a file, and what they are.

use std::ops::Range;

use half::{bf16, f16};

use super::e4m3::{self, MULTIPLE};
use super::tensor_view::TensorView;

/// How the values of a tensor lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
    /// A matrix of e4m3 values with a float32 scale for each row, as [`e4m3::quantise_row`] makes them. Rows are padded
    /// with zeros to a multiple of [`MULTIPLE`], and the scales are a tensor of their own.
    E4m3Rows,
}

/// The smallest part of a row that has whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Number of values in a block.
    pub values: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

impl Format {
    /// The formats of plain floats.
    pub const FLOATS: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// The smallest part of a row that has whole bytes.
    pub fn block(self) -> Block {
        match self {
            Self::Bf16 | Self::F16 => Block { values: 1, bytes: 2 },
            Self::F32 => Block { values: 1, bytes: 4 },
            Self::E4m3Rows => Block { values: MULTIPLE, bytes: MULTIPLE },
        }
    }

    /// Bytes of a row of `cols` values, which ends with a whole block; none on overflow.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.div_ceil(self.block().values).checked_mul(self.block().bytes)
    }

    /// Bytes of a tensor without its scales; none on overflow, or where the format has no tensors with so many axes.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        if self.has_row_scales() && shape.len() != 2 {
            return None;
        }
        let (rows, cols) = shape.split_first().map_or((&1, shape), |(rows, cols)| (rows, cols));
        let cols = cols.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis))?;
        // The number of values is checked too, because callers compute with it.
        rows.checked_mul(cols)?;
        rows.checked_mul(self.row_bytes(cols)?)
    }

    /// Whether each row has a float32 scale, in a tensor of its own.
    pub fn has_row_scales(self) -> bool {
        self == Self::E4m3Rows
    }
}

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::bytes::Bytes;
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

    #[test]
    fn rows_have_whole_blocks() {
        assert_eq!([0, 1, 3].map(|cols| Format::Bf16.row_bytes(cols)), [Some(0), Some(2), Some(6)]);
        assert_eq!([0, 1, 16, 17].map(|cols| Format::E4m3Rows.row_bytes(cols)), [0, 16, 16, 32].map(Some));
        assert_eq!(Format::F32.bytes(&[]), Some(4), "a scalar");
        assert_eq!((Format::F16.bytes(&[2, 3, 4]), Format::E4m3Rows.bytes(&[5, 20])), (Some(48), Some(160)));
        assert_eq!(["", "1", "123"].map(|axes| Format::E4m3Rows.bytes(&vec![2; axes.len()])), [None; 3], "no matrix");
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        const LARGE: usize = 1 << (usize::BITS - 1);
        assert_eq!([Format::Bf16, Format::F32].map(|format| format.row_bytes(LARGE)), [None; 2]);
        assert_eq!(Format::E4m3Rows.row_bytes(usize::MAX), None);
        for shape in [&[LARGE, 2][..], &[2, LARGE], &[1, LARGE, 4], &[0, LARGE, 2], &[LARGE, 1]] {
            assert_eq!(Format::Bf16.bytes(shape), None, "{shape:?}");
        }
    }
}
