//! Image output: RGB8 to PNG, JPEG or WebP files.
//!
//! Nothing here knows a model or a request. Start with [`encode`] for bytes and [`Target`] for files.

mod jpeg_stripes;
mod png_stripes;
mod png_texts;
mod sign;
mod target;
mod template;

use std::borrow::Borrow;
use std::fmt;
use std::path::Path;

use image_webp::{ColorType, WebPEncoder};

pub use self::jpeg_stripes::jpeg_quality;
pub use self::png_texts::{with_png_texts, with_png_texts_of};
pub use self::sign::{Claim, Sign};
pub use self::target::Target;
pub use self::template::{NameFields, NameTemplate, plain_name};
use crate::metadata::parts::jpeg_segments;
use crate::metadata::{self, Metadata, Pixels};
pub use crate::rgb::Rgb;
use flux_base::error::{Error, Field, Result};
use flux_base::memory;

/// JPEG quality, of 100: blocks are not visible, and the file has about a third of the PNG's bytes.
const JPEG_QUALITY: u8 = 95;

/// The file formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Lossless.
    Png,
    /// Quality 95.
    Jpeg,
    /// Lossless.
    Webp,
}

/// The requested encoding of image files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoding {
    /// The format; by default the format of the file's name.
    pub format: Option<ImageFormat>,
    /// The quality of a JPEG, from 1 to 100.
    pub quality: Option<u8>,
}

impl Encoding {
    /// Returns the format of a file, or of standard output if there is no file.
    ///
    /// Errors if the name contradicts the format, if neither has a format, or if a quality is set for a format without
    /// one.
    pub fn format(&self, path: Option<&Path>) -> Result<ImageFormat> {
        let format = match (self.format, path) {
            (Some(format), None) => format,
            (None, None) => ImageFormat::Png,
            (None, Some(path)) => ImageFormat::from_path(path)?,
            (Some(format), Some(path)) => {
                // Other extensions are the user's choice.
                if let Some(other) = ImageFormat::from_path(path).ok().filter(|other| *other != format) {
                    let what =
                        format!("`{}` has the extension of a {other} file, but {format} was requested", path.display());
                    return Err(Error::usage(what).for_field(Field::Format).hint(format!(
                        "leave out `{:#}`, or end the name with .{}",
                        Field::Format,
                        format.ending()
                    )));
                }
                format
            }
        };
        if self.quality.is_some() && format != ImageFormat::Jpeg {
            return Err(Error::usage(format!("{format} files are lossless and have no quality"))
                .for_field(Field::Quality)
                .hint(format!("leave out `{:#}`, or write a JPEG", Field::Quality)));
        }
        Ok(format)
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::Webp => "WebP",
        })
    }
}

impl ImageFormat {
    /// Returns the usual extension of file names.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Webp => "webp",
        }
    }

    /// Returns the format by the extension, in upper or lower case.
    ///
    /// Errors if the extension has no format.
    pub fn from_path(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        extension.and_then(|extension| Self::from_name(&extension)).ok_or_else(|| {
            Error::usage(format!("cannot determine the image format of `{}`", path.display()))
                .for_field(Field::Output)
                .hint("end the name with .png, .jpg, .jpeg or .webp")
        })
    }

    /// Returns the format by its name, which may also be `jpg`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "png" => Some(Self::Png),
            "jpg" | "jpeg" => Some(Self::Jpeg),
            "webp" => Some(Self::Webp),
            _ => None,
        }
    }

    /// Returns the format by the first bytes of a file.
    pub fn from_magic(file: &[u8]) -> Option<Self> {
        match file {
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ => None,
        }
    }

    /// Returns the format's name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpeg",
            Self::Webp => "webp",
        }
    }

    /// Returns the media type of files.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Webp => "image/webp",
        }
    }
}

/// Encodes a file in `format`, with its metadata.
///
/// Errors if the format cannot hold the size or a text.
pub fn encode(image: &Rgb, format: ImageFormat, metadata: &Metadata) -> Result<Vec<u8>> {
    encode_with(image, format, None, |_| metadata)
}

/// Encodes a JPEG of a quality from 1 to 100, with its metadata.
///
/// Errors as [`encode`], or if the image does not have the bytes of its size.
pub fn encode_jpeg(image: &Rgb, quality: u8, metadata: &Metadata) -> Result<Vec<u8>> {
    encode_with(image, ImageFormat::Jpeg, Some(quality), |_| metadata)
}

