//! How the values of a tensor lie in a file, and what they are.

use super::e4m3::MULTIPLE;

/// How the values of a tensor lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
    /// A matrix of e4m3 values with a float32 scale for each row, as [`quantise_row`](super::e4m3::quantise_row) makes them. Rows are padded
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

#[cfg(test)]
mod tests {
    use super::*;

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
