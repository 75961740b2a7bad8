//! Contact sheets: images in rows, with a few lines of text under each.

use std::borrow::Cow;

use crate::input::resized;
use crate::lettering::{self, Size};
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};

/// Maximum side of a sheet in pixels, and maximum number of pixels: the same limits as for input images.
const MAX_SIDE: usize = 16384;
const MAX_PIXELS: usize = 1 << 27;
/// Maximum number of lines that a label's line or a title is wrapped to.
const MAX_LINES: usize = 8;
/// Pixels between an image and its text.
const ABOVE_TEXT: usize = 2;

/// An image of a sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The image at its displayed size.
    pub image: Rgb,
    /// The lines under it.
    pub label: Vec<String>,
}

/// The appearance of a sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Style {
    /// Images per row; `None` for a grid that is as square as possible.
    pub columns: Option<usize>,
    /// Pixels between images, and around them.
    pub gap: usize,
    /// The colour around images. Text is black or white, for contrast.
    pub background: [u8; 3],
    /// The text above the images.
    pub title: Option<String>,
}

impl Default for Style {
    fn default() -> Self {
        Self { columns: None, gap: 8, background: [255; 3], title: None }
    }
}

/// Returns the image scaled to a square of `side` pixels: larger images are scaled down, smaller ones are scaled up
/// only if `enlarges`.
pub fn fitted(image: &Rgb, side: usize, enlarges: bool) -> Cow<'_, Rgb> {
    let long = image.width.max(image.height);
    if long == side || (long < side && !enlarges) {
        return Cow::Borrowed(image);
    }
    let scaled = |length: usize| ((length * side + long / 2) / long).max(1);
    Cow::Owned(resized(image, [scaled(image.width), scaled(image.height)]))
}

/// Errors if a sheet of `images` squares with sides of `side` pixels, each with `lines` lines of text, would be too
/// large.
pub fn check_size(images: usize, side: usize, lines: usize, style: &Style) -> Result<()> {
    Grid::new(images, [side; 2], lines, style).size().map(drop)
}

/// Wraps the lines of a label to a column of `width` pixels.
fn wrapped(label: &[String], width: usize) -> Vec<String> {
    let columns = width / Size::Small.cell()[0];
    label.iter().flat_map(|text| lettering::wrapped(text, columns, MAX_LINES)).collect()
}

/// Draws the sheet. Each row is as high as the highest image, each column as wide as the widest. Images are centred in
/// their cells, and text is wrapped to a column's width.
///
/// Errors when there is no image, or the sheet would be too large.
pub fn sheet(cells: &[Cell], style: &Style) -> Result<Rgb> {
    let most = |of: fn(&Cell) -> usize| cells.iter().map(of).max().unwrap_or_default();
    let place = [most(|cell| cell.image.width), most(|cell| cell.image.height)];
    let labels: Vec<_> = cells.iter().map(|cell| wrapped(&cell.label, place[0])).collect();
    let grid = Grid::new(cells.len(), place, labels.iter().map(Vec::len).max().unwrap_or_default(), style);
    let [width, height] = grid.size()?;
    let mut sheet = Rgb { width, height, bytes: style.background.repeat(width * height) };
    let ink = ink(style.background);
    for (row, title) in grid.title_lines(style).iter().enumerate() {
        let top = style.gap + row * Size::Large.cell()[1];
        line(&mut sheet, [style.gap, top], width.saturating_sub(2 * style.gap), title, Size::Large, ink);
    }
    for (index, (cell, label)) in cells.iter().zip(&labels).enumerate() {
        let [left, top] = grid.place(index);
        let middle = [left + (place[0] - cell.image.width) / 2, top + (place[1] - cell.image.height) / 2];
        paste(&mut sheet, middle, &cell.image);
        let under = top + place[1] + ABOVE_TEXT;
        for (row, text) in label.iter().enumerate() {
            let top = under + row * Size::Small.cell()[1];
            line(&mut sheet, [left, top], place[0], text, Size::Small, ink);
        }
    }
    Ok(sheet)
}

/// The layout of a sheet.
struct Grid {
    columns: usize,
    rows: usize,
    gap: usize,
    /// Width and height of the space for an image.
    image: [usize; 2],
    /// The height of the space below an image.
    text: usize,
    /// The height of the space above all images.
    title: usize,
}

