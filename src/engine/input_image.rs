//! Input images of a generation: files, or pixels in memory.

use std::path::{Path, PathBuf};

use super::Image;
use crate::error::Result;
use crate::files::digest;
use crate::metadata::Metadata;
use crate::output::{self, ImageFormat};
use crate::rgb::{Rgb, RgbImage};

/// Characters of a digest in the name of an image in memory.
const DIGITS: usize = 8;

/// An image to edit, a reference or a mask: a path, the bytes of a file, or pixels.
///
/// A recipe names its input files, and images in memory get a name too: `image-` and the beginning of their digest. An
/// [`Image`] has the digest of the PNG that [`Image::save`] writes.
#[derive(Debug, Clone)]
pub struct InputImage(Source);

#[derive(Debug, Clone)]
enum Source {
    File(PathBuf),
    /// The bytes of a file, or the reason that there are none.
    Bytes(Result<Vec<u8>>),
}

impl InputImage {
    /// Creates an input from the bytes of a PNG, a JPEG or a WebP.
    pub fn from_bytes(file: impl Into<Vec<u8>>) -> Self {
        Self(Source::Bytes(Ok(file.into())))
    }

    /// Returns the name in a recipe, and the bytes if the image is in memory.
    ///
    /// Errors if the pixels could not be encoded.
    pub(super) fn named(self) -> Result<(PathBuf, Option<Vec<u8>>)> {
        match self.0 {
            Source::File(path) => Ok((path, None)),
            Source::Bytes(bytes) => {
                let bytes = bytes?;
                let ending = ImageFormat::from_magic(&bytes).map_or("bin", ImageFormat::ending);
                Ok((name_in_memory("image", ending, &bytes), Some(bytes)))
            }
        }
    }
}

/// Returns the name in a recipe of a file in memory: its kind, and the beginning of its digest.
pub(super) fn name_in_memory(kind: &str, ending: &str, bytes: &[u8]) -> PathBuf {
    let digest = digest::hash_bytes(bytes);
    let digits = digest.rsplit(':').next().unwrap_or_default();
    format!("{kind}-{}.{ending}", &digits[..DIGITS.min(digits.len())]).into()
}

impl From<&Path> for InputImage {
    fn from(path: &Path) -> Self {
        Self(Source::File(path.to_path_buf()))
    }
}

impl From<PathBuf> for InputImage {
    fn from(path: PathBuf) -> Self {
        Self(Source::File(path))
    }
}

impl From<&PathBuf> for InputImage {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl From<&str> for InputImage {
    fn from(path: &str) -> Self {
        Self::from(Path::new(path))
    }
}

impl From<String> for InputImage {
    fn from(path: String) -> Self {
        Self::from(PathBuf::from(path))
    }
}

/// With the recipe of the image, as in its file.
impl From<&Image> for InputImage {
    fn from(image: &Image) -> Self {
        Self(Source::Bytes(image.encode(ImageFormat::Png)))
    }
}

impl From<&Rgb> for InputImage {
    fn from(image: &Rgb) -> Self {
        Self(Source::Bytes(output::encode(image, ImageFormat::Png, &Metadata::default())))
    }
}

impl From<RgbImage> for InputImage {
    fn from(image: RgbImage) -> Self {
        Self::from(&Rgb::from(image))
    }
}
