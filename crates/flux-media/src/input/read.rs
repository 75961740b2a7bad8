//! Reads image files: PNG, JPEG or WebP, identified by their first bytes, not by name.
//!
//! A file is valid if the data of all of its pixels are complete. Data after them, such as the end marker of a JPEG,
//! may be missing. Panics of decoders become errors.
//!
//! Sizes in a file are checked before memory is allocated. The file, its decoded samples and the image together stay
//! below 2.5 GiB for the largest supported image, and below 16 bytes a pixel apart from the file.
//!
//! The conversion to 8-bit RGB is that of the reference's file reader: turned upright by EXIF; alpha dropped, not
//! blended; the transparent colour of a PNG ignored; grey repeated; palettes looked up; the high byte of 16 bits. One
//! difference: the reference clips 16-bit grey to 255, which makes nearly all of it white. Colour profiles and gamma
//! are ignored.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, RgbImage};

use super::decoded::{CONVERT, Decoded};
use super::{header, heif, jpeg_file, png_file, webp_file};
use crate::metadata::{self, Pixels, Said};
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};
use flux_base::guard::guarded;
use flux_base::memory;
use flux_files::{near, open_regular};

/// Maximum size of an image file, in bytes.
pub const MAX_FILE_BYTES: usize = 512 << 20;

/// Returns `true` if a file name means standard input.
pub fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reads an image.
///
/// Errors if the file is no regular file, cannot be read, is longer than [`MAX_FILE_BYTES`], is no PNG, JPEG or WebP,
/// is animated WebP, or is cut off or damaged; or if a side is 0 or above 16384 pixels, or the image has more than
/// 2^27 pixels.
pub fn read(path: &Path) -> Result<Rgb> {
    decode_file(path).map(|decoded| decoded.rgb)
}

/// Reads an image from the bytes of its file. Errors as [`read`].
pub fn read_bytes(bytes: &[u8]) -> Result<Rgb> {
    decode(bytes).map(|decoded| decoded.rgb)
}

/// An image, and the alpha of each pixel [height, width] if it differs between pixels.
pub type RgbAlpha = (Rgb, Option<Vec<u8>>);

/// Reads an image with its alpha from the bytes of its file. Errors as [`read`].
pub fn read_alpha(bytes: &[u8]) -> Result<RgbAlpha> {
    decode(bytes).map(|decoded| (decoded.rgb, decoded.alpha))
}

/// Returns the digest of the pixels in the bytes of a file, see [`Pixels::digest`]. Alpha that hides pixels changes the
/// digest.
///
/// Errors as [`read`].
pub fn pixel_digest(bytes: &[u8]) -> Result<String> {
    if bytes.starts_with(&[0xff, 0xd8]) {
        return Ok(Pixels::Jpeg(bytes).digest());
    }
    let Decoded { rgb, alpha, .. } = decode(bytes)?;
    Ok(Pixels::Rgba(&rgb, &alpha.unwrap_or_default()).digest())
}

/// [`read`] with alpha and other properties of the file; the image is already upright.
pub(super) fn decode_file(path: &Path) -> Result<Decoded> {
    read_file(path).and_then(|bytes| decode(&bytes)).map_err(|e| e.at_path(path))
}

/// Returns `true` if a file begins as a PNG, a JPEG or a WebP.
pub fn is_image(path: &Path) -> bool {
    let mut first = [0; 12];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok()
        && (first.starts_with(b"\x89PNG")
            || first.starts_with(b"\xff\xd8\xff")
            || (first.starts_with(b"RIFF") && first.ends_with(b"WEBP")))
}

/// Returns `true` if a file begins as an image of any format, including unsupported ones.
pub fn may_be_image(path: &Path) -> bool {
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut first));
    read.is_ok() && header::kind(&first).is_some()
}

/// Reads the metadata of an image file, without decoding pixels.
///
/// Errors if the file cannot be read, or is no PNG, JPEG or WebP.
pub fn said_by(path: &Path) -> Result<Said> {
    read_file(path).and_then(|bytes| metadata::said_by(&bytes)).map_err(|e| e.at_path(path))
}

/// Reads the bytes of an image file.
///
/// Errors if it is no regular file, cannot be read, or is longer than [`MAX_FILE_BYTES`].
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let file = open_regular(path, &near::hint_for(path, "name an existing image"))?;
    expect_length(&file)?;
    read_stream(file)
}

