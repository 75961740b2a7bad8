//! Decodes JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.
//!
//! CMYK is taken to be stored inverted, as Adobe's programs store it and the reference reads it.

use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::{JpegDecoder, errors::DecodeErrors};

use super::decoded::{CONVERT, Decoded, cut_off, expect_size, orientation, samples};
use crate::error::{Error, Result};
use crate::rgb::Rgb;

/// The image in the bytes of a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    // The decoder would draw what it finds of a file that is cut off, and leave the rest grey.
    if !has_end(file) {
        return Err(cut_off("JPEG"));
    }
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|e| unreadable(&e))?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    expect_size(width, height)?;
    let orientation = orientation(decoder.exif().map_or(&[], Vec::as_slice));
    let mut bytes = samples(3 * width * height)?;
    decoder.decode_into(&mut bytes).map_err(|e| unreadable(&e))?;
    Ok(Decoded { rgb: Rgb { width, height, bytes }, orientation, indexed: false })
}

/// Whether the marker at which the image ends is there. A thumbnail inside of a segment has one of its own, so segments
/// are skipped.
fn has_end(file: &[u8]) -> bool {
    const END: u8 = 0xd9;
    let mut at = 2;
    while let Some(&[first, marker]) = file.get(at..at + 2) {
        match (first, marker) {
            (0xff, END) => return true,
            // Filling, escaped bytes and restarts have no length; neither has what stands in between.
            (0xff, 0xff) | (0..=0xfe, _) => at += 1,
            (0xff, 0 | 1 | 0xd0..=0xd8) => at += 2,
            (0xff, _) => {
                let Some(&[high, low]) = file.get(at + 2..at + 4) else { return false };
                at += 2 + usize::from(u16::from_be_bytes([high, low]));
            }
        }
    }
    false
}

fn unreadable(cause: &DecodeErrors) -> Error {
    Error::new(format!("cannot read the JPEG: {cause}")).hint(CONVERT)
}
