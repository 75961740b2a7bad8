//! Checks and masks of images that clients send, before they are decoded for the model.

use std::path::Path;

use flux::engine::EmbeddedFiles;
use flux::input::{self, Mask};
use flux::memory;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use crate::http::error::{ApiError, Result};
use crate::jobs::admission::{Estimate, Preparation};

/// The name of the mask among the files of a request.
pub const NAME: &str = "mask.png";

/// Max pixels and max side of an uploaded image.
const MAX_PIXELS: usize = 64 << 20;
const MAX_SIDE: usize = 16 << 10;

/// Errors if an image is too large to decode, or is not an image.
pub fn check(bytes: &[u8], param: &'static str) -> Result<()> {
    let wrong = |message| ApiError::bad("invalid_image", message).with_param(param);
    let [width, height] = input::file_size(bytes).map_err(|e| wrong(e.what().to_string()))?;
    if width.max(height) > MAX_SIDE || width.saturating_mul(height) > MAX_PIXELS {
        return Err(wrong(format!("the image is {width}x{height}, expected at most {MAX_PIXELS} pixels")));
    }
    Ok(())
}

/// Returns the work of reading the mask among the files of a request.
///
/// Errors if the mask is too large, or is not an image.
pub fn prepare(bytes: &[u8]) -> Result<Preparation> {
    check(bytes, "mask")?;
    let decode = Estimate::decode(input::file_size(bytes).unwrap_or_default());
    // The mask is decoded to look for transparency, decoded again if there is none, and encoded.
    let estimate = decode + decode + Estimate::scale(decode.decoded.saturating_mul(2));
    let work = Box::new(move |files: &mut EmbeddedFiles, _: &CancelFlag| {
        if let Some(mask) = files.get_mut(Path::new(NAME)) {
            *mask = read(mask)?;
        }
        Ok(())
    });
    Ok(Preparation { estimate, work })
}

/// Converts a mask to the engine's form: an image file that is white in the area to regenerate. In the upload, this
/// area is transparent, or white if the image has no transparency. A mask of another size is stretched to the image.
///
/// Errors if the mask cannot be read.
pub fn read(bytes: &[u8]) -> Result<Vec<u8>> {
    check(bytes, "mask")?;
    match Mask::read_transparent(bytes).map_err(|e| wrong(&e))? {
        Some(mask) => file_of(&mask),
        None => Mask::read_bytes(bytes).map(|_| bytes.to_vec()).map_err(|e| wrong(&e)),
    }
}

/// Returns a note if the mask and the image `first` differ in size, according to their headers. Either orientation
/// fits, since photos may be rotated.
pub fn size_note(mask: &[u8], first: &[u8]) -> Option<String> {
    let [width, height] = input::file_size(mask).ok()?;
    let image = input::file_size(first).ok()?;
    let fits = [[width, height], [height, width]].contains(&image);
    (!fits).then(|| format!("the mask of {width}x{height} is scaled to the image of {}x{}", image[0], image[1]))
}

fn wrong(error: &flux::Error) -> ApiError {
    ApiError::image(error, "mask")
}

/// Encodes a mask as a file.
fn file_of(mask: &Mask) -> Result<Vec<u8>> {
    let [width, height] = mask.size();
    let _reserved = memory::reserve(6 * width * height)?;
    let grey = mask.grey([width, height]).bytes;
    let rgb = Rgb { width, height, bytes: grey.into_iter().flat_map(|value| [value; 3]).collect() };
    encode(&rgb, ImageFormat::Png, &Metadata::default()).map_err(|e| wrong(&e))
}