/// Encodes a file in `format`, with the metadata that `metadata` returns for its pixels. Only a JPEG has a quality.
///
/// Errors as [`encode`].
pub fn encode_with<M: Borrow<Metadata>>(
    image: &Rgb,
    format: ImageFormat,
    quality: Option<u8>,
    metadata: impl FnOnce(Pixels<'_>) -> M,
) -> Result<Vec<u8>> {
    let [width, height] = sides(image)?;
    // The file, and its joined parts.
    let _reserved = memory::reserve(2 * image.bytes.len())?;
    if format == ImageFormat::Jpeg {
        let file = jpeg_stripes::encode(image, quality.unwrap_or(JPEG_QUALITY))?;
        let metadata = metadata(Pixels::Jpeg(&file));
        return with_jpeg_metadata(file, metadata.borrow());
    }
    let metadata = metadata(Pixels::Rgb(image));
    let metadata: &Metadata = metadata.borrow();
    let mut file = Vec::new();
    match format {
        ImageFormat::Png => {
            if let Some((keyword, _)) = metadata.png_texts().find(|(_, text)| text.contains('\0')) {
                return Err(Error::new(format!("the {keyword} contains a NUL character, which a PNG cannot store"))
                    .hint("remove the character"));
            }
            encode_png(&mut file, width, height, &image.bytes, metadata).map_err(|e| e.to_string())
        }
        _ => {
            let encoder = webp_encoder(&mut file, metadata);
            encoder.encode(&image.bytes, width, height, ColorType::Rgb8).map_err(|e| e.to_string())
        }
    }
    .map_err(|e| Error::new(format!("cannot encode the image: {e}")))?;
    Ok(file)
}

/// Adds metadata to a JPEG, after its first segment.
///
/// Errors if the metadata do not fit.
fn with_jpeg_metadata(file: Vec<u8>, metadata: &Metadata) -> Result<Vec<u8>> {
    metadata.check_jpeg()?;
    let segments = metadata::jpeg_metadata(metadata.exif().as_deref(), metadata.xmp().as_deref());
    if segments.is_empty() {
        return Ok(file);
    }
    let (head, rest) = file.split_at(jpeg_segments(&file).next().map_or(2, |first| first.end()));
    Ok([head, &segments, rest].concat())
}

/// Encodes a PNG with `alpha` [height, width], from 0 to 255.
///
/// Errors if `alpha` has another size, or the format cannot hold it.
pub fn encode_transparent(image: &Rgb, alpha: &[u8]) -> Result<Vec<u8>> {
    encode_alpha(image, alpha, ImageFormat::Png, &Metadata::default())
}

/// Encodes a PNG or a WebP with `alpha` [height, width], from 0 to 255, and with its metadata.
///
/// Errors as [`encode_transparent`], and for a JPEG, which has no alpha.
pub fn encode_alpha(image: &Rgb, alpha: &[u8], format: ImageFormat, metadata: &Metadata) -> Result<Vec<u8>> {
    let [width, height] = sides(image)?;
    if alpha.len() != image.width * image.height {
        return Err(Error::new(format!("there are {} alpha values for {width}x{height} pixels", alpha.len())));
    }
    let pixels = image.bytes.chunks_exact(3).zip(alpha);
    let rgba: Vec<u8> = pixels.flat_map(|(rgb, alpha)| [rgb[0], rgb[1], rgb[2], *alpha]).collect();
    let mut file = Vec::new();
    let written = match format {
        ImageFormat::Jpeg => {
            return Err(Error::usage("a JPEG has no transparency")
                .for_field(Field::Output)
                .hint("write a PNG or a WebP, whose names end with .png or .webp"));
        }
        ImageFormat::Png => encode_rgba(&mut file, width, height, &rgba, metadata).map_err(|e| e.to_string()),
        ImageFormat::Webp => {
            let encoder = webp_encoder(&mut file, metadata);
            encoder.encode(&rgba, width, height, ColorType::Rgba8).map_err(|e| e.to_string())
        }
    };
    written.map_err(|e| Error::new(format!("cannot encode the image: {e}")))?;
    Ok(file)
}

fn encode_rgba(
    file: &mut Vec<u8>,
    width: u32,
    height: u32,
    rgba: &[u8],
    metadata: &Metadata,
) -> std::result::Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    add_texts(&mut encoder, metadata)?;
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgba)?;
    writer.finish()
}

/// Creates an encoder for a WebP with metadata.
fn webp_encoder<'a>(file: &'a mut Vec<u8>, metadata: &Metadata) -> WebPEncoder<&'a mut Vec<u8>> {
    let mut encoder = WebPEncoder::new(file);
    metadata.exif().into_iter().for_each(|exif| encoder.set_exif_metadata(exif));
    metadata.xmp().into_iter().for_each(|xmp| encoder.set_xmp_metadata(xmp.into_bytes()));
    encoder
}

/// Adds the metadata of a PNG.
fn add_texts<W: std::io::Write>(
    encoder: &mut png::Encoder<'_, W>,
    metadata: &Metadata,
) -> std::result::Result<(), png::EncodingError> {
    for (keyword, text) in metadata.png_texts() {
        // Many programs show only this kind of chunk. None of them reads the recipe, which may be long.
        if keyword != metadata::RECIPE && is_latin_1(text) {
            encoder.add_text_chunk(keyword.to_string(), text.to_string())?;
        }
        encoder.add_itxt_chunk(keyword.to_string(), text.to_string())?; // UTF-8
    }
    match metadata.png_xmp() {
        Some(xmp) => encoder.add_itxt_chunk(metadata::XMP.to_string(), xmp),
        None => Ok(()),
    }
}

