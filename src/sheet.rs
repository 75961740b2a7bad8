//! A contact sheet: images in rows, with a few lines of text under each.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::input::resized;
use crate::lettering::{self, Size};
use crate::rgb::Rgb;

/// The longest side of a sheet in pixels, and the most pixels: as of the images that are read.
const MAX_SIDE: usize = 16384;
const MAX_PIXELS: usize = 1 << 27;
/// Pixels between an image and its text.
const ABOVE_TEXT: usize = 2;

/// An image of a sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// As it is shown.
    pub image: Rgb,
    /// The lines under it.
    pub label: Vec<String>,
}

/// How a sheet looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Style {
    /// Images of a row; without it as many as there are rows, or one more.
    pub columns: Option<usize>,
    /// Pixels between images, and around them.
    pub gap: usize,
    /// The colour around images. Text is black or white, whichever stands out.
    pub background: [u8; 3],
    /// The line above the images.
    pub title: Option<String>,
}

impl Default for Style {
    fn default() -> Self {
        Self { columns: None, gap: 8, background: [255; 3], title: None }
    }
}

/// The image in a square of `side` pixels: scaled down where it is larger, and where `enlarges` says so up where it is
/// smaller.
pub fn fitted(image: &Rgb, side: usize, enlarges: bool) -> Cow<'_, Rgb> {
    let long = image.width.max(image.height);
    if long == side || (long < side && !enlarges) {
        return Cow::Borrowed(image);
    }
    let scaled = |length: usize| ((length * side + long / 2) / long).max(1);
    Cow::Owned(resized(image, [scaled(image.width), scaled(image.height)]))
}

/// Errors when a sheet of so many images, each a square of `side` pixels with so many lines under it, would be too
/// large.
pub fn check_size(images: usize, side: usize, lines: usize, style: &Style) -> Result<()> {
    Grid::new(images, [side; 2], lines, style).size().map(drop)
}

/// Draws the sheet. Its rows are as high as its highest image, its columns as wide as the widest; images are in the
/// middle of their places, and the text is as wide as a column.
///
/// Errors when there is no image, or the sheet would be too large.
pub fn sheet(cells: &[Cell], style: &Style) -> Result<Rgb> {
    let most = |of: fn(&Cell) -> usize| cells.iter().map(of).max().unwrap_or_default();
    let place = [most(|cell| cell.image.width), most(|cell| cell.image.height)];
    let grid = Grid::new(cells.len(), place, most(|cell| cell.label.len()), style);
    let [width, height] = grid.size()?;
    let mut sheet = Rgb { width, height, bytes: style.background.repeat(width * height) };
    let ink = ink(style.background);
    if let Some(title) = &style.title {
        line(&mut sheet, [style.gap, style.gap], width.saturating_sub(2 * style.gap), title, Size::Large, ink);
    }
    for (index, cell) in cells.iter().enumerate() {
        let [left, top] = grid.place(index);
        let middle = [left + (place[0] - cell.image.width) / 2, top + (place[1] - cell.image.height) / 2];
        paste(&mut sheet, middle, &cell.image);
        let under = top + place[1] + ABOVE_TEXT;
        for (row, text) in cell.label.iter().enumerate() {
            let top = under + row * Size::Small.cell()[1];
            line(&mut sheet, [left, top], place[0], text, Size::Small, ink);
        }
    }
    Ok(sheet)
}

/// Where things are on a sheet.
struct Grid {
    columns: usize,
    rows: usize,
    gap: usize,
    /// Width and height of the room for an image.
    image: [usize; 2],
    /// The height of the room under it.
    text: usize,
    /// The height of the room above all.
    title: usize,
}

impl Grid {
    fn new(images: usize, image: [usize; 2], lines: usize, style: &Style) -> Self {
        let square = images.isqrt();
        let square = if square * square < images { square + 1 } else { square };
        let columns = style.columns.unwrap_or(square).min(images);
        let text = if lines == 0 { 0 } else { ABOVE_TEXT + lines * Size::Small.cell()[1] };
        let title = if style.title.is_some() { style.gap + Size::Large.cell()[1] } else { 0 };
        Self { columns, rows: images.div_ceil(columns.max(1)), gap: style.gap, image, text, title }
    }

    /// The upper left corner of an image's room.
    fn place(&self, index: usize) -> [usize; 2] {
        let [width, height] = self.step();
        let (column, row) = (index % self.columns, index / self.columns);
        [self.gap + column * width, self.title + self.gap + row * height]
    }

    /// From one image to the next.
    fn step(&self) -> [usize; 2] {
        [self.image[0] + self.gap, self.image[1] + self.text + self.gap]
    }

    /// Width and height of the sheet.
    fn size(&self) -> Result<[usize; 2]> {
        if self.columns == 0 {
            return Err(Error::new("a sheet of no images").hint("name the images"));
        }
        let [width, height] = self.step();
        let width = self.columns.saturating_mul(width).saturating_add(self.gap);
        let height = self.rows.saturating_mul(height).saturating_add(self.gap + self.title);
        if width.max(height) > MAX_SIDE || width.saturating_mul(height) > MAX_PIXELS {
            return Err(Error::new(format!(
                "the sheet would be {width}x{height}, expected at most {MAX_SIDE} pixels a side and {MAX_PIXELS} in all"
            ))
            .hint("make the images smaller, take fewer of them, or change the columns"));
        }
        Ok([width, height])
    }
}

