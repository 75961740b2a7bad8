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
    /// How opaque each of them is, where they differ in it.
    pub alpha: Option<Vec<u8>>,
    /// How they are turned upright.
    pub orientation: Orientation,
    pub form: Form,
}

/// What else of a file tells how a mask is meant.
#[derive(Default)]
pub(super) struct Form {
    /// Whether its format leaves noise beside edges.
    pub lossy: bool,
    /// The first two colours of its palette.
    pub palette: Option<[[u8; 3]; 2]>,
    /// The pixels by the low bytes of 16 bits, where the high ones are all 0.
    pub low: Option<Vec<u8>>,
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

/// [pixels, 4] as red, green and blue, and alpha where pixels differ in it.
pub(super) fn split_alpha(mut bytes: Vec<u8>) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    let alpha = varying(&bytes, 4)?;
    let pixels = bytes.len() / 4;
    for pixel in 1..pixels {
        bytes.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
    }
    bytes.truncate(3 * pixels);
    Ok((bytes, alpha))
}

/// The last of `count` samples of each pixel, where they differ.
pub(super) fn varying(bytes: &[u8], count: usize) -> Result<Option<Vec<u8>>> {
    let alpha = || bytes.chunks_exact(count).map(|pixel| pixel[count - 1]);
    let first = alpha().next();
    if alpha().all(|value| Some(value) == first) {
        return Ok(None);
    }
    let mut out = samples(bytes.len() / count)?;
    out.iter_mut().zip(alpha()).for_each(|(out, value)| *out = value);
    Ok(Some(out))
}

/// How the image is turned upright, by its EXIF.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    // Some writers keep the name that the data has in a JPEG.
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}
