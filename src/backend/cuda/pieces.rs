//! Pieces of tensors that ranks of a group exchange, and the copies between them.

use std::ops::Range;

use super::layout::assert_layout;
use super::{Cuda, Tensor};

/// Bytes that a thread of cuda/exchange.cu copies at once, if all addresses and sizes are aligned to it; otherwise
/// NARROW.
const WIDE: usize = 16;
const NARROW: usize = 2;

/// Rows in the memory of a rank, or of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowChunk {
    address: u64,
    rows: usize,
    cols: usize,
    stride: usize,
    /// Bytes of a value.
    size: usize,
    /// The owner, or the rank that copied it into a staging buffer. Pieces have rank 0 until they are sent.
    rank: usize,
}

impl RowChunk {
    pub fn new(x: &Tensor<Cuda>) -> Self {
        let size = x.buffer().kind().size();
        Self { address: x.address(), rows: x.rows(), cols: x.cols(), stride: x.stride(), size, rank: 0 }
    }

    /// Creates dense rows of values of `size` bytes.
    pub fn dense(address: u64, [rows, cols]: [usize; 2], size: usize) -> Self {
        Self { address, rows, cols, stride: cols, size, rank: 0 }
    }

    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Returns the bytes of the values.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * self.size
    }

    /// Returns dense rows of this shape at another address.
    pub fn at(&self, address: u64) -> Self {
        Self { rank: self.rank, ..Self::dense(address, self.shape(), self.size) }
    }

    /// Sets the sending rank.
    pub fn with_rank(self, rank: usize) -> Self {
        Self { rank, ..self }
    }

    /// Returns some of the rows.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let address = self.address + (range.start * self.stride * self.size) as u64;
        Self { address, rows: range.len(), ..self }
    }

    /// Returns some of the columns.
    pub fn cols(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        Self { address: self.address + (range.start * self.size) as u64, cols: range.len(), ..self }
    }

    /// Returns a copy of these rows to the rows of `to`, of equal shape, which belong to this rank.
    pub fn copy_to(self, to: Self) -> RowCopy {
        assert_eq!((self.shape(), self.size), (to.shape(), to.size), "copies keep their shape");
        RowCopy::new(self, to)
    }
}

/// As `Copy` in cuda/exchange.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowCopy {
    from: u64,
    to: u64,
    from_stride: u64,
    to_stride: u64,
    rows: u32,
    units: u32,
    unit: u32,
    /// The rank of the source.
    rank: u32,
}

assert_layout! { RowCopy: 48, from: 0, to: 8, from_stride: 16, to_stride: 24, rows: 32, units: 36, unit: 40,
rank: 44 }

impl RowCopy {
    fn new(from: RowChunk, to: RowChunk) -> Self {
        let row_bytes = from.cols * from.size;
        let strides = [from.stride * from.size, to.stride * to.size];
        let dense = strides == [row_bytes; 2];
        // Rows without gaps are one long row.
        let (rows, row_bytes) = if dense { (from.rows.min(1), from.rows * row_bytes) } else { (from.rows, row_bytes) };
        let aligned = |bytes: usize| bytes.is_multiple_of(WIDE);
        let wide = [from.address, to.address].iter().all(|address| aligned(*address as usize))
            && aligned(row_bytes)
            && (rows <= 1 || strides.into_iter().all(aligned));
        let unit = if wide { WIDE } else { NARROW };
        Self {
            from: from.address,
            to: to.address,
            from_stride: strides[0] as u64,
            to_stride: strides[1] as u64,
            // A tensor has fewer than 2^31 values, of at least two bytes.
            rows: rows as u32,
            units: (row_bytes / unit) as u32,
            unit: unit as u32,
            // A group has few ranks.
            rank: from.rank as u32,
        }
    }

    /// Returns the rank of the source.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    pub fn units(&self) -> usize {
        self.rows as usize * self.units as usize
    }
}

/// Simulation of launchers on host memory.
#[cfg(test)]
pub mod on_host {
    use std::ops::Range;

