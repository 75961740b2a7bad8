//! Decodes WebP, lossy and lossless, with and without alpha. Animated files are an error: it is unclear which frame is
//! meant.

use std::io::{Cursor, ErrorKind};

use image::metadata::Orientation;
use image_webp::{DecodingError, WebPDecoder};

use super::decoded::{
    CONVERT, Decoded, Form, MAX_CHUNK_BYTES, cut_off, expect_size, orientation, samples, split_alpha,
};
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};
use flux_base::memory;

/// Decodes a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    // The decoder reads missing data at the end of lossy data as zeros.
    let length = file.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    if file.len() < 8 + length as usize {
        return Err(cut_off("WebP"));
    }
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(unreadable)?;
    decoder.set_memory_limit(MAX_CHUNK_BYTES);
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    expect_size(width, height)?;
    if decoder.is_animated() {
        return Err(Error::new("the WebP is animated, expected a single image")
            .hint("save one of its frames, for example with `magick 'IN.webp[0]' PNG24:OUT.png`"));
    }
    // The samples, the decoder's intermediate values, and alpha.
    let _reserved = memory::reserve(12 * width * height)?;
    let orientation = orientation(&decoder.exif_metadata().ok().flatten().unwrap_or_default());
    let has_alpha = decoder.has_alpha();
    let mut bytes = samples(width * height * if has_alpha { 4 } else { 3 })?;
    decoder.read_image(&mut bytes).map_err(unreadable)?;
    let (bytes, alpha) = if has_alpha { split_alpha(bytes)? } else { (bytes, None) };
    let form = Form { lossy: decoder.is_lossy(), ..Form::default() };
    Ok(Decoded { rgb: Rgb { width, height, bytes }, alpha, orientation, form })
}

/// Returns the transformation that turns the image upright, by its EXIF, without decoding.
pub(super) fn orientation_of(file: &[u8]) -> Orientation {
    let Ok(mut decoder) = WebPDecoder::new(Cursor::new(file)) else { return Orientation::NoTransforms };
    decoder.set_memory_limit(MAX_CHUNK_BYTES);
    orientation(&decoder.exif_metadata().ok().flatten().unwrap_or_default())
}

fn unreadable(cause: DecodingError) -> Error {
    match cause {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => cut_off("WebP"),
        e => Error::new(format!("cannot read the WebP: {e}")).hint(CONVERT),
    }
}
