//! How the values of a tensor lie in a file, and what they are.

use std::fmt;

use super::e4m3::MULTIPLE;

/// How the values of a tensor lie in its own bytes. What else belongs to it, such as a tensor of scales, is in the
/// [`Scales`](super::Scales) of its view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
    /// A matrix of e4m3 values with a float32 scale for each row, as [`quantise_row`](super::e4m3::quantise_row) makes
    /// them. Rows are padded with zeros to a multiple of [`MULTIPLE`], and the scales are a tensor of their own.
    E4m3Rows,
    /// Floats of 4 bits of exponent and 3 of mantissa, without infinities; no scale, one, or one a row.
    E4m3,
    /// Floats of 5 bits of exponent and 2 of mantissa; scales as [`Format::E4m3`].
    E5m2,
    /// e4m3 with a power of two as the scale of each 32 values.
    Mxfp8,
    /// e2m1, two values a byte, the first one in the high half; an e4m3 scale for each 16 values and a float32 for all.
    Nvfp4,
    /// [`Format::Nvfp4`] with the first value in the low half.
    Nvfp4LowFirst,
    /// Signed integers of 8 bits with a scale, or one a row.
    Int8,
    /// [`Format::Int8`] whose groups of columns were multiplied by a Hadamard matrix.
    Int8Rotated {
        /// Columns of a group: a power of 4.
        group: u16,
    },
    /// Indices to a table of 16 values, two a byte, the first one in the high half; a largest magnitude for each block
    /// of the flattened tensor.
    Codebook4,
    /// GGUF: 8 bits and a scale for each 32 values.
    Q8_0,
    /// GGUF: 4 bits and a scale for each 32 values.
    Q4_0,
    /// GGUF: 4 bits, a scale and a least value for each 32 values.
    Q4_1,
    /// GGUF: 5 bits and a scale for each 32 values.
    Q5_0,
    /// GGUF: 5 bits, a scale and a least value for each 32 values.
    Q5_1,
    /// GGUF: 2 bits in blocks of 256 values, whose parts of 16 have a scale and a least value.
    Q2K,
    /// GGUF: 3 bits in blocks of 256 values, whose parts of 16 have a scale.
    Q3K,
    /// GGUF: 4 bits in blocks of 256 values, whose parts of 32 have a scale and a least value.
    Q4K,
    /// GGUF: 5 bits in blocks of 256 values, whose parts of 32 have a scale and a least value.
    Q5K,
    /// GGUF: 6 bits in blocks of 256 values, whose parts of 16 have a scale.
    Q6K,
    /// GGUF: indices of 4 bits to a fixed table, and a scale for each 32 values.
    Iq4Nl,
    /// GGUF: indices of 4 bits to a fixed table, in blocks of 256 values, whose parts of 32 have a scale.
    Iq4Xs,
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

    /// Whether the values are plain floats of 16 or 32 bits.
    pub fn is_float(self) -> bool {
        Self::FLOATS.contains(&self)
    }

    /// The smallest part of a row that has whole bytes.
    pub fn block(self) -> Block {
        let (values, bytes) = match self {
            Self::Bf16 | Self::F16 => (1, 2),
            Self::F32 => (1, 4),
            Self::E4m3Rows => (MULTIPLE, MULTIPLE),
            Self::E4m3 | Self::E5m2 | Self::Int8 => (1, 1),
            Self::Mxfp8 => (32, 32),
            Self::Nvfp4 | Self::Nvfp4LowFirst => (16, 8),
            Self::Int8Rotated { group } => (usize::from(group), usize::from(group)),
            Self::Codebook4 => (2, 1),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Iq4Xs => (256, 136),
        };
        Block { values, bytes }
    }

    /// Bytes of `values` values that follow each other in a row; none on overflow, or where they are no whole blocks.
    /// Only rows of [`Format::E4m3Rows`] are padded.
    pub fn row_bytes(self, values: usize) -> Option<usize> {
        let block = self.block();
        if self != Self::E4m3Rows && !values.is_multiple_of(block.values) {
            return None;
        }
        values.div_ceil(block.values).checked_mul(block.bytes)
    }

    /// Bytes of a tensor without its scales; none on overflow, or where the format has no tensors of this shape.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        // The number of values is checked too, because callers compute with it.
        let product = |axes: &[usize]| axes.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis));
        let (rows, cols) = match shape {
            [] => (1, 1),
            // A vector is one run of values.
            [len] if self != Self::E4m3Rows => (1, *len),
            [rows, cols @ ..] => (*rows, product(cols)?),
        };
        if self == Self::E4m3Rows && shape.len() != 2 {
            return None;
        }
        rows.checked_mul(cols)?;
        rows.checked_mul(self.row_bytes(cols)?)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::E4m3Rows | Self::E4m3 => "fp8 (e4m3)",
            Self::E5m2 => "fp8 (e5m2)",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 | Self::Nvfp4LowFirst => "nvfp4",
            Self::Int8 => "int8",
            Self::Int8Rotated { .. } => "int8 (convrot)",
            Self::Codebook4 => "bitsandbytes 4-bit",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
        };
        f.write_str(name)
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
        assert_eq!([31, 32, 64].map(|cols| Format::Q8_0.bytes(&[2, cols])), [None, Some(68), Some(136)]);
        assert_eq!(Format::Q4K.bytes(&[512]), Some(288), "a vector");
        assert_eq!((Format::Q4_0.bytes(&[]), Format::Codebook4.bytes(&[3, 5])), (None, None));
        assert_eq!(Format::Int8Rotated { group: 64 }.bytes(&[2, 128]), Some(256));
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        const LARGE: usize = 1 << (usize::BITS - 1);
        assert_eq!([Format::Bf16, Format::F32].map(|format| format.row_bytes(LARGE)), [None; 2]);
        assert_eq!(Format::E4m3Rows.row_bytes(usize::MAX), None);
        for shape in [&[LARGE, 2][..], &[2, LARGE], &[1, LARGE, 4], &[0, LARGE, 2], &[LARGE, 1]] {
            assert_eq!(Format::Bf16.bytes(shape), None, "{shape:?}");
        }
        assert_eq!(Format::Codebook4.bytes(&[LARGE, 2]), None);
    }
}
