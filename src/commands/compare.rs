//! `flux compare`: how far two images are apart.

use std::path::Path;

use flux::compare::difference;
use flux::input::read;
use flux::{Error, Result};

use super::print;

/// Prints the differences.
///
/// Errors when an image cannot be read, their sizes differ, or they are further apart than `min_psnr`.
pub fn run(a: &Path, b: &Path, min_psnr: Option<f64>) -> Result<()> {
    let found = difference(&read(a)?, &read(b)?)?;
    print(format!("max {} mean {:.4} psnr {:.2} dB", found.max, found.mean, found.psnr_db).as_bytes())?;
    match min_psnr {
        Some(bound) if found.psnr_db < bound => {
            Err(Error::new(format!("the images are {:.2} dB apart, expected at least {bound} dB", found.psnr_db))
                .at(b.display().to_string()))
        }
        _ => Ok(()),
    }
}
