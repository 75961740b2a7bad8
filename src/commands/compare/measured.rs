//! What is said of two images.

use flux::Result;
use flux::compare::{difference, ssim};
use flux::output::Rgb;
use serde::{Serialize, Serializer};

/// How far two images of one size are apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    width: usize,
    height: usize,
    pub max: u8,
    pub mean: f64,
    /// In dB; nothing in JSON for equal images, whose is infinite.
    #[serde(rename = "psnr_db", serialize_with = "finite")]
    pub psnr: f64,
    /// Of images that are smaller than its window there is none.
    pub ssim: Option<f64>,
    differing_pixels: usize,
}

fn finite<S: Serializer>(value: &f64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    Some(*value).filter(|value| value.is_finite()).serialize(serializer)
}

impl Measured {
    /// Errors when the sizes differ.
    pub fn of(a: &Rgb, b: &Rgb) -> Result<Self> {
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

    /// All of it in one line. Scripts read its beginning.
    pub fn line(&self) -> String {
        let [max, mean, psnr, ssim, differing] = self.cells();
        format!("max {max} mean {mean} psnr {psnr} dB ssim {ssim} differing {differing}")
    }

    /// Max, mean, PSNR, SSIM and the pixels that differ.
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
