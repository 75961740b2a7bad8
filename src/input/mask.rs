//! Masks: white is drawn anew, black is kept, and grey is mixed.

use std::path::Path;

use super::area;
use super::decoded::Decoded;
use super::mask_file::{Meaning, brightness, meaning};
use super::read::{decode, decode_file};
use super::region::Region;
use super::size::CELL;
use crate::error::Result;
use crate::rgb::Rgb;

/// A mask in the size of its file, upright.
#[derive(Debug, Clone)]
pub struct Mask {
    grey: Grey,
    notes: Vec<String>,
}

/// A mask in a size in which it is used: `bytes` is [height, width], from 0 (keep) to 255 (draw anew).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grey {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Top row first.
    pub bytes: Vec<u8>,
}

/// An image as a mask: what counts is how bright it is.
impl From<Rgb> for Mask {
    fn from(image: Rgb) -> Self {
        Self::from(Grey { width: image.width, height: image.height, bytes: brightness(&image.bytes) })
    }
}

impl From<Grey> for Mask {
    fn from(grey: Grey) -> Self {
        Self { grey, notes: Vec::new() }
    }
}

impl Mask {
    /// Reads a mask. Any image will do; what counts is how bright it is, or where it has one colour, how opaque.
    ///
    /// Errors as [`read`](super::read()), and when its colours and its alpha say different things.
    pub fn read(path: &Path) -> Result<Self> {
        decode_file(path).and_then(meaning).map(Self::of).map_err(|e| e.at_path(path))
    }

    /// Reads a mask from the bytes of its file. Errors as [`Mask::read`].
    pub fn read_bytes(bytes: &[u8]) -> Result<Self> {
        decode(bytes).and_then(meaning).map(Self::of)
    }

    /// Reads a mask whose transparent pixels are drawn anew, as OpenAI has it. None where the file is opaque all over,
    /// or has no alpha.
    ///
    /// Errors as [`read`](super::read()).
    pub fn read_transparent(bytes: &[u8]) -> Result<Option<Self>> {
        let Decoded { rgb, alpha, .. } = decode(bytes)?;
        let grey = |alpha: Vec<u8>| Grey {
            width: rgb.width,
            height: rgb.height,
            bytes: alpha.iter().map(|alpha| 255 - alpha).collect(),
        };
        Ok(alpha.map(grey).map(Self::from))
    }

    fn of(([width, height], bytes, notes): Meaning) -> Self {
        Self { grey: Grey { width, height, bytes }, notes }
    }

    /// What someone should know of how the file was read, and of a mask that selects nothing or everything.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The mask's own size.
    pub fn size(&self) -> [usize; 2] {
        [self.grey.width, self.grey.height]
    }

    /// The mask in another size.
    pub fn grey(&self, size: [usize; 2]) -> Grey {
        self.grey.resized(size)
    }
}

impl Grey {
    /// In another size: each pixel is the mean of what lies under it.
    pub(super) fn resized(&self, size: [usize; 2]) -> Self {
        let bytes = area::resize(&self.bytes, [self.width, self.height], size);
        Self { width: size[0], height: size[1], bytes }
    }

    /// A region of it.
    pub(super) fn cut(&self, region: Region) -> Self {
        Self { width: region.width, height: region.height, bytes: region.cut(&self.bytes, self.width, 1) }
    }

    /// What the sampler takes: for each cell of 16 x 16 pixels, row by row, 1 when some of it is not black, which draws
    /// it anew, and else 0. Both sides must be multiples of 16.
    ///
    /// The reference looks at the four pixels in the middle of each cell, and loses what is small or lies in between.
    pub fn cells(&self) -> Vec<f32> {
        let columns = self.width / CELL;
        let mut cells = vec![0.0; columns * (self.height / CELL)];
        for (y, row) in self.bytes.chunks_exact(self.width).enumerate() {
            for (x, part) in row.chunks_exact(CELL).enumerate() {
                if part.iter().any(|value| *value > 0) {
                    cells[y / CELL * columns + x] = 1.0;
                }
            }
        }
        cells
    }
}
