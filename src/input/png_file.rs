//! Decodes PNG: every colour type and depth, interlaced or not. Of an animated one, the image that all programs show.

use std::io::{Cursor, ErrorKind};

use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Transformations};

use super::decoded::{CONVERT, Decoded, MAX_CHUNK_BYTES, cut_off, expect_size, orientation, samples, without_alpha};
use crate::error::{Error, Result};
use crate::rgb::Rgb;

/// The image in the bytes of a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: MAX_CHUNK_BYTES });
    // A small file may hold profiles and texts that expand to gigabytes. They do not matter here.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(unreadable)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let indexed = header.color_type == ColorType::Indexed || header.bit_depth == BitDepth::One;
    expect_size(width, height)?;
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(unreadable)?;
    let (color, _) = reader.output_color_type();
    let mut bytes = samples(width * height * color.samples())?;
    reader.next_frame(&mut bytes).map_err(unreadable)?;
    // EXIF may stand behind the pixels. They are whole, so it does not matter how the file goes on.
    let _ = reader.finish();
    let orientation = orientation(reader.info().exif_metadata.as_deref().unwrap_or_default());
    let bytes = match color.samples() {
        3 => bytes,
        4 => without_alpha(bytes),
        count => repeated(&bytes, count)?,
    };
    Ok(Decoded { rgb: Rgb { width, height, bytes }, orientation, indexed })
}

/// Grey, the first of `count` samples of each pixel, as red, green and blue.
fn repeated(bytes: &[u8], count: usize) -> Result<Vec<u8>> {
    let mut rgb = samples(bytes.len() / count * 3)?;
    for (pixel, sample) in rgb.chunks_exact_mut(3).zip(bytes.chunks_exact(count)) {
        pixel.fill(sample[0]);
    }
    Ok(rgb)
}

fn unreadable(cause: DecodingError) -> Error {
    match cause {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => cut_off("PNG"),
        e => Error::new(format!("cannot read the PNG: {e}")).hint(CONVERT),
    }
}
