//! Flags of `flux compare`.

use std::path::PathBuf;

use clap::Args;

use super::values::{decibels, path};

/// `flux compare`
#[derive(Args)]
pub struct Compare {
    /// Images (PNG, JPEG, WebP) or folders of images
    ///
    /// Two folders are compared by the names of their images. Otherwise, all images are compared with the first one.
    #[arg(value_name = "FILE", required = true, value_parser = path())]
    pub files: Vec<PathBuf>,
    /// Write an image of the differences, amplified to be visible
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub diff: Option<PathBuf>,
    /// Fail if the PSNR of any pair is lower
    #[arg(long, value_name = "DB", value_parser = decibels)]
    pub min_psnr: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
