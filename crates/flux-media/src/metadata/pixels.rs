//! Digests of pixels, which a recipe stores.

use flux_files::digest::sha256_of;

use super::parts::{SCAN, jpeg_segments};
use crate::rgb::Rgb;

/// The pixels of an image file, as a digest covers them.
#[derive(Debug, Clone, Copy)]
pub enum Pixels<'a> {
    /// The pixels of a lossless file.
    Rgb(&'a Rgb),
    /// The pixels of a lossless file, and their alpha.
    Rgba(&'a Rgb, &'a [u8]),
    /// A JPEG file. Decoders may differ in rounding, so the digest covers the compressed pixels and their tables.
    Jpeg(&'a [u8]),
}

impl Pixels<'_> {
    /// Returns `sha256:` and the digest of the image as a binary PPM and its alpha, or `jpeg-sha256:` and the digest of
    /// a JPEG without its comments and application segments. The segment of Adobe is not left out: it names the colour
    /// space.
    pub fn digest(&self) -> String {
        match self {
            Self::Rgb(image) => Pixels::Rgba(image, &[]).digest(),
            Self::Rgba(Rgb { width, height, bytes }, alpha) => {
                let header = format!("P6\n{width} {height}\n255\n");
                format!("sha256:{}", sha256_of([header.as_bytes(), bytes, alpha]))
            }
            Self::Jpeg(file) => {
                let segments = || jpeg_segments(file);
                let kept = segments().filter(|segment| !matches!(segment.marker, 0xe0..=0xed | 0xef | 0xfe));
                let scan = segments().find(|segment| segment.marker == SCAN).map_or(file.len(), |scan| scan.end());
                let parts = kept.map(|segment| segment.whole).chain([&file[scan..]]);
                format!("jpeg-sha256:{}", sha256_of(parts))
            }
        }
    }
}
