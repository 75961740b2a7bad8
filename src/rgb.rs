//! An image in memory, as it is read, drawn and written.

use std::hash::{Hash, Hasher};

/// Every so many bytes of an image one is hashed: images that differ elsewhere alone are told apart when they are
/// compared, and all bytes of a megapixel would take a millisecond and more.
const HASHED: usize = 61;

/// An 8-bit RGB image: `bytes` is [height, width, 3].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green, blue of every pixel, top row first.
    pub bytes: Vec<u8>,
}

impl Hash for Rgb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let some: Vec<u8> = self.bytes.iter().step_by(HASHED).copied().collect();
        (self.width, self.height, some).hash(state);
    }
}

impl Rgb {
    /// The mean absolute difference from an image of the same size, in levels, over a cell [column, row] of so many
    /// that both are divided into. None where it has no pixels.
    pub(crate) fn cell_difference(&self, other: &Self, cell: [usize; 2], cells: [usize; 2]) -> Option<f64> {
        let range = |axis: usize, side: usize| cell[axis] * side / cells[axis]..(cell[axis] + 1) * side / cells[axis];
        let (columns, rows) = (range(0, self.width), range(1, self.height));
        let count = 3 * columns.len() * rows.len();
        let of_row = |row: usize| {
            let bytes = 3 * (row * self.width + columns.start)..3 * (row * self.width + columns.end);
            let pairs = self.bytes[bytes.clone()].iter().zip(&other.bytes[bytes]);
            // Of 32 bits the processor adds several at once.
            u64::from(pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum::<u32>())
        };
        (count > 0).then(|| rows.map(of_row).sum::<u64>() as f64 / count as f64)
    }
}
