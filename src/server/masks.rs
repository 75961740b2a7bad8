//! Images that clients send, before they are decoded for the model.

use flux::input::{self, Mask};
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;

use super::error::{ApiError, Result};

/// The most pixels of an image that is sent, and the longest side.
const MOST_PIXELS: usize = 64 << 20;
const MOST_SIDE: usize = 16 << 10;

/// Errors when an image is too large to be decoded, or none.
pub fn check(bytes: &[u8], param: &'static str) -> Result<()> {
    let wrong = |message| ApiError::bad("invalid_image", message).of(param);
    let [width, height] = input::file_size(bytes).map_err(|e| wrong(e.what().to_string()))?;
    if width.max(height) > MOST_SIDE || width.saturating_mul(height) > MOST_PIXELS {
        return Err(wrong(format!("the image is of {width}x{height}, expected at most {MOST_PIXELS} pixels")));
    }
    Ok(())
}

/// A mask as the engine reads it: the file of an image that is white where `first` is drawn anew. What is sent is
/// transparent there, or white where it is opaque all over.
///
/// Errors when it cannot be read, or has not the size of `first`.
pub fn read(bytes: &[u8], first: &[u8]) -> Result<Vec<u8>> {
    check(bytes, "mask")?;
    match Mask::read_transparent(bytes).map_err(|e| wrong(&e))? {
        Some(mask) => check_size(&mask, first).and_then(|()| file_of(&mask, false)),
        None => read_white(bytes, first, false),
    }
}

/// A mask that is white where `first` is drawn anew, or where it stays.
///
/// Errors as [`read`].
pub fn read_white(bytes: &[u8], first: &[u8], inverts: bool) -> Result<Vec<u8>> {
    check(bytes, "mask")?;
    let mask = Mask::read_bytes(bytes).map_err(|e| wrong(&e))?;
    check_size(&mask, first)?;
    if inverts { file_of(&mask, true) } else { Ok(bytes.to_vec()) }
}

fn wrong(error: &flux::Error) -> ApiError {
    ApiError::bad("invalid_image", error.what()).of("mask")
}

fn check_size(mask: &Mask, first: &[u8]) -> Result<()> {
    let image = input::read_bytes(first).map_err(|e| ApiError::bad("invalid_image", e.what()).of("image"))?;
    let [width, height] = mask.size();
    if [width, height] == [image.width, image.height] {
        return Ok(());
    }
    let message = format!("the mask is of {width}x{height}, expected {}x{}, as the image", image.width, image.height);
    Err(ApiError::bad("mask_size", message).of("mask"))
}

/// The file of a mask.
fn file_of(mask: &Mask, inverts: bool) -> Result<Vec<u8>> {
    let [width, height] = mask.size();
    let grey = mask.grey([width, height]).bytes.into_iter().map(|value| if inverts { 255 - value } else { value });
    let rgb = Rgb { width, height, bytes: grey.flat_map(|value| [value; 3]).collect() };
    encode(&rgb, ImageFormat::Png, &Metadata::default()).map_err(|e| wrong(&e))
}
