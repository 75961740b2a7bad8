//! Decodes JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.
//!
//! CMYK is taken to be stored inverted, as Adobe's programs store it and the reference reads it.

use std::borrow::Cow;

use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::{JpegDecoder, errors::DecodeErrors};

use super::decoded::{CONVERT, Decoded, Form, cut_off, expect_size, orientation, samples};
use super::jpeg_bits::Lack;
use super::jpeg_scans::{Found, walk};
use crate::error::{Error, Result};
use crate::rgb::Rgb;

/// The image in the bytes of a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let file = whole(file)?;
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&*file), options);
    decoder.decode_headers().map_err(|e| unreadable(&e))?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    expect_size(width, height)?;
    let orientation = orientation(decoder.exif().map_or(&[], Vec::as_slice));
    let mut bytes = samples(3 * width * height)?;
    decoder.decode_into(&mut bytes).map_err(|e| unreadable(&e))?;
    let form = Form { lossy: true, ..Form::default() };
    Ok(Decoded { rgb: Rgb { width, height, bytes }, alpha: None, orientation, form })
}

/// The file with the marker at which it ends, without which the decoder reads none. All that it draws is there.
fn whole(file: &[u8]) -> Result<Cow<'_, [u8]>> {
    match walk(file) {
        Ok(Found::Whole | Found::Unknown) => Ok(Cow::Borrowed(file)),
        Ok(Found::WithoutEnd(length)) => Ok(Cow::Owned([&file[..length], &[0xff, 0xd9]].concat())),
        Err(Lack::Data) => Err(cut_off("JPEG")),
        Err(Lack::Code) => Err(Error::new("cannot read the JPEG: its data are damaged").hint(CONVERT)),
    }
}

fn unreadable(cause: &DecodeErrors) -> Error {
    Error::new(format!("cannot read the JPEG: {cause}")).hint(CONVERT)
}
