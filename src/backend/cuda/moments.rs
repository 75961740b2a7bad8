//! Means and variances of a tensor's columns in pieces, which an op leaves for a group norm that may follow.
//!
//! They stay with the memory whose cells they are of, and these cells are not written as long as they do: see
//! [`Tensor::with_moments`] and [`Tensor::without_moments`].

use super::pool::{Buffer, Kind};
use super::{Cuda, Tensor};
use crate::error::Result;

/// Of each column and each of some splits of the rows: mean, and sum of squares about it; and the number of rows of
/// each split.
pub struct Moments {
    /// [splits, columns] pairs, then [splits].
    buffer: Buffer,
    splits: usize,
    columns: usize,
}

impl Moments {
    /// Room for them, not initialised.
    pub fn new(cuda: &Cuda, splits: usize, columns: usize) -> Result<Self> {
        Ok(Self { buffer: Buffer::new(cuda.device(), Kind::F32, (2 * columns + 1) * splits)?, splits, columns })
    }

    /// Splits of the rows.
    pub fn splits(&self) -> usize {
        self.splits
    }

    /// Device address of `float2 [splits, columns]`: (mean, sum of squares about it).
    pub fn partial(&self) -> u64 {
        self.buffer.address()
    }

    /// Device address of `float [splits]`: rows of each split, which may be none.
    pub fn counts(&self) -> u64 {
        self.buffer.address() + (2 * self.columns * self.splits * Kind::F32.size()) as u64
    }
}

/// Which cells of a buffer moments are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cells {
    offset: usize,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl Cells {
    fn of(x: &Tensor<Cuda>) -> Self {
        Self { offset: x.offset(), rows: x.rows(), cols: x.cols(), stride: x.stride() }
    }
}

impl Tensor<Cuda> {
    /// This tensor, from now on only to read, with the moments of its columns: no op finds moments of cells that were
    /// written since. Where other cells of its buffer have some already, it stays as it is.
    pub(super) fn with_moments(self, moments: Moments) -> Self {
        if self.buffer().keep_moments(Cells::of(&self), moments) { self.read_only() } else { self }
    }

    /// This tensor, to write over again where nobody shares its memory: moments of what was there are forgotten.
    pub(super) fn without_moments(self) -> Self {
        self.reclaim(Buffer::forget_moments)
    }

    /// The moments of exactly these cells, where the op that wrote them left any.
    pub(super) fn moments(&self) -> Option<&Moments> {
        self.buffer().moments(Cells::of(self))
    }
}
