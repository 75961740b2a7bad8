//! Comparison of images: how much they differ, and where. It works on pixels and knows nothing of models. Start reading
//! at [`difference`] and [`ssim()`].

mod flicker;
mod picture;
mod ssim;

pub use flicker::{Framed, flicker};
pub use picture::{Amplified, amplified};
pub use ssim::{WINDOW, ssim};

use crate::rgb::Rgb;
use flux_base::error::{Error, Result};

/// Differences of 8-bit values, over all pixels and colours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The maximum difference.
    pub max: u8,
    /// The mean absolute difference.
    pub mean: f64,
    /// Peak signal-to-noise ratio, `10 log10(255^2 / mean square)`, in dB; infinite for equal images.
    pub psnr_db: f64,
    /// The number of pixels that differ in any colour.
    pub differing: usize,
}

/// Compares two images.
///
/// Errors when their sizes differ.
pub fn difference(a: &Rgb, b: &Rgb) -> Result<Difference> {
    if (a.width, a.height) != (b.width, b.height) {
        return Err(Error::new(format!(
            "the images have different sizes: {}x{} and {}x{}",
            a.width, a.height, b.width, b.height
        ))
        .at("compare")
        .hint("name two images of the same size"));
    }
    let (mut max, mut sum, mut squares) = (0, 0u64, 0u64);
    for (&x, &y) in a.bytes.iter().zip(&b.bytes) {
        let apart = x.abs_diff(y);
        max = max.max(apart);
        sum += u64::from(apart);
        squares += u64::from(apart).pow(2);
    }
    let count = a.bytes.len() as f64;
    let (a, b) = (a.bytes.as_chunks::<3>().0, b.bytes.as_chunks::<3>().0);
    let differing = a.iter().zip(b).filter(|(a, b)| a != b).count();
    Ok(Difference {
        max,
        mean: sum as f64 / count,
        psnr_db: 10.0 * (255.0f64.powi(2) * count / squares as f64).log10(),
        differing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gray(level: u8) -> Rgb {
        Rgb { width: 4, height: 2, bytes: vec![level; 24] }
    }

    #[test]
    fn equal_images_are_infinitely_alike() {
        let equal = Difference { max: 0, mean: 0.0, psnr_db: f64::INFINITY, differing: 0 };
        assert_eq!(difference(&gray(9), &gray(9)).unwrap(), equal);
    }

    #[test]
    fn one_level_everywhere_is_48_db() {
        let found = difference(&gray(9), &gray(10)).unwrap();
        assert_eq!((found.max, found.mean), (1, 1.0));
        assert!((found.psnr_db - 48.1308).abs() < 1e-4, "{}", found.psnr_db);
        assert_eq!(found.differing, 8);
    }

    #[test]
    fn a_pixel_differs_where_one_of_its_colours_does() {
        let mut other = gray(9);
        (other.bytes[4], other.bytes[5], other.bytes[23]) = (20, 8, 0);
        let found = difference(&gray(9), &other).unwrap();
        assert_eq!((found.differing, found.max, found.mean), (2, 11, 21.0 / 24.0));
    }

    #[test]
    fn other_sizes_are_refused() {
        let tall = Rgb { width: 2, height: 4, bytes: vec![0; 24] };
        assert!(difference(&gray(0), &tall).unwrap_err().to_string().contains("4x2 and 2x4"));
    }
}
