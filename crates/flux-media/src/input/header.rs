//! Headers of image files, including formats that are not decoded.

use std::fmt::{Display, Formatter};
use std::io::Cursor;

use image_webp::WebPDecoder;
use imagesize::ImageType;

use crate::metadata::parts::jpeg_segments;
use flux_base::guard::guarded;

/// The format, the size and the colours of an image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The name of the format.
    pub format: &'static str,
    /// Width and height in pixels, as the file stores them.
    pub size: [usize; 2],
    /// Bits of a channel and the channels, for formats that can be decoded.
    pub colors: Option<String>,
    /// `true` if the image is one of several frames.
    pub is_animated: bool,
}

impl Header {
    /// Reads the header of a file.
    ///
    /// `None` if the file is no image.
    pub fn read(file: &[u8]) -> Option<Self> {
        let kind = kind(file)?;
        let size = guarded(|| imagesize::blob_size(file).ok()).ok().flatten()?;
        let size = [size.width, size.height];
        let webp = || guarded(|| WebPDecoder::new(Cursor::new(file)).ok()).ok().flatten();
        let (format, colors, is_animated) = match kind {
            ImageType::Png => ("PNG", png_colors(file), file.windows(4).take(MAX_HEADER).any(|part| part == b"acTL")),
            ImageType::Jpeg => ("JPEG", jpeg_colors(file), false),
            ImageType::Webp => {
                let decoder = webp();
                let has_alpha = decoder.as_ref().map(WebPDecoder::has_alpha);
                let colors = has_alpha.map(|has_alpha| format!("8-bit {}", if has_alpha { "RGBA" } else { "RGB" }));
                ("WebP", colors, decoder.is_some_and(|decoder| decoder.is_animated()))
            }
            ImageType::Bmp if !is_bmp(file) => return None,
            ImageType::Bmp => ("BMP", None, false),
            ImageType::Gif => ("GIF", None, false),
            ImageType::Heif(imagesize::Compression::Av1) => ("AVIF", None, false),
            ImageType::Heif(imagesize::Compression::Hevc) => ("HEIC", None, false),
            ImageType::Heif(_) => ("HEIF", None, false),
            ImageType::Jxl => ("JPEG XL", None, false),
            ImageType::Psd => ("Photoshop", None, false),
            ImageType::Qoi => ("QOI", None, false),
            ImageType::Tiff => ("TIFF", None, false),
            _ => return None,
        };
        Some(Self { format, size, colors, is_animated })
    }

    /// Returns `true` if the format can be decoded.
    pub fn is_read(&self) -> bool {
        matches!(self.format, "PNG" | "JPEG" | "WebP")
    }
}

impl Display for Header {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { format, size: [width, height], .. } = self;
        write!(f, "{format}, {width}x{height}")?;
        self.colors.iter().try_for_each(|colors| write!(f, ", {colors}"))?;
        if self.is_animated { write!(f, ", animated") } else { Ok(()) }
    }
}

/// Returns the format by the first bytes of a file. Some formats have a magic of two bytes, which may also occur in
/// the length at the beginning of safetensors.
pub(super) fn kind(first: &[u8]) -> Option<ImageType> {
    let is_safetensors = first.get(4..9) == Some(b"\0\0\0\0{");
    guarded(|| imagesize::image_type(first).ok()).ok().flatten().filter(|_| !is_safetensors)
}

/// Maximum bytes that are searched for a header chunk.
const MAX_HEADER: usize = 1 << 16;

/// Returns `true` if the second field is the length of the file: the two letters at the beginning are no proof.
fn is_bmp(file: &[u8]) -> bool {
    let length = file.get(2..).and_then(<[u8]>::first_chunk).map(|length| u32::from_le_bytes(*length) as usize);
    length.is_some_and(|length| length > 14 && length <= file.len())
}

fn png_colors(file: &[u8]) -> Option<String> {
    let &[bits, colors] = file.get(24..)?.first_chunk()?;
    let colors = match colors {
        0 => "grey",
        2 => "RGB",
        3 => "palette",
        4 => "grey with alpha",
        6 => "RGBA",
        _ => return None,
    };
    Some(format!("{bits}-bit {colors}"))
}

/// Returns the precision and the components of a JPEG, by its frame header.
fn jpeg_colors(file: &[u8]) -> Option<String> {
    let is_frame = |marker: u8| matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc);
    let frame = jpeg_segments(file).find(|segment| is_frame(segment.marker))?;
    let &[bits, _, _, _, _, components] = frame.data.first_chunk()?;
    let colors = match components {
        1 => "grey",
        3 => "RGB",
        4 => "CMYK",
        _ => return None,
    };
    Some(format!("{bits}-bit {colors}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::output::{ImageFormat, Rgb, encode, encode_transparent};

    fn shown(file: &[u8]) -> Option<String> {
        Header::read(file).map(|header| header.to_string())
    }

    #[test]
    fn headers_say_format_size_and_colours() {
        let image = Rgb { width: 16, height: 8, bytes: vec![90; 16 * 8 * 3] };
        for (format, expected) in [
            (ImageFormat::Png, "PNG, 16x8, 8-bit RGB"),
            (ImageFormat::Jpeg, "JPEG, 16x8, 8-bit RGB"),
            (ImageFormat::Webp, "WebP, 16x8, 8-bit RGB"),
        ] {
            let file = encode(&image, format, &Metadata::default()).unwrap();
            assert_eq!(shown(&file).as_deref(), Some(expected));
            assert!(Header::read(&file).unwrap().is_read());
            for length in 0..file.len() {
                let _ = shown(&file[..length]);
            }
        }
        let transparent = encode_transparent(&image, &[7; 16 * 8]).unwrap();
        assert_eq!(shown(&transparent).as_deref(), Some("PNG, 16x8, 8-bit RGBA"));
        let gif = b"GIF89a\x10\0\x08\0\0\0\0;";
        assert_eq!((shown(gif).as_deref(), Header::read(gif).unwrap().is_read()), (Some("GIF, 16x8"), false));
    }

    #[test]
    fn files_of_models_are_no_images() {
        let header = |length: u64| [&length.to_le_bytes()[..], b"{\"a\": 1}", &[b' '; 64]].concat();
        for file in [
            header(0x4d42),
            header(0x0aff),
            header(0x002a_4949),
            b"GGUF\x03\0\0\0".to_vec(),
            Vec::new(),
            b"PK\x03\x04".to_vec(),
        ] {
            assert_eq!(shown(&file), None, "{file:?}");
        }
    }
}
