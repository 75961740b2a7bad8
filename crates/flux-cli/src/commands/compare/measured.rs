//! The measured difference of two images.

use flux::Result;
use flux::compare::{difference, ssim};
use flux::output::Rgb;
use serde::{Serialize, Serializer};

/// The difference of two images of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    width: usize,
    height: usize,
    pub max: u8,
    pub mean: f64,
    /// In dB; `null` in JSON for equal images, where it is infinite.
    #[serde(rename = "psnr_db", serialize_with = "finite")]
    pub psnr: f64,
    /// `None` for images smaller than the SSIM window.
    pub ssim: Option<f64>,
    differing_pixels: usize,
}

fn finite<S: Serializer>(value: &f64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    Some(*value).filter(|value| value.is_finite()).serialize(serializer)
}

impl Measured {
    /// Compares two images. Errors when their sizes differ.
    pub fn compare(a: &Rgb, b: &Rgb) -> Result<Self> {
        let found = difference(a, b)?;
        Ok(Self {
            width: a.width,
            height: a.height,
            max: found.max,
            mean: found.mean,
            psnr: found.psnr_db,
            ssim: ssim(a, b),
            differing_pixels: found.differing,
        })
    }

    /// Formats all values on one line. Scripts parse the beginning of this line.
    pub fn line(&self) -> String {
        let [max, mean, psnr, ssim, differing] = self.cells();
        format!("max {max} mean {mean} psnr {psnr} dB ssim {ssim} differing {differing}")
    }

    /// Returns max, mean, PSNR, SSIM and the number of differing pixels.
    pub fn cells(&self) -> [String; 5] {
        [
            self.max.to_string(),
            format!("{:.4}", self.mean),
            format!("{:.2}", self.psnr),
            self.ssim.map_or("-".to_string(), |ssim| format!("{ssim:.5}")),
            format!("{} of {}", self.differing_pixels, self.width * self.height),
        ]
    }
}
