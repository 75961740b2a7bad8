//! An image in memory, as it is read, drawn and written.

/// An 8-bit RGB image: `bytes` is [height, width, 3].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rgb {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green, blue of every pixel, top row first.
    pub bytes: Vec<u8>,
}
