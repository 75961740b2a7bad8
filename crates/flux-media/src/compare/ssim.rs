//! The structural similarity of two images.
//!
//! Source: Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to structural
//! similarity", 2004. For each colour, in windows of 11 x 11 pixels under a Gaussian of sigma 1.5,
//!
//! ```text
//! (2 mean_a mean_b + C1) (2 cov + C2) / ((mean_a^2 + mean_b^2 + C1) (var_a + var_b + C2))
//! C1 = (0.01 * 255)^2, C2 = (0.03 * 255)^2
//! ```
//!
//! averaged over all windows inside the image, and over red, green and blue. scikit-image computes the same value with
//! `structural_similarity(a, b, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
//! data_range=255)`.

use rayon::prelude::*;

use crate::rgb::Rgb;

/// Pixels on a side of a window.
pub const WINDOW: usize = 11;
const SIGMA: f64 = 1.5;
const C1: f64 = 2.55 * 2.55;
const C2: f64 = 7.65 * 7.65;
/// Rows of windows per task.
const BAND: usize = 16;

/// Weighted sums of `a`, `b`, `a^2`, `b^2` and `ab`.
type Moments = [f64; 5];

/// Returns the mean over all windows and colours, for images of the same size; `None` if a side is shorter than a
/// window.
pub fn ssim(a: &Rgb, b: &Rgb) -> Option<f64> {
    let rows = (a.height + 1).checked_sub(WINDOW).filter(|rows| *rows > 0)?;
    let columns = (a.width + 1).checked_sub(WINDOW).filter(|columns| *columns > 0)?;
    let weights = weights();
    let bands: Vec<_> = (0..rows).step_by(BAND).collect();
    // Sums of bands are added in order, so that the result does not depend on the number of threads.
    let sums: Vec<f64> = bands
        .into_par_iter()
        .map(|first| (0..3).map(|channel| band(a, b, channel, first..rows.min(first + BAND), &weights)).sum())
        .collect();
    Some(sums.iter().sum::<f64>() / (3 * rows * columns) as f64)
}

fn weights() -> [f64; WINDOW] {
    let gauss = |place: usize| {
        let x = place as f64 - (WINDOW / 2) as f64;
        (-x * x / (2.0 * SIGMA * SIGMA)).exp()
    };
    let weights: [f64; WINDOW] = std::array::from_fn(gauss);
    let sum: f64 = weights.iter().sum();
    weights.map(|weight| weight / sum)
}

/// Returns the sum over the windows whose first rows are `rows`, for one channel.
fn band(a: &Rgb, b: &Rgb, channel: usize, rows: std::ops::Range<usize>, weights: &[f64; WINDOW]) -> f64 {
    let along_rows: Vec<Vec<Moments>> =
        (rows.start..rows.end + WINDOW - 1).map(|row| along_row(a, b, channel, row, weights)).collect();
    let similarity = |moments: Moments| {
        let [mean_a, mean_b, square_a, square_b, product] = moments;
        let (var_a, var_b) = (square_a - mean_a * mean_a, square_b - mean_b * mean_b);
        let cov = product - mean_a * mean_b;
        (2.0 * mean_a * mean_b + C1) * (2.0 * cov + C2)
            / ((mean_a * mean_a + mean_b * mean_b + C1) * (var_a + var_b + C2))
    };
    let of_row = |lines: &[Vec<Moments>]| -> f64 {
        (0..lines[0].len()).map(|at| similarity(weighted(lines.iter().map(|line| line[at]), weights))).sum()
    };
    along_rows.windows(WINDOW).map(of_row).sum()
}

/// Returns the moments of the windows of one row of pixels.
fn along_row(a: &Rgb, b: &Rgb, channel: usize, row: usize, weights: &[f64; WINDOW]) -> Vec<Moments> {
    let levels = |image: &Rgb| -> Vec<f64> {
        let pixels = &image.bytes[3 * row * image.width..3 * (row + 1) * image.width];
        pixels.iter().skip(channel).step_by(3).map(|level| f64::from(*level)).collect()
    };
    let moments = |(a, b): (f64, f64)| [a, b, a * a, b * b, a * b];
    let pixels: Vec<Moments> = levels(a).into_iter().zip(levels(b)).map(moments).collect();
    pixels.windows(WINDOW).map(|window| weighted(window.iter().copied(), weights)).collect()
}

fn weighted(values: impl Iterator<Item = Moments>, weights: &[f64; WINDOW]) -> Moments {
    let mut sums = [0.0; 5];
    for (moments, weight) in values.zip(weights) {
        sums.iter_mut().zip(moments).for_each(|(sum, value)| *sum += weight * value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two similar images of the expected values below.
    fn pair(width: usize, height: usize) -> [Rgb; 2] {
        let mut bytes = [Vec::new(), Vec::new()];
        for (y, x, c) in (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |c| (y, x, c)))) {
            let level = (x * x * 7 + y * 13 + c * 29) % 256;
            let apart = (x * y * 31 + c * 17 + y) % 41;
            bytes[0].push(level as u8);
            bytes[1].push((level + apart).saturating_sub(20).min(255) as u8);
        }
        bytes.map(|bytes| Rgb { width, height, bytes })
    }

    #[test]
    fn it_is_that_of_scikit_image() {
        const EXPECTED: [(usize, usize, f64); 3] =
            [(16, 12, 0.9878904220354586), (11, 11, 0.9885462102561308), (40, 57, 0.9838987457199168)];
        // Computed with scikit-image 0.26.0, by the call in the module doc.
        for (width, height, expected) in EXPECTED {
            let [a, b] = pair(width, height);
            let found = ssim(&a, &b).unwrap();
            assert!((found - expected).abs() < 1e-9, "{width}x{height}: {found}, expected {expected}");
        }
    }

    #[test]
    fn equal_images_are_1_and_one_window_has_no_neighbour() {
        let [a, b] = pair(30, 20);
        assert_eq!(ssim(&a, &a), Some(1.0));
        assert!(ssim(&a, &b) == ssim(&b, &a));
        for (width, height) in [(10, 40), (40, 10), (1, 1)] {
            let [a, b] = pair(width, height);
            assert_eq!(ssim(&a, &b), None, "{width}x{height}");
        }
    }

    #[test]
    fn flat_images_differ_by_their_means_alone() {
        // By hand: (2 * 100 * 110 + C1) / (100^2 + 110^2 + C1).
        let flat = |level| Rgb { width: 12, height: 12, bytes: vec![level; 12 * 12 * 3] };
        let expected = (22_000.0 + C1) / (22_100.0 + C1);
        assert!((ssim(&flat(100), &flat(110)).unwrap() - expected).abs() < 1e-9);
    }
}
