//! Masks: white is drawn anew, black is kept.

use std::io::Read;
use std::path::Path;

use super::decoded::Decoded;
use super::lanczos;
use super::read::{decode, decode_file, read_stream};
use super::region::Region;
use super::size::CELL;
use crate::error::Result;
use crate::rgb::Rgb;

/// A mask as its file has it, upright.
#[derive(Debug, Clone)]
pub struct Mask {
    image: Rgb,
    /// Whether the file has a palette or one bit for each pixel, and is scaled without values in between.
    indexed: bool,
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
        Self { image, indexed: false }
    }
}

impl Mask {
    /// Reads a mask. Any image will do; what counts is how bright it is, and alpha is ignored. Errors as
    /// [`read`](super::read).
    pub fn read(path: &Path) -> Result<Self> {
        decode_file(path).map(Self::of)
    }

    /// Reads a mask from the bytes of its file. Errors as [`read`](super::read).
    pub fn read_bytes(bytes: &[u8]) -> Result<Self> {
        decode(bytes).map(Self::of)
    }

    /// Reads a mask from a stream such as standard input. Errors as [`read`](super::read).
    pub fn read_from(stream: impl Read) -> Result<Self> {
        Self::read_bytes(&read_stream(stream)?)
    }

    fn of(Decoded { rgb, indexed, .. }: Decoded) -> Self {
        Self { image: rgb, indexed }
    }

    /// The mask of which this is the brightness.
    pub(super) fn from_grey(grey: &Grey) -> Self {
        let bytes = grey.bytes.iter().flat_map(|value| [*value; 3]).collect();
        Self { image: Rgb { width: grey.width, height: grey.height, bytes }, indexed: false }
    }

    /// The mask's own size.
    pub fn size(&self) -> [usize; 2] {
        [self.image.width, self.image.height]
    }

    /// The mask in another size, as brightness. Scaled in colour, as the reference does.
    pub fn grey(&self, size: [usize; 2]) -> Grey {
        let scaled = self.resized(size);
        let bytes = scaled.image.bytes.chunks_exact(3).map(brightness).collect();
        Grey { width: size[0], height: size[1], bytes }
    }

    /// The mask in another size.
    pub(super) fn resized(&self, size: [usize; 2]) -> Self {
        let bytes = if self.indexed {
            nearest(&self.image, size)
        } else {
            lanczos::resize::<3>(&self.image.bytes, self.size(), size)
        };
        Self { image: Rgb { width: size[0], height: size[1], bytes }, indexed: self.indexed }
    }

    /// A region of the mask.
    pub(super) fn cut(&self, region: Region) -> Self {
        Self { image: super::size::cut(&self.image, region), indexed: self.indexed }
    }
}

impl Grey {
    /// What the sampler takes: for each cell of 16 x 16 pixels, row by row, how much of its middle is white. Pixels
    /// count as white from 128 on, and the middle is the four pixels around the center, so the values are quarters from
    /// 0 to 1. Both sides must be multiples of 16.
    ///
    /// Source: the reference shrinks the mask by bilinear interpolation, which reads no other pixels.
    pub fn cells(&self) -> Vec<f32> {
        let white = |x: usize, y: usize| u8::from(self.bytes[y * self.width + x] >= 128);
        let of = |x: usize, y: usize| white(x, y) + white(x + 1, y) + white(x, y + 1) + white(x + 1, y + 1);
        let middle = CELL / 2 - 1;
        let rows = (middle..self.height).step_by(CELL);
        rows.flat_map(|y| (middle..self.width).step_by(CELL).map(move |x| (x, y)))
            .map(|(x, y)| f32::from(of(x, y)) / 4.0)
            .collect()
    }
}

/// The brightness of red, green and blue. Source: ITU-R BT.601, in the whole numbers of Pillow.
fn brightness(pixel: &[u8]) -> u8 {
    let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
    ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16) as u8
}

/// The image in another size, of whose pixels each is one of the image.
fn nearest(image: &Rgb, [width, height]: [usize; 2]) -> Vec<u8> {
    let columns = places(image.width, width);
    let rows = places(image.height, height);
    rows.iter()
        .flat_map(|y| columns.iter().map(move |x| 3 * (y * image.width + x)))
        .flat_map(|at| &image.bytes[at..at + 3])
        .copied()
        .collect()
}

/// For each of `outputs` pixels, which of `inputs` pixels it is.
fn places(inputs: usize, outputs: usize) -> Vec<usize> {
    let scale = inputs as f64 / outputs as f64;
    // Pillow adds up the places, and their rounding decides where two pixels are as near.
    let mut place = scale * 0.5;
    let mut next = || {
        let found = place as usize;
        place += scale;
        found.min(inputs - 1)
    };
    (0..outputs).map(|_| next()).collect()
}
