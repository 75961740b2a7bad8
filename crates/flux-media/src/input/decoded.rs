//! The decoders' shared parts: bounds, errors, and the decoded image.

use image::metadata::Orientation;

use crate::rgb::Rgb;
use flux_base::error::{Error, Field, Result};
use flux_base::memory;

/// Maximum side of an input image, in pixels.
const MAX_SIDE: usize = 16384;

/// Maximum pixels of an input image, as in 16384 x 8192.
const MAX_PIXELS: usize = 1 << 27;

/// Maximum bytes of one metadata chunk, such as EXIF.
pub(super) const MAX_CHUNK_BYTES: usize = 16 << 20;

/// The hint for a file of an unknown format, or a damaged file.
pub(super) const CONVERT: &str = "check that the file is complete, or convert it with another program: \
                                  `magick IN PNG24:OUT.png`";

/// A decoded image file.
pub(super) struct Decoded {
    /// The pixels in the orientation of the file.
    pub rgb: Rgb,
    /// The alpha of each pixel, if it is not the same for all pixels.
    pub alpha: Option<Vec<u8>>,
    /// The transformation that turns the pixels upright.
    pub orientation: Orientation,
    pub form: Form,
}

/// Properties of the file that decide how a mask is read.
#[derive(Default)]
pub(super) struct Form {
    /// `true` if the format leaves noise next to edges.
    pub lossy: bool,
    /// The first two colours of its palette.
    pub palette: Option<[[u8; 3]; 2]>,
    /// The pixels by the low bytes of 16-bit samples, if all high bytes are 0.
    pub low: Option<Vec<u8>>,
}

/// Errors if images of this size are not supported.
pub(super) fn expect_size(width: usize, height: usize) -> Result<()> {
    limit(width, height).map_or(Ok(()), |expected| {
        let what = format!("the image is {width}x{height}, expected {expected}");
        Err(Error::new(what).hint("scale it with another program"))
    })
}

/// Errors if a field requests an image of a size that is not supported.
pub(super) fn expect_requested_size([width, height]: [usize; 2], field: Field) -> Result<()> {
    limit(width, height).map_or(Ok(()), |expected| {
        let what = format!("the image would be {width}x{height}, expected {expected}");
        Err(Error::usage(what).for_field(field).hint("request fewer pixels"))
    })
}

/// Returns the limit that an image of this size exceeds.
fn limit(width: usize, height: usize) -> Option<&'static str> {
    match (width, height) {
        (0, _) | (_, 0) => Some("at least one pixel"),
        _ if width.max(height) > MAX_SIDE => Some("at most 16384x16384"),
        _ if width * height > MAX_PIXELS => Some("at most 134217728 pixels, such as 16384x8192"),
        _ => None,
    }
}

/// Allocates zeros for the samples of an image.
///
/// Errors if there is no memory for them.
pub(super) fn samples(count: usize) -> Result<Vec<u8>> {
    memory::vector(0, count)
}

/// The error for a file that ends before its image does.
pub(super) fn cut_off(format: &str) -> Error {
    Error::new(format!("cannot read the {format}: the file is cut off")).hint("create or copy the file again")
}

/// Splits [pixels, 4] into red, green and blue, and alpha if it is not the same for all pixels.
pub(super) fn split_alpha(mut bytes: Vec<u8>) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    let alpha = varying(&bytes, 4)?;
    let pixels = bytes.len() / 4;
    for pixel in 1..pixels {
        bytes.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
    }
    bytes.truncate(3 * pixels);
    Ok((bytes, alpha))
}

/// Returns the last of `count` samples of each pixel, unless all are equal.
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

/// Returns the transformation that turns the image upright, by its EXIF.
pub(super) fn orientation(exif: &[u8]) -> Orientation {
    // Some programs keep the prefix that the data has in a JPEG.
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}
