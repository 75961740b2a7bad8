//! Decodes PNG: every colour type and depth, interlaced or not. For an animated PNG, the default image.

use std::borrow::Cow;
use std::io::{Cursor, ErrorKind};

use image::metadata::Orientation;
use png::{BitDepth, Decoder, DecodingError, Limits, Transformations};

use super::decoded::{
    CONVERT, Decoded, Form, MAX_CHUNK_BYTES, cut_off, expect_size, orientation, samples, split_alpha, varying,
};
use crate::metadata::parts::png_chunks;
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};
use flux_base::memory;

/// Decodes a file.
pub(super) fn decode(file: &[u8]) -> Result<Decoded> {
    let file = ended(file);
    let mut decoder = Decoder::new_with_limits(Cursor::new(&*file), Limits { bytes: MAX_CHUNK_BYTES });
    // A small file may contain profiles and texts that expand to gigabytes. They are not needed here.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(unreadable)?;
    let (width, height) = (header.width as usize, header.height as usize);
    expect_size(width, height)?;
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(unreadable)?;
    let palette = reader.info().palette.as_deref().unwrap_or_default();
    if palette.len() % 3 != 0 {
        // The decoder would panic.
        let found = palette.len();
        return Err(
            Error::new(format!("the PNG has a palette of {found} bytes, expected 3 bytes per colour")).hint(CONVERT)
        );
    }
    let palette = palette.as_chunks::<3>().0.first_chunk().copied();
    let (color, depth) = reader.output_color_type();
    let count = color.samples();
    let length = width * height * count * if depth == BitDepth::Sixteen { 2 } else { 1 };
    // The samples, then red, green and blue, and alpha.
    let _reserved = memory::reserve(length + 4 * width * height)?;
    let mut bytes = samples(length)?;
    reader.next_frame(&mut bytes).map_err(unreadable)?;
    // EXIF may follow the pixels, which are complete, so errors after them do not matter.
    let _ = reader.finish();
    let orientation = orientation(reader.info().exif_metadata.as_deref().unwrap_or_default());
    let low = if depth == BitDepth::Sixteen { split_depth(&mut bytes, count)? } else { None };
    let low = low.map(|low| colors(low, count)).transpose()?.map(|(low, _)| low);
    let (bytes, alpha) = colors(bytes, count)?;
    let form = Form { lossy: false, palette, low };
    Ok(Decoded { rgb: Rgb { width, height, bytes }, alpha, orientation, form })
}

/// Returns the transformation that turns the image upright, by its EXIF at any position, without decoding.
pub(super) fn orientation_of(file: &[u8]) -> Orientation {
    let exif = png_chunks(file).find(|chunk| chunk.kind == b"eXIf");
    exif.map_or(Orientation::NoTransforms, |exif| orientation(exif.data))
}

/// Appends a missing end chunk, without which the decoder does not finish the pixels. A pixel chunk that is cut off
/// stays cut off.
fn ended(file: &[u8]) -> Cow<'_, [u8]> {
    const END: &[u8] = b"\0\0\0\0IEND\xae\x42\x60\x82";
    let mut at = 8;
    while let Some(&[a, b, c, d, ref kind @ ..]) = file.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let end = at + 12 + u32::from_be_bytes([a, b, c, d]) as usize;
        match kind {
            b"IEND" => return Cow::Borrowed(file),
            b"IDAT" if end > file.len() => return Cow::Borrowed(file),
            _ if end > file.len() => break,
            _ => at = end,
        }
    }
    Cow::Owned([file.get(..at).unwrap_or(file), END].concat())
}

/// Reduces 16-bit samples to their high bytes. Returns the low bytes if the high bytes of all colours are 0, and a low
/// byte is not.
fn split_depth(bytes: &mut Vec<u8>, count: usize) -> Result<Option<Vec<u8>>> {
    let is_color = |at: usize| count % 2 == 1 || at % count < count - 1;
    let colors = || bytes.as_chunks::<2>().0.iter().enumerate().filter(|(at, _)| is_color(*at));
    let mut low = None;
    if colors().all(|(_, [high, _])| *high == 0) && colors().any(|(_, [_, low])| *low > 0) {
        let mut found = samples(bytes.len() / 2)?;
        found.iter_mut().zip(bytes.as_chunks::<2>().0).for_each(|(out, [_, low])| *out = *low);
        low = Some(found);
    }
    let length = bytes.len() / 2;
    for at in 0..length {
        bytes[at] = bytes[2 * at];
    }
    bytes.truncate(length);
    Ok(low)
}

/// Converts pixels of `count` samples to red, green and blue, and alpha if it is not the same for all pixels.
fn colors(bytes: Vec<u8>, count: usize) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    match count {
        3 => Ok((bytes, None)),
        4 => split_alpha(bytes),
        _ => Ok((repeated(&bytes, count)?, if count == 2 { varying(&bytes, 2)? } else { None })),
    }
}

/// Repeats grey, the first of `count` samples of each pixel, as red, green and blue.
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