/// Returns width and height.
///
/// Errors if no file format can hold them.
fn sides(image: &Rgb) -> Result<[u32; 2]> {
    let side = |pixels: usize| u32::try_from(pixels).map_err(|_| does_not_fit(image));
    Ok([side(image.width)?, side(image.height)?])
}

fn does_not_fit(image: &Rgb) -> Error {
    Error::new(format!("an image of {}x{} does not fit the file format", image.width, image.height))
}

/// Returns `true` if a `tEXt` chunk can hold the text: printable characters of Latin-1, and line feeds.
fn is_latin_1(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{ff}'))
}

fn encode_png(
    file: &mut Vec<u8>,
    width: u32,
    height: u32,
    rgb: &[u8],
    metadata: &Metadata,
) -> std::result::Result<(), png::EncodingError> {
    let mut encoder = png_stripes::encoder(file, width, height);
    // For data that the stripes do not write, because compression would make them longer.
    encoder.set_compression(png::Compression::NoCompression);
    add_texts(&mut encoder, metadata)?;
    let mut writer = encoder.write_header()?;
    let row = 3 * width as usize;
    let is_whole = rgb.len() == row * height as usize;
    if !(is_whole && png_stripes::write(&mut writer, rgb, row)?) {
        writer.write_image_data(rgb)?; // reports the error of an image with missing rows
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::BufReader;

    use super::*;
    use crate::input;

    #[test]
    fn a_transparent_image_keeps_its_colours_and_says_where_it_is_opaque() {
        let image = Rgb { width: 2, height: 1, bytes: vec![1, 2, 3, 250, 5, 6] };
        let file = encode_transparent(&image, &[0, 255]).unwrap();
        assert_eq!(input::Mask::read_transparent(&file).unwrap().unwrap().grey([2, 1]).bytes, [255, 0]);
        assert!(encode_transparent(&image, &[0]).is_err());
    }

    fn texts(texts: &[(&'static str, &str)]) -> Metadata {
        let texts = texts.iter().map(|(keyword, text)| (*keyword, text.to_string())).collect();
        Metadata { texts, ..Metadata::default() }
    }

    fn gradient(width: usize, height: usize) -> Rgb {
        let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, (x * y) as u8])).collect();
        Rgb { width, height, bytes }
    }

    #[test]
    fn a_png_reads_back_with_its_pixels_and_its_text() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("käse.PNG");
        let image = gradient(48, 32);
        Target::new(&path).unwrap().write(&image, &texts(&[("prompt", "ein Käse 🧀"), ("seed", "7")])).unwrap();
        assert_eq!(input::read(&path).unwrap(), image);
        let reader = png::Decoder::new(BufReader::new(fs::File::open(&path).unwrap())).read_info().unwrap();
        let texts: Vec<_> =
            reader.info().utf8_text.iter().map(|t| (t.keyword.clone(), t.get_text().unwrap())).collect();
        assert_eq!(texts, [("prompt".to_string(), "ein Käse 🧀".to_string()), ("seed".to_string(), "7".to_string())]);
    }

    #[test]
    fn a_text_of_latin_1_is_also_there_for_readers_of_nothing_else() {
        let of = |text: &str| {
            let bytes = encode(&gradient(8, 8), ImageFormat::Png, &texts(&[("prompt", text)])).unwrap();
            let reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
            assert_eq!(reader.info().utf8_text[0].get_text().unwrap(), text);
            reader.info().uncompressed_latin1_text.iter().map(|t| t.text.clone()).collect::<Vec<_>>()
        };
        for text in ["a red\nheart", "ein Käse ÿ", ""] {
            assert_eq!(of(text), [text]);
        }
        for text in ["ein Käse 🧀", "€", "a\tb", "\u{7f}", "\u{85}"] {
            assert!(of(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_text_with_a_nul_is_refused() {
        let error = encode(&gradient(8, 8), ImageFormat::Png, &texts(&[("prompt", "a\0b")])).unwrap_err();
        assert!(error.to_string().contains("NUL"), "{error}");
    }

    #[test]
    fn an_image_without_all_of_its_pixels_is_no_png() {
        let error =
            encode(&Rgb { height: 15, ..gradient(16, 16) }, ImageFormat::Png, &Metadata::default()).unwrap_err();
        assert!(error.to_string().contains("cannot encode the image"), "{error}");
    }

    #[test]
    fn each_format_starts_with_its_signature() {
        let image = gradient(16, 16);
        assert!(encode(&image, ImageFormat::Png, &Metadata::default()).unwrap().starts_with(b"\x89PNG"));
        assert!(encode(&image, ImageFormat::Jpeg, &Metadata::default()).unwrap().starts_with(b"\xff\xd8\xff"));
        assert!(encode(&image, ImageFormat::Webp, &Metadata::default()).unwrap().starts_with(b"RIFF"));
    }
}
