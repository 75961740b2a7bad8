//! Reads an image file: PNG, JPEG or WebP, by its first bytes and not by its name.
//!
//! A file is read when the data of all of its pixels are there and whole; what stands behind them, as the marker at
//! which a JPEG ends, may be missing. Panics of decoders are errors.
//!
//! What a file claims is checked before memory is taken for it. The file, its decoded samples and the image together
//! stay below 2.5 GiB for the largest image that is read, and below 16 bytes a pixel beside the file.
//!
//! To 8-bit RGB as the reference's own file reader converts: turned upright by EXIF; alpha dropped, not blended; the
//! transparent colour of a PNG ignored; grey repeated; palettes looked up; of 16 bits the high byte. One difference:
//! the reference clips 16-bit grey to 255, which makes nearly all of it white. Colour profiles and gamma are ignored.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, RgbImage};

use super::decoded::{CONVERT, Decoded};
use super::{heif, jpeg_file, png_file, webp_file};
use crate::error::{Error, Result};
use crate::files::{near, regular};
use crate::guard::guarded;
use crate::metadata::{self, Said};
use crate::rgb::Rgb;

/// The longest image file that is read, in bytes.
pub const MAX_FILE_BYTES: usize = 512 << 20;

/// Whether a file name means standard input.
pub fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reads an image.
///
/// Errors when the file is no regular file, cannot be read, is longer than [`MAX_FILE_BYTES`], is no PNG, JPEG or WebP,
/// is animated WebP, is cut off or damaged, or when a side is 0 or above 16384 pixels, or all of them are above 2^27.
pub fn read(path: &Path) -> Result<Rgb> {
    decode_file(path).map(|decoded| decoded.rgb)
}

/// Reads an image from the bytes of its file. Errors as [`read`].
pub fn read_bytes(bytes: &[u8]) -> Result<Rgb> {
    decode(bytes).map(|decoded| decoded.rgb)
}

/// [`read`], with what else is to be known of the file; it is upright already.
pub(super) fn decode_file(path: &Path) -> Result<Decoded> {
    read_file(path).and_then(|bytes| decode(&bytes)).map_err(|e| e.at_path(path))
}

/// Whether a file begins as a PNG, a JPEG or a WebP does.
pub fn is_image(path: &Path) -> bool {
    let mut first = [0; 12];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok()
        && (first.starts_with(b"\x89PNG")
            || first.starts_with(b"\xff\xd8\xff")
            || (first.starts_with(b"RIFF") && first.ends_with(b"WEBP")))
}

/// What the file of an image says of it. Nothing of the pixels is decoded.
///
/// Errors when the file cannot be read, or is no PNG, JPEG or WebP.
pub fn said_by(path: &Path) -> Result<Said> {
    read_file(path).and_then(|bytes| metadata::said_by(&bytes)).map_err(|e| e.at_path(path))
}

/// The bytes of an image file.
///
/// Errors when it is no regular file, cannot be read, or is longer than [`MAX_FILE_BYTES`].
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let file = regular::open(path, &near::hint_for(path, "name an image that is there"))?;
    expect_length(&file)?;
    read_stream(file)
}

/// Errors when a file is too long to be read, before any of it is read.
fn expect_length(file: &File) -> Result<()> {
    let length = file.metadata().map_or(0, |found| found.len());
    if length > MAX_FILE_BYTES as u64 { Err(too_long()) } else { Ok(()) }
}

/// The bytes of a stream.
///
/// Errors when it cannot be read, or is longer than [`MAX_FILE_BYTES`].
pub fn read_stream(stream: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| {
        Error::new(format!("cannot read the image: {e}"))
            .hint("is the disk, network share or pipe that it comes from in order?")
    })?;
    if bytes.len() > MAX_FILE_BYTES { Err(too_long()) } else { Ok(bytes) }
}

fn too_long() -> Error {
    Error::new(format!("the file has more than the {} MiB that an image may have", MAX_FILE_BYTES >> 20))
        .hint("scale the image down, or compress it")
}

/// Width and height that the file of an image says it has, before anything is decoded; those of a photograph may be
/// swapped once it is upright.
///
/// Errors when the file says none.
pub fn file_size(bytes: &[u8]) -> Result<[usize; 2]> {
    let size = guarded(|| imagesize::blob_size(bytes).ok()).ok().flatten();
    size.map(|size| [size.width, size.height]).ok_or_else(|| {
        heif::refusal(bytes).unwrap_or_else(|| Error::new("the file is no PNG, JPEG or WebP").hint(CONVERT))
    })
}

/// [`read_bytes`], with what else is to be known of the file; it is upright already.
pub(super) fn decode(bytes: &[u8]) -> Result<Decoded> {
    let decoded = match bytes {
        [0x89, b'P', b'N', b'G', ..] => decoded_by("PNG", || png_file::decode(bytes)),
        [0xff, 0xd8, ..] => decoded_by("JPEG", || jpeg_file::decode(bytes)),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            decoded_by("WebP", || webp_file::decode(bytes))
        }
        [] => Err(Error::new("the file is empty").hint("make the image again, or copy it again")),
        _ => Err(heif::refusal(bytes).unwrap_or_else(|| {
            Error::new("the file is no PNG, JPEG or WebP")
                .hint("convert it to one of these, as with `magick IN PNG24:OUT.png`")
        })),
    }?;
    upright(decoded)
}

/// What a decoder returns, whose panic is an error of the file.
fn decoded_by(format: &str, decode: impl FnOnce() -> Result<Decoded>) -> Result<Decoded> {
    guarded(decode).unwrap_or_else(|panic| Err(Error::new(format!("cannot read the {format}: {panic}")).hint(CONVERT)))
}

/// Turns everything that has the size of the image.
fn upright(mut decoded: Decoded) -> Result<Decoded> {
    let (size, orientation) = ([decoded.rgb.width, decoded.rgb.height], decoded.orientation);
    if orientation == Orientation::NoTransforms {
        return Ok(decoded);
    }
    let turned = |bytes, is_grey| {
        let image = if is_grey { grey(size, bytes) } else { colors(size, bytes) };
        let [width, height] = size;
        let wrong = || Error::new(format!("an image of {width}x{height} cannot be turned")).hint(CONVERT);
        let mut image = image.ok_or_else(wrong)?;
        image.apply_orientation(orientation);
        Ok(image)
    };
    let rgb = turned(decoded.rgb.bytes, false)?;
    decoded.rgb = Rgb { width: rgb.width() as usize, height: rgb.height() as usize, bytes: rgb.into_bytes() };
    let of = |bytes: Option<Vec<u8>>, is_grey| {
        bytes.map(|bytes| turned(bytes, is_grey).map(DynamicImage::into_bytes)).transpose()
    };
    decoded.alpha = of(decoded.alpha, true)?;
    decoded.form.low = of(decoded.form.low, false)?;
    Ok(decoded)
}

fn colors([width, height]: [usize; 2], bytes: Vec<u8>) -> Option<DynamicImage> {
    RgbImage::from_raw(width.try_into().ok()?, height.try_into().ok()?, bytes).map(DynamicImage::ImageRgb8)
}

fn grey([width, height]: [usize; 2], bytes: Vec<u8>) -> Option<DynamicImage> {
    GrayImage::from_raw(width.try_into().ok()?, height.try_into().ok()?, bytes).map(DynamicImage::ImageLuma8)
}
