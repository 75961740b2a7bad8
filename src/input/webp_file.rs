//! Decodes WebP, lossy and lossless, with alpha and without. An animated one is refused: which of its images is meant,
//! nobody said.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::decoded::{
    CONVERT, Decoded, Form, MAX_CHUNK_BYTES, cut_off, expect_size, orientation, samples, split_alpha,
};
use crate::error::{Error, Result};
use crate::rgb::Rgb;

/// The image in the bytes of a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    // The decoder takes zeros for what is missing at the end of lossy data.
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
            .hint("save one of its images by itself, as with `magick 'IN.webp[0]' PNG24:OUT.png`"));
    }
    let orientation = orientation(&decoder.exif_metadata().ok().flatten().unwrap_or_default());
    let has_alpha = decoder.has_alpha();
    let mut bytes = samples(width * height * if has_alpha { 4 } else { 3 })?;
    decoder.read_image(&mut bytes).map_err(unreadable)?;
    let (bytes, alpha) = if has_alpha { split_alpha(bytes)? } else { (bytes, None) };
    let form = Form { lossy: decoder.is_lossy(), ..Form::default() };
    Ok(Decoded { rgb: Rgb { width, height, bytes }, alpha, orientation, form })
}

fn unreadable(cause: DecodingError) -> Error {
    match cause {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => cut_off("WebP"),
        e => Error::new(format!("cannot read the WebP: {e}")).hint(CONVERT),
    }
}