/// Black or white, whichever stands out.
fn ink([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let luma = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    if luma >= 128_000 { [0; 3] } else { [255; 3] }
}

/// A line in the middle of a room of `width` pixels, cut to it.
fn line(sheet: &mut Rgb, [left, top]: [usize; 2], width: usize, text: &str, size: Size, ink: [u8; 3]) {
    let letter = size.cell()[0];
    let text = lettering::cut(text, width / letter);
    let free = width - lettering::columns(&text) * letter;
    lettering::draw(sheet, [left + free / 2, top], &text, size, ink);
}

/// Lays an image over the sheet, which has room for it.
fn paste(sheet: &mut Rgb, [left, top]: [usize; 2], image: &Rgb) {
    for (row, pixels) in image.bytes.chunks_exact(3 * image.width).enumerate() {
        let start = 3 * ((top + row) * sheet.width + left);
        sheet.bytes[start..start + pixels.len()].copy_from_slice(pixels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gray(width: usize, height: usize, level: u8) -> Rgb {
        Rgb { width, height, bytes: vec![level; width * height * 3] }
    }

    fn cell(image: Rgb, label: &[&str]) -> Cell {
        Cell { image, label: label.iter().map(ToString::to_string).collect() }
    }

    fn at(image: &Rgb, x: usize, y: usize) -> [u8; 3] {
        image.bytes.as_chunks::<3>().0[y * image.width + x]
    }

    #[test]
    fn images_lie_in_rows_with_gaps_around_them() {
        let cells: Vec<_> = (1..=5).map(|level| cell(gray(8, 6, level * 10), &[])).collect();
        let style = Style { gap: 2, background: [255, 0, 0], ..Style::default() };
        let made = sheet(&cells, &style).unwrap();
        assert_eq!((made.width, made.height), (3 * 10 + 2, 2 * 8 + 2));
        for (x, y, color) in [(2, 2, [10; 3]), (9, 7, [10; 3]), (12, 2, [20; 3]), (2, 10, [40; 3]), (12, 10, [50; 3])] {
            assert_eq!(at(&made, x, y), color, "{x} {y}");
        }
        for (x, y) in [(0, 0), (1, 5), (10, 5), (5, 8), (22, 10), (31, 17)] {
            assert_eq!(at(&made, x, y), [255, 0, 0], "{x} {y}");
        }
    }

    #[test]
    fn columns_are_near_a_square_or_as_asked_for() {
        let size = |images, columns| {
            let style = Style { columns, gap: 0, ..Style::default() };
            Grid::new(images, [10, 10], 0, &style).size().unwrap()
        };
        for (images, expected) in [(1, [10, 10]), (2, [20, 10]), (4, [20, 20]), (5, [30, 20]), (12, [40, 30])] {
            assert_eq!(size(images, None), expected, "{images}");
        }
        assert_eq!((size(12, Some(6)), size(2, Some(6))), ([60, 20], [20, 10]));
    }

    #[test]
    fn smaller_images_are_in_the_middle_and_labels_under_their_place() {
        let cells = [cell(gray(40, 40, 0), &["1"]), cell(gray(20, 10, 0), &["a very long label", "two"])];
        let style = Style { gap: 0, columns: Some(2), ..Style::default() };
        let made = sheet(&cells, &style).unwrap();
        assert_eq!((made.width, made.height), (80, 40 + 2 + 2 * 21));
        assert_eq!(
            (at(&made, 40 + 9, 20), at(&made, 40 + 10, 15), at(&made, 40 + 10, 14)),
            ([255; 3], [0; 3], [255; 3])
        );
        let has_ink = |x: std::ops::Range<usize>, y: std::ops::Range<usize>| {
            y.into_iter().any(|y| x.clone().any(|x| at(&made, x, y)[0] < 128))
        };
        assert!(has_ink(0..40, 42..63) && has_ink(40..80, 42..63) && has_ink(40..80, 63..84));
        assert!(!has_ink(0..40, 63..84), "the first has one line");
        assert!(!has_ink(0..15, 42..63) && !has_ink(25..40, 42..63), "a short label is in the middle");
    }

    #[test]
    fn a_title_is_above_and_stands_out_on_every_background() {
        for (background, ink) in [([255; 3], [0; 3]), ([20, 20, 90], [255; 3])] {
            let style = Style { title: Some("seeds".to_string()), background, ..Style::default() };
            let made = sheet(&[cell(gray(100, 20, 90), &[])], &style).unwrap();
            assert_eq!((made.width, made.height), (116, 8 + 28 + 8 + 20 + 8));
            let rows = &made.bytes[..3 * 116 * 36];
            assert!(rows.as_chunks::<3>().0.contains(&ink), "{background:?}");
            assert_eq!(at(&made, 8, 44), [90; 3]);
        }
    }

    #[test]
    fn images_are_scaled_down_to_a_square_and_up_only_where_asked_for() {
        let size = |image: &Rgb, side, enlarges| {
            let made = fitted(image, side, enlarges);
            (made.width, made.height)
        };
        assert_eq!(size(&gray(64, 48, 1), 32, false), (32, 24));
        assert_eq!(size(&gray(48, 64, 1), 32, false), (24, 32));
        assert_eq!(size(&gray(16, 8, 1), 32, false), (16, 8));
        assert_eq!(size(&gray(16, 8, 1), 32, true), (32, 16));
        assert_eq!(size(&gray(1000, 1, 1), 32, false), (32, 1));
    }

    #[test]
    fn sheets_that_are_too_large_or_empty_are_refused() {
        let refused = |images, side| check_size(images, side, 1, &Style::default()).unwrap_err().to_string();
        assert!(refused(10_000, 1024).contains("expected at most 16384 pixels a side"));
        assert!(refused(usize::MAX / 2, usize::MAX / 4).contains("the sheet would be"));
        assert!(check_size(1000, 256, 1, &Style::default()).is_ok());
        assert!(sheet(&[], &Style::default()).unwrap_err().to_string().contains("no images"));
    }
}
