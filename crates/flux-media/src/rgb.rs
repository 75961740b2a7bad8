//! An RGB image in memory.

use std::hash::{Hash, Hasher};

use flux_base::error::{Error, Result};
pub use image::RgbImage;

/// Distance between the bytes of an image that are hashed. Hashing all bytes of a megapixel would take a millisecond
/// or more; equality compares all bytes.
const HASHED: usize = 61;

/// An 8-bit RGB image: `bytes` is [height, width, 3].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Red, green, blue of every pixel, top row first.
    pub bytes: Vec<u8>,
}

impl Hash for Rgb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let some: Vec<u8> = self.bytes.iter().step_by(HASHED).copied().collect();
        (self.width, self.height, some).hash(state);
    }
}

impl From<RgbImage> for Rgb {
    fn from(image: RgbImage) -> Self {
        let (width, height) = (image.width() as usize, image.height() as usize);
        Self { width, height, bytes: image.into_raw() }
    }
}

/// Errors if the number of bytes is not that of the size.
impl TryFrom<Rgb> for RgbImage {
    type Error = Error;

    fn try_from(Rgb { width, height, bytes }: Rgb) -> Result<Self> {
        let sides = u32::try_from(width).ok().zip(u32::try_from(height).ok());
        let image = sides.and_then(|(width, height)| Self::from_raw(width, height, bytes));
        // The buffer may be longer than the image, which is wrong here too.
        image
            .filter(|image| image.as_raw().len() == 3 * width * height)
            .ok_or_else(|| Error::new(format!("the bytes do not match an image of {width} x {height} pixels")))
    }
}

impl Rgb {
    /// Returns the mean absolute difference from an image of the same size, in levels, over the cell [column, row] of
    /// a grid with `cells` columns and rows. `None` if the cell has no pixels.
    pub fn cell_difference(&self, other: &Self, cell: [usize; 2], cells: [usize; 2]) -> Option<f64> {
        let range = |axis: usize, side: usize| cell[axis] * side / cells[axis]..(cell[axis] + 1) * side / cells[axis];
        let (columns, rows) = (range(0, self.width), range(1, self.height));
        let count = 3 * columns.len() * rows.len();
        let of_row = |row: usize| {
            let bytes = 3 * (row * self.width + columns.start)..3 * (row * self.width + columns.end);
            let pairs = self.bytes[bytes.clone()].iter().zip(&other.bytes[bytes]);
            // With 32-bit sums the compiler vectorizes the loop.
            u64::from(pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum::<u32>())
        };
        (count > 0).then(|| rows.map(of_row).sum::<u64>() as f64 / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_converts_to_the_crate_image_and_back() {
        let rgb = Rgb { width: 3, height: 2, bytes: (0..18).collect() };
        let image = RgbImage::try_from(rgb.clone()).unwrap();
        assert_eq!((image.dimensions(), image.get_pixel(1, 1).0), ((3, 2), [12, 13, 14]));
        assert_eq!(Rgb::from(image), rgb);
        for wrong in [17, 19] {
            assert!(RgbImage::try_from(Rgb { bytes: vec![0; wrong], ..rgb.clone() }).is_err(), "{wrong}");
        }
    }
}
