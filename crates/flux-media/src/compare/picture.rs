//! Differences as an image.

use crate::rgb::Rgb;

/// The fraction of differing values that an amplified image shows without clipping.
const SHOWN: f64 = 0.99;

/// The absolute differences of two images, times a factor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amplified {
    /// Black where the images are equal.
    pub image: Rgb,
    /// The factor of the differences.
    pub factor: u8,
}

/// Returns the differences of two images of the same size, amplified until nearly the largest has full brightness. A
/// few larger outliers are clipped, so that they do not hide the rest.
pub fn amplified(a: &Rgb, b: &Rgb) -> Amplified {
    let apart = || a.bytes.iter().zip(&b.bytes).map(|(a, b)| a.abs_diff(*b));
    let factor = u8::MAX / nearly_largest(apart());
    let bytes = apart().map(|apart| apart.saturating_mul(factor)).collect();
    Amplified { image: Rgb { width: a.width, height: a.height, bytes }, factor }
}

/// Returns the smallest value that at least [`SHOWN`] of the values above 0 do not exceed; 255 if all are 0.
fn nearly_largest(values: impl Iterator<Item = u8>) -> u8 {
    let mut counts = [0u64; 256];
    values.for_each(|value| counts[usize::from(value)] += 1);
    let wanted = counts[1..].iter().sum::<u64>() as f64 * SHOWN;
    let mut seen = 0;
    let found = (1..=u8::MAX).find(|value| {
        seen += counts[usize::from(*value)];
        seen > 0 && seen as f64 >= wanted
    });
    found.unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: &[u8]) -> Rgb {
        Rgb { width: bytes.len() / 3, height: 1, bytes: bytes.to_vec() }
    }

    #[test]
    fn small_differences_are_made_bright() {
        let made = amplified(&row(&[10, 10, 10, 0, 0, 0]), &row(&[12, 8, 10, 1, 0, 0]));
        assert_eq!((made.factor, made.image.bytes.as_slice()), (127, [254, 254, 0, 127, 0, 0].as_slice()));
        assert_eq!((made.image.width, made.image.height), (2, 1));
    }

    #[test]
    fn one_value_that_is_far_apart_does_not_hide_the_others() {
        let a = row(&[0; 600]);
        let mut b = row(&[5; 600]);
        b.bytes[7] = 255;
        let made = amplified(&a, &b);
        assert_eq!((made.factor, made.image.bytes[6], made.image.bytes[7]), (51, 255, 255));
    }

    #[test]
    fn equal_images_are_black_and_large_differences_as_they_are() {
        let made = amplified(&row(&[9; 6]), &row(&[9; 6]));
        assert_eq!((made.factor, made.image), (1, row(&[0; 6])));
        assert_eq!(amplified(&row(&[0; 6]), &row(&[200; 6])), Amplified { image: row(&[200; 6]), factor: 1 });
    }
}