    use super::{RowChunk, RowCopy};

    /// [rows, cols] values, with others between the rows.
    pub struct Matrix {
        /// In cells, because copies write through a pointer.
        cells: Box<[std::cell::UnsafeCell<u16>]>,
        cols: usize,
        stride: usize,
    }

    impl Matrix {
        fn new(values: impl Iterator<Item = u16>, cols: usize, stride: usize) -> Self {
            Self { cells: values.map(std::cell::UnsafeCell::new).collect(), cols, stride }
        }

        pub fn zeros(rows: usize, cols: usize) -> Self {
            Self::new((0..rows * cols).map(|_| 0), cols, cols)
        }

        /// Creates a matrix of distinct values, as far as the type has enough.
        pub fn counting(rows: usize, cols: usize, from: usize) -> Self {
            Self::new((0..rows * cols).map(|i| (from + i + 1) as u16), cols, cols)
        }

        fn rows(&self) -> usize {
            self.cells.len() / self.stride
        }

        fn row(&self, row: usize, cols: Range<usize>) -> impl Iterator<Item = u16> {
            // SAFETY: nothing writes while values are read.
            self.cells[row * self.stride..][cols].iter().map(|cell| unsafe { *cell.get() })
        }

        pub fn columns(&self, cols: Range<usize>) -> Vec<u16> {
            (0..self.rows()).flat_map(|row| self.row(row, cols.clone())).collect()
        }

        pub fn values(&self) -> Vec<u16> {
            self.columns(0..self.cols)
        }

        /// Returns a copy of some rows, with `beside` more values after each.
        pub fn select(&self, rows: impl IntoIterator<Item = usize>, beside: usize) -> Self {
            let row = |row: usize| self.row(row, 0..self.cols).chain((0..beside).map(|_| u16::MAX)).collect::<Vec<_>>();
            Self::new(rows.into_iter().flat_map(row), self.cols, self.cols + beside)
        }

        pub fn address(&self) -> u64 {
            self.cells.as_ptr() as u64
        }

        pub fn piece(&self) -> RowChunk {
            RowChunk {
                address: self.address(),
                rows: self.rows(),
                cols: self.cols,
                stride: self.stride,
                size: 2,
                rank: 0,
            }
        }
    }

    impl RowCopy {
        /// Runs the copy as the kernel does.
        pub fn run_on_host(&self) {
            for at in 0..u64::from(self.rows) * u64::from(self.units) {
                let (row, unit) = (at / u64::from(self.units), at % u64::from(self.units));
                let from = (self.from + row * self.from_stride + unit * u64::from(self.unit)) as *const u8;
                let to = (self.to + row * self.to_stride + unit * u64::from(self.unit)) as *mut u8;
                // SAFETY: the copy is between pieces of two live matrices, whose cells may be written.
                unsafe { std::ptr::copy_nonoverlapping(from, to, self.unit as usize) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_gaps_are_one_and_what_is_not_aligned_goes_in_small_units() {
        let dense = |address: u64, shape: [usize; 2]| RowChunk::dense(address, shape, 2);
        let copy = dense(256, [5, 24]).copy_to(dense(512, [5, 24]));
        assert_eq!((copy.rows, copy.units, copy.unit), (1, 15, 16));
        let wide = dense(256, [5, 48]).cols(8..32);
        let copy = wide.copy_to(dense(512, [5, 24]));
        assert_eq!((copy.from, copy.rows, copy.units, copy.unit, copy.from_stride), (272, 5, 3, 16, 96));
        let odd = dense(256, [5, 48]).cols(3..27).rows(1..4);
        let copy = odd.copy_to(dense(512, [3, 24]));
        assert_eq!((copy.from, copy.rows, copy.units, copy.unit), (256 + 96 + 6, 3, 24, 2));
        assert_eq!(dense(256, [0, 24]).copy_to(dense(512, [0, 24])).units(), 0);
    }
}
