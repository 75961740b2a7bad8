//! Images side by side.

use flux::output::Rgb;
use image::imageops::{FilterType, replace, resize};
use image::{ImageBuffer, RgbImage};

/// Images in a row.
pub const COLUMNS: u32 = 4;
/// Pixels of an image's side in the sheet.
pub const SIDE: u32 = 192;

/// Images in rows of [`COLUMNS`], without gaps, each reduced to [`SIDE`] x [`SIDE`]; black where the last row ends
/// early.
pub fn contact_sheet(images: Vec<Rgb>) -> RgbImage {
    let rows = (images.len() as u32).div_ceil(COLUMNS);
    let mut sheet = RgbImage::new(COLUMNS * SIDE, rows * SIDE);
    for (i, image) in (0..).zip(images) {
        let pixels: RgbImage = ImageBuffer::from_raw(image.width as u32, image.height as u32, image.bytes)
            .expect("an image has all its pixels");
        replace(
            &mut sheet,
            &resize(&pixels, SIDE, SIDE, FilterType::Triangle),
            i64::from(i % COLUMNS * SIDE),
            i64::from(i / COLUMNS * SIDE),
        );
    }
    sheet
}