/// Errors if a file is too long, before reading it.
fn expect_length(file: &File) -> Result<()> {
    let length = file.metadata().map_or(0, |found| found.len());
    if length > MAX_FILE_BYTES as u64 { Err(too_long()) } else { Ok(()) }
}

/// Reads the bytes of a stream.
///
/// Errors if it cannot be read, or is longer than [`MAX_FILE_BYTES`].
pub fn read_stream(stream: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = memory::fallibly(|| stream.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|e| {
        Error::new(format!("cannot read the image: {e}"))
            .hint("check the disk, network share or pipe that it comes from")
    })?;
    if bytes.len() > MAX_FILE_BYTES { Err(too_long()) } else { Ok(bytes) }
}

fn too_long() -> Error {
    Error::new(format!("the file is larger than {} MiB, the maximum for an image", MAX_FILE_BYTES >> 20))
        .hint("scale the image down, or compress it")
}

/// [`read_bytes`] with transparent pixels over white, as other programs show the image.
///
/// Errors as [`read_bytes`].
pub fn read_over_white(bytes: &[u8]) -> Result<Rgb> {
    let Decoded { mut rgb, alpha, .. } = decode(bytes)?;
    for (pixel, alpha) in rgb.bytes.chunks_exact_mut(3).zip(alpha.into_iter().flatten()) {
        let over = |level: u8| (u16::from(level) * u16::from(alpha) + 255 * u16::from(255 - alpha) + 127) / 255;
        pixel.iter_mut().for_each(|level| *level = over(*level) as u8);
    }
    Ok(rgb)
}

/// Returns width and height by the headers of an image file, before decoding. They may be swapped in the upright image
/// of a photograph.
///
/// Errors if the file has no size.
pub fn file_size(bytes: &[u8]) -> Result<[usize; 2]> {
    let size = guarded(|| imagesize::blob_size(bytes).ok()).ok().flatten();
    size.map(|size| [size.width, size.height]).ok_or_else(|| {
        heif::refusal(bytes).unwrap_or_else(|| Error::new("the file is not a PNG, JPEG or WebP").hint(CONVERT))
    })
}

/// Returns width and height of the upright image by the headers of its file, before decoding.
///
/// Errors as [`file_size`].
pub fn upright_size(bytes: &[u8]) -> Result<[usize; 2]> {
    let [width, height] = file_size(bytes)?;
    let orientation = guarded(|| match bytes {
        [0x89, b'P', b'N', b'G', ..] => png_file::orientation_of(bytes),
        [0xff, 0xd8, ..] => jpeg_file::orientation_of(bytes),
        _ => webp_file::orientation_of(bytes),
    });
    let is_on_its_side = matches!(
        orientation,
        Ok(Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH)
    );
    Ok(if is_on_its_side { [height, width] } else { [width, height] })
}

/// [`read_bytes`] with alpha and other properties of the file; the image is already upright.
pub(super) fn decode(bytes: &[u8]) -> Result<Decoded> {
    let decoded = match bytes {
        [0x89, b'P', b'N', b'G', ..] => decoded_by("PNG", || png_file::decode(bytes)),
        [0xff, 0xd8, ..] => decoded_by("JPEG", || jpeg_file::decode(bytes)),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            decoded_by("WebP", || webp_file::decode(bytes))
        }
        [] => Err(Error::new("the file is empty").hint("create or copy the file again")),
        _ => Err(heif::refusal(bytes).unwrap_or_else(|| {
            Error::new("the file is not a PNG, JPEG or WebP")
                .hint("convert it, for example with `magick IN PNG24:OUT.png`")
        })),
    }?;
    upright(decoded)
}

/// Runs a decoder, whose panic becomes an error of the file.
fn decoded_by(format: &str, decode: impl FnOnce() -> Result<Decoded>) -> Result<Decoded> {
    guarded(decode).unwrap_or_else(|panic| Err(Error::new(format!("cannot read the {format}: {panic}")).hint(CONVERT)))
}

/// Turns everything that has the size of the image.
fn upright(mut decoded: Decoded) -> Result<Decoded> {
    let (size, orientation) = ([decoded.rgb.width, decoded.rgb.height], decoded.orientation);
    if orientation == Orientation::NoTransforms {
        return Ok(decoded);
    }
    let _reserved = memory::reserve(decoded.rgb.bytes.len())?;
    let turned = |bytes, is_grey| {
        let image = if is_grey { grey(size, bytes) } else { colors(size, bytes) };
        let [width, height] = size;
        let wrong = || Error::new(format!("an image of {width}x{height} cannot be rotated")).hint(CONVERT);
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
