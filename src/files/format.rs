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
    /// Values that a block stands for.
    pub values: usize,
    /// Bytes that it takes.
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

    /// Bytes of a row of `cols` values, which ends with a whole block; none where no `usize` holds them.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.div_ceil(self.block().values).checked_mul(self.block().bytes)
    }

    /// Bytes of a tensor, without what lies in tensors of their own; none where no `usize` holds them, or the format
    /// has no tensors of so many axes.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        if self.has_row_scales() && shape.len() != 2 {
            return None;
        }
        let (rows, cols) = shape.split_first().map_or((&1, shape), |(rows, cols)| (rows, cols));
        let cols = cols.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis))?;
        // The number of values too, because callers compute with it.
        rows.checked_mul(cols)?;
        rows.checked_mul(self.row_bytes(cols)?)
    }

    /// Whether each row has a float32 scale, in a tensor of its own.
    pub fn has_row_scales(self) -> bool {
        self == Self::E4m3Rows
    }
}

/// Some rows of a tensor in float32, exactly: the definition of each [`Format`]. `out` is dense.
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

/// Values that stand for themselves, of `N` bytes each.
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
