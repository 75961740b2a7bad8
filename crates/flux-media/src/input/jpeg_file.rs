//! Decodes JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.
//!
//! CMYK is read as inverted, as Adobe's programs store it and the reference reads it.

use image::metadata::Orientation;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::{JpegDecoder, errors::DecodeErrors};

use super::decoded::{CONVERT, Decoded, Form, cut_off, expect_size, orientation, samples};
use super::jpeg_bits::Lack;
use super::jpeg_scans::completed;
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};
use flux_base::memory;

/// Decodes a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let file = completed(file).map_err(lacking)?;
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&*file), options);
    decoder.decode_headers().map_err(|e| unreadable(&e))?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    expect_size(width, height)?;
    // The pixels; a progressive file's coefficients, in 16 bits for up to four components; and tables.
    let _reserved = memory::reserve(12 * width * height)?;
    let orientation = orientation(decoder.exif().map_or(&[], Vec::as_slice));
    let mut bytes = samples(3 * width * height)?;
    decoder.decode_into(&mut bytes).map_err(|e| unreadable(&e))?;
    let form = Form { lossy: true, ..Form::default() };
    Ok(Decoded { rgb: Rgb { width, height, bytes }, alpha: None, orientation, form })
}

/// Returns the transformation that turns the image upright, by its EXIF, without decoding.
pub(super) fn orientation_of(file: &[u8]) -> Orientation {
    let mut decoder = JpegDecoder::new(ZCursor::new(file));
    let _ = decoder.decode_headers();
    orientation(decoder.exif().map_or(&[], Vec::as_slice))
}

fn lacking(lack: Lack) -> Error {
    match lack {
        Lack::Data => cut_off("JPEG"),
        Lack::Code => Error::new("cannot read the JPEG: its data is damaged").hint(CONVERT),
        Lack::Tables => Error::new("cannot read the JPEG: Huffman tables are missing").hint(CONVERT),
    }
}

fn unreadable(cause: &DecodeErrors) -> Error {
    Error::new(format!("cannot read the JPEG: {cause}")).hint(CONVERT)
}
