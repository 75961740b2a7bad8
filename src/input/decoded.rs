//! What the decoders of all formats share: their bounds, their errors, and what they return.

use image::metadata::Orientation;

use crate::error::{Error, Result};
use crate::rgb::Rgb;

/// The longest side of an image that is read, in pixels.
const MAX_SIDE: usize = 16384;

/// The most pixels of an image that is read, as 16384 x 8192.
const MAX_PIXELS: usize = 1 << 27;

/// The most bytes that one chunk beside the pixels may take, such as EXIF.
pub(super) const MAX_CHUNK_BYTES: usize = 16 << 20;

/// What to do about a file that is none of the formats, or is damaged.
pub(super) const CONVERT: &str = "is the file whole? another program may still read it: \
                                  `magick IN PNG24:OUT.png` converts it";

/// What a decoder of one format makes of a file.
pub(super) struct Decoded {
    /// The pixels as they lie in the file.
    pub rgb: Rgb,
    /// How they are turned upright.
    pub orientation: Orientation,
    /// Whether the file has a palette, or one bit for each pixel.
    pub indexed: bool,
}

/// Errors when an image of this size is not read.
pub(super) fn expect_size(width: usize, height: usize) -> Result<()> {
    let what = match (width, height) {
        (0, _) | (_, 0) => "at least one pixel",
        _ if width.max(height) > MAX_SIDE => "at most 16384x16384",
        _ if width * height > MAX_PIXELS => "at most 134217728 pixels, as 16384x8192",
        _ => return Ok(()),
    };
    Err(Error::new(format!("the image is {width}x{height}, expected {what}"))
        .hint("scale it to a size in between with another program"))
}

/// Zeros for the samples of an image.
///
/// Errors when there is no memory for them.
pub(super) fn samples(count: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count).map_err(|_| {
        Error::new(format!("there is no memory for the {} MiB of the decoded image", count >> 20))
            .hint("scale it down, or give the program more memory")
    })?;
    bytes.resize(count, 0);
    Ok(bytes)
}

/// A file that ends before its image does.
pub(super) fn cut_off(format: &str) -> Error {
    Error::new(format!("cannot read the {format}: the file is cut off")).hint("make the image again, or copy it again")
}

/// Drops the alpha of [pixels, 4].
pub(super) fn without_alpha(mut bytes: Vec<u8>) -> Vec<u8> {
    let pixels = bytes.len() / 4;
    for pixel in 1..pixels {
        bytes.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
    }
    bytes.truncate(3 * pixels);
    bytes
}

/// How the image is turned upright, by its EXIF.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    // Some writers keep the name that the data has in a JPEG.
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}
