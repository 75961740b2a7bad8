//! Masks: white is regenerated, black is kept, and grey is mixed.

use std::path::Path;

use super::area;
use super::decoded::Decoded;
use super::mask_file::{Meaning, brightness, meaning};
use super::read::{decode, decode_file};
use super::region::Region;
use super::size::CELL;
use crate::rgb::Rgb;
use flux_base::error::Result;

/// A mask in the size of its file, upright.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    grey: Grey,
    notes: Vec<String>,
}

/// A mask in the size in which it is used: `bytes` is [height, width], from 0 (keep) to 255 (regenerate).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grey {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Values, top row first.
    pub bytes: Vec<u8>,
}

/// Reads the brightness of an image as a mask.
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
    /// Reads a mask from any image: by its brightness, or by its alpha if it has one colour.
    ///
    /// Errors as [`read`](super::read()), and if colours and alpha contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        decode_file(path).and_then(meaning).map(Self::from_meaning).map_err(|e| e.at_path(path))
    }

    /// Reads a mask from the bytes of its file. Errors as [`Mask::read`].
    pub fn read_bytes(bytes: &[u8]) -> Result<Self> {
        decode(bytes).and_then(meaning).map(Self::from_meaning)
    }

    /// Reads a mask whose transparent pixels are regenerated, as in OpenAI's API. `None` if the file is fully opaque,
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

    fn from_meaning(([width, height], bytes, notes): Meaning) -> Self {
        Self { grey: Grey { width, height, bytes }, notes }
    }

    /// Returns notes on how the file was read, and on a mask that selects nothing or everything.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the mask's own size.
    pub fn size(&self) -> [usize; 2] {
        [self.grey.width, self.grey.height]
    }

    /// Returns the part of the mask that covers a region of an image of this size.
    pub fn cut(&self, size: [usize; 2], region: Region) -> Self {
        if region == Region::all(size[0], size[1]) {
            return self.clone();
        }
        Self { grey: self.grey.resized(size).cut(region), notes: self.notes.clone() }
    }

    /// Returns the mask in another size.
    pub fn grey(&self, size: [usize; 2]) -> Grey {
        self.grey.resized(size)
    }
}

impl Grey {
    /// Resizes the mask: each pixel is the mean of the area below it.
    pub(super) fn resized(&self, size: [usize; 2]) -> Self {
        let bytes = area::resize(&self.bytes, [self.width, self.height], size);
        Self { width: size[0], height: size[1], bytes }
    }

    /// Cuts out a region.
    pub(super) fn cut(&self, region: Region) -> Self {
        Self { width: region.width, height: region.height, bytes: region.cut(&self.bytes, self.width, 1) }
    }

    /// Returns the mask of the sampler: 1 for each cell of 16 x 16 pixels with a pixel that is not black, which
    /// regenerates the cell, else 0, row by row. Both sides must be multiples of 16.
    ///
    /// The reference reads only the four pixels in the middle of each cell, so it misses small details between them.
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
