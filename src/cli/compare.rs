//! Which images to compare.

use std::path::PathBuf;

use clap::Args;

use super::values::{decibels, path};

/// `flux compare`
#[derive(Args)]
pub struct Compare {
    /// An image (PNG, JPEG, WebP), or a folder of images
    #[arg(value_parser = path())]
    pub a: PathBuf,
    /// What to compare it with: an image of the same size, or a folder with images of the same names
    #[arg(value_parser = path())]
    pub b: PathBuf,
    /// Write an image of the differences, amplified so that they can be seen
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub diff: Option<PathBuf>,
    /// Fail when the PSNR is lower, of folders that of any pair
    #[arg(long, value_name = "DB", value_parser = decibels)]
    pub min_psnr: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
