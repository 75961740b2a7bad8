//! Weights on the GPU, which only products and convolutions take.

use super::buffer::Buffer;
use crate::files::e4m3::MULTIPLE;

/// Rows and columns of bf16 weights are padded with zeros to multiples of this, so that cuBLASLt's fast kernels fit
/// every size.
pub const PADDING: usize = 8;

/// The weight [rows, cols] of a linear layer, row-major: bf16, padded with zeros to multiples of [`PADDING`], or e4m3
/// with a float32 scale for each row, padded to multiples of [`MULTIPLE`].
pub struct Weight {
    buffer: Buffer,
    rows: usize,
    cols: usize,
}

impl Weight {
    /// A matrix that was padded as above.
    pub fn new(buffer: Buffer, rows: usize, cols: usize) -> Self {
        Self { buffer, rows, cols }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn padding(&self) -> usize {
        if self.is_e4m3() { MULTIPLE } else { PADDING }
    }

    /// Values from one row to the next.
    pub fn stride(&self) -> usize {
        self.cols.next_multiple_of(self.padding())
    }

    /// Rows, with those that are zeros.
    pub fn padded_rows(&self) -> usize {
        self.rows.next_multiple_of(self.padding())
    }

    /// Device address of the first value, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// Whether the values are e4m3 with a scale for each row.
    pub fn is_e4m3(&self) -> bool {
        self.buffer.scales() != 0
    }

    /// Device address of the scale of the first row, of e4m3.
    pub fn scales(&self) -> u64 {
        self.buffer.scales()
    }
}

/// The weight of a convolution as a matrix [out, k * k * in], columns ordered (ky, kx, in), bf16, padded as [`Weight`].
pub struct ConvWeight(pub Weight);
