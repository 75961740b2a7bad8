//! Signed manifests in image files.

use std::fmt::Debug;

use super::ImageFormat;
use crate::metadata::DigitalSource;
use flux_base::error::Result;

/// The statement about an image in a signed manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Source of the pixels.
    pub source: DigitalSource,
    /// Digests of the input images.
    pub inputs: Vec<String>,
    /// `true` if the image is an edited version of the first input.
    pub is_edit: bool,
}

/// Adds signed manifests to image files. A manifest covers the whole file, so it is added last.
pub trait Sign: Debug + Send + Sync {
    /// Returns the file with a manifest.
    ///
    /// Errors if the file cannot be signed.
    fn sign(&self, file: &[u8], format: ImageFormat, claim: &Claim) -> Result<Vec<u8>>;
}
