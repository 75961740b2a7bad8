//! Pictures side by side.

use flux::output::Rgb;
use image::imageops::{FilterType, replace, resize};
use image::{ImageBuffer, RgbImage};

/// Pictures in a row.
pub const COLUMNS: u32 = 4;
/// Pixels of a picture's side in the sheet.
pub const SIDE: u32 = 192;

/// Pictures in rows of [`COLUMNS`], without gaps, each reduced to [`SIDE`] x [`SIDE`]; black where the last row ends early.
pub fn contact_sheet(pictures: Vec<Rgb>) -> RgbImage {
    let rows = (pictures.len() as u32).div_ceil(COLUMNS);
    let mut sheet = RgbImage::new(COLUMNS * SIDE, rows * SIDE);
    for (i, picture) in (0..).zip(pictures) {
        let pixels: RgbImage =
            ImageBuffer::from_raw(picture.width as u32, picture.height as u32, picture.bytes).expect("a picture has all its pixels");
        replace(&mut sheet, &resize(&pixels, SIDE, SIDE, FilterType::Triangle), i64::from(i % COLUMNS * SIDE), i64::from(i / COLUMNS * SIDE));
    }
    sheet
}