impl Grid {
    fn new(images: usize, image: [usize; 2], lines: usize, style: &Style) -> Self {
        let square = images.isqrt();
        let square = if square * square < images { square + 1 } else { square };
        let columns = style.columns.unwrap_or(square).min(images);
        let text = if lines == 0 { 0 } else { ABOVE_TEXT + lines * Size::Small.cell()[1] };
        let rows = images.div_ceil(columns.max(1));
        let grid = Self { columns, rows, gap: style.gap, image, text, title: 0 };
        let lines = grid.title_lines(style).len();
        Self { title: if lines == 0 { 0 } else { style.gap + lines * Size::Large.cell()[1] }, ..grid }
    }

    /// Wraps the title to the sheet's width.
    fn title_lines(&self, style: &Style) -> Vec<String> {
        let width = self.columns.saturating_mul(self.step()[0]).saturating_sub(self.gap);
        let wrapped = |title: &String| lettering::wrapped(title, width / Size::Large.cell()[0], MAX_LINES);
        style.title.as_ref().map(wrapped).unwrap_or_default()
    }

    /// Returns the upper left corner of an image's space.
    fn place(&self, index: usize) -> [usize; 2] {
        let [width, height] = self.step();
        let (column, row) = (index % self.columns, index / self.columns);
        [self.gap + column * width, self.title + self.gap + row * height]
    }

    /// Returns the distance from one image to the next.
    fn step(&self) -> [usize; 2] {
        let [width, height] = self.image;
        [width.saturating_add(self.gap), height.saturating_add(self.text + self.gap)]
    }

    /// Returns width and height of the sheet.
    fn size(&self) -> Result<[usize; 2]> {
        if self.columns == 0 {
            return Err(Error::new("the sheet has no images").hint("name at least one image"));
        }
        let [width, height] = self.step();
        let width = self.columns.saturating_mul(width).saturating_add(self.gap);
        let height = self.rows.saturating_mul(height).saturating_add(self.gap + self.title);
        if width.max(height) > MAX_SIDE || width.saturating_mul(height) > MAX_PIXELS {
            return Err(Error::new(format!(
                "the sheet would be {width}x{height}, expected at most {MAX_SIDE} pixels per side and {MAX_PIXELS} in \
                 total"
            ))
            .hint("use smaller images, fewer images, or another number of columns"));
        }
        Ok([width, height])
    }
}

/// Returns black or white, whichever has more contrast.
fn ink([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let luma = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    if luma >= 128_000 { [0; 3] } else { [255; 3] }
}

/// Draws a line of text, centred in `width` pixels and cut to them.
fn line(sheet: &mut Rgb, [left, top]: [usize; 2], width: usize, text: &str, size: Size, ink: [u8; 3]) {
    let letter = size.cell()[0];
    let text = lettering::cut(text, width / letter);
    let free = width - lettering::columns(&text) * letter;
    lettering::draw(sheet, [left + free / 2, top], &text, size, ink);
}

/// Copies an image into the sheet, which has enough space.
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
        // A line of 40 pixels has 4 letters.
        let cells = [cell(gray(40, 40, 0), &["1"]), cell(gray(20, 10, 0), &["a tall", "two"])];
        let style = Style { gap: 0, columns: Some(2), ..Style::default() };
        let made = sheet(&cells, &style).unwrap();
        assert_eq!((made.width, made.height), (80, 40 + 2 + 3 * 21));
        assert_eq!(
            (at(&made, 40 + 9, 20), at(&made, 40 + 10, 15), at(&made, 40 + 10, 14)),
            ([255; 3], [0; 3], [255; 3])
        );
        let has_ink = |x: std::ops::Range<usize>, y: std::ops::Range<usize>| {
            y.into_iter().any(|y| x.clone().any(|x| at(&made, x, y)[0] < 128))
        };
        assert!(has_ink(0..40, 42..63) && has_ink(40..80, 42..63) && has_ink(40..80, 63..84));
        assert!(has_ink(40..80, 84..105), "the second label follows the lines of the first");
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
        let style = Style { title: Some("four seeds".to_string()), ..Style::default() };
        assert_eq!(sheet(&[cell(gray(100, 20, 90), &[])], &style).unwrap().height, 8 + 2 * 28 + 8 + 20 + 8);
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
        assert!(refused(10_000, 1024).contains("16384 pixels"));
        assert!(refused(usize::MAX / 2, usize::MAX / 4).contains("the sheet would be"));
        assert!(check_size(1000, 256, 1, &Style::default()).is_ok());
        assert!(sheet(&[], &Style::default()).unwrap_err().to_string().contains("no images"));
    }
}
