//! Reads an image of shapes: its background, and the color, shape and place of every object.
//!
//! The same steps as scripts/train_tiny/scorer.py: the background is the median of the border; cells that differ from
//! it fall into connected parts; a part has the nearest color of the palette and the shape whose template its outline,
//! by pixels, overlaps most.

use std::collections::HashMap;

use flux::output::Rgb;

/// The image is averaged to so many cells a side.
const CELLS: usize = 64;
/// sRGB distance from the background that makes a cell part of an object.
const DIFFERENT: f64 = 48.0;
/// Cells of the smallest object. A smaller part is a speck.
const SMALLEST: usize = 20;
/// What an aspect ratio that is off by a factor of e takes from the overlap.
const ASPECT_WEIGHT: f64 = 0.6;

type Color = [f64; 3];

/// The palette and the shapes that the reader recognises.
#[derive(serde::Deserialize)]
pub struct Reader {
    pub colors: HashMap<String, Color>,
    shapes: Vec<Template>,
}

/// A shape, scaled so that it fills a square.
#[derive(serde::Deserialize)]
struct Template {
    name: String,
    /// Logarithm of width by height.
    aspect: f64,
    /// `#` where the shape is.
    rows: Vec<String>,
}

/// What an image shows.
pub struct Seen {
    pub background: String,
    /// The largest first.
    pub objects: Vec<Object>,
    /// Connected parts, specks too.
    parts: usize,
    /// Share of the cells that differ from the background.
    covered: f64,
    /// Share of the cells at the border that differ from the background.
    border: f64,
}

pub struct Object {
    pub color: String,
    pub shape: String,
    /// Center, in parts of the image.
    pub x: f64,
    pub y: f64,
    /// The longer side of its outline, in parts of the image's shorter side.
    pub side: f64,
}

impl Seen {
    /// Whether it shows one or a few objects on an even background: not noise, not many specks, not nothing.
    pub fn is_clean(&self) -> bool {
        (1..=4).contains(&self.parts)
            && !self.objects.is_empty()
            && (0.02..0.75).contains(&self.covered)
            && self.border < 0.02
    }
}

impl Reader {
    /// Reads an image whose sides [`CELLS`] divides.
    pub fn read(&self, image: &Rgb) -> Seen {
        assert_eq!((image.width % CELLS, image.height % CELLS), (0, 0), "{} x {}", image.width, image.height);
        let background = border_median(image);
        let cells: Vec<Color> = averaged(image, [0, 0, image.width, image.height], CELLS);
        let mask: Vec<bool> = cells.iter().map(|cell| distance(*cell, background) > DIFFERENT).collect();
        let parts = parts(&mask);
        let large = || parts.iter().filter(|part| part.len() >= SMALLEST);
        let objects = large().map(|part| {
            let color = median(part.iter().map(|&i| cells[i]));
            let mut near = grown(part);
            large().filter(|other| *other != part).flatten().for_each(|&cell| near[cell] = false);
            let outline = outline(image, &near, color, background);
            let (_, width) = extent(outline.iter().map(|place| place.0));
            let (_, height) = extent(outline.iter().map(|place| place.1));
            Object {
                color: self.nearest_color(color),
                shape: self.nearest_shape(&outline),
                side: width.max(height) as f64 / image.width.min(image.height) as f64,
                x: (mean(part.iter().map(|i| i % CELLS)) + 0.5) / CELLS as f64,
                y: (mean(part.iter().map(|i| i / CELLS)) + 0.5) / CELLS as f64,
            }
        });
        let share = |among: &[usize]| among.iter().filter(|i| mask[**i]).count() as f64 / among.len() as f64;
        let at_border = |i: &usize| [i % CELLS, i / CELLS].iter().any(|at| *at == 0 || *at == CELLS - 1);
        let all: Vec<usize> = (0..mask.len()).collect();
        let border: Vec<usize> = all.iter().copied().filter(at_border).collect();
        Seen {
            background: self.nearest_color(background),
            objects: objects.collect(),
            parts: parts.len(),
            covered: share(&all),
            border: share(&border),
        }
    }

    fn nearest_color(&self, color: Color) -> String {
        let nearest = self.colors.iter().min_by(|a, b| distance(*a.1, color).total_cmp(&distance(*b.1, color)));
        nearest.expect("the palette has colors").0.clone()
    }

    fn nearest_shape(&self, outline: &[(usize, usize)]) -> String {
        let nearest = self.shapes.iter().max_by(|a, b| a.fit(outline).total_cmp(&b.fit(outline)));
        nearest.expect("there are templates").name.clone()
    }
}

impl Template {
    /// Intersection over union of an outline, scaled likewise, and the shape, less what the aspect ratios are apart.
    fn fit(&self, outline: &[(usize, usize)]) -> f64 {
        let (left, width) = extent(outline.iter().map(|place| place.0));
        let (top, height) = extent(outline.iter().map(|place| place.1));
        let mut inside = vec![false; width * height];
        outline.iter().for_each(|(x, y)| inside[(y - top) * width + x - left] = true);
        let side = self.rows.len();
        let nearest = |at: usize, length: usize| ((at as f64 + 0.5) / side as f64 * length as f64) as usize;
        let (mut both, mut either) = (0, 0);
        for (y, row) in self.rows.iter().enumerate() {
            for (x, cell) in row.bytes().enumerate() {
                let (ours, theirs) = (inside[nearest(y, height) * width + nearest(x, width)], cell == b'#');
                both += usize::from(ours && theirs);
                either += usize::from(ours || theirs);
            }
        }
        let aspect = (width as f64 / height as f64).ln();
        both as f64 / either.max(1) as f64 - ASPECT_WEIGHT * (aspect - self.aspect).abs()
    }
}

/// The smallest, and how many there are from it to the largest.
fn extent(places: impl Iterator<Item = usize>) -> (usize, usize) {
    let (first, last) = places.fold((usize::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    (first, last + 1 - first)
}

/// The cells of a part and those beside it, as a mask [CELLS, CELLS].
fn grown(part: &[usize]) -> Vec<bool> {
    let mut mask = vec![false; CELLS * CELLS];
    part.iter().for_each(|&cell| std::iter::once(cell).chain(neighbours(cell)).for_each(|at| mask[at] = true));
    mask
}

/// The pixels (x, y) of the cells `near` that are nearer to the object's color than to the background. Where there is
/// none, as an object of many colors may have it, all of them.
fn outline(image: &Rgb, near: &[bool], color: Color, background: Color) -> Vec<(usize, usize)> {
    let cell = |(x, y): &(usize, usize)| y * CELLS / image.height * CELLS + x * CELLS / image.width;
    let places = (0..image.height).flat_map(|y| (0..image.width).map(move |x| (x, y)));
    let places: Vec<_> = places.filter(|place| near[cell(place)]).collect();
    let own = |(x, y): &(usize, usize)| {
        let seen = pixel(image, *x, *y);
        distance(seen, color) < distance(seen, background)
    };
    let outline: Vec<_> = places.iter().copied().filter(own).collect();
    if outline.is_empty() { places } else { outline }
}

/// Part of an image (left, top, width, height), averaged to side x side; the windows of neighbours overlap where sizes
/// do not divide.
pub fn averaged(image: &Rgb, [left, top, width, height]: [usize; 4], side: usize) -> Vec<Color> {
    let window = |at: usize, length: usize| at * length / side..((at + 1) * length).div_ceil(side);
    let cell = |x: usize, y: usize| {
        let (columns, rows) = (window(x, width), window(y, height));
        let count = (columns.len() * rows.len()) as f64;
        let mut sum = [0.0; 3];
        for row in rows {
            for column in columns.clone() {
                add(&mut sum, pixel(image, left + column, top + row));
            }
        }
        sum.map(|value| value / count)
    };
    (0..side * side).map(|i| cell(i % side, i / side)).collect()
}

fn pixel(image: &Rgb, x: usize, y: usize) -> Color {
    let at = 3 * (y * image.width + x);
    [0, 1, 2].map(|channel| f64::from(image.bytes[at + channel]))
}

fn add(sum: &mut Color, color: Color) {
    sum.iter_mut().zip(color).for_each(|(sum, value)| *sum += value);
}

fn distance(a: Color, b: Color) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// The median of a frame of a fortieth of the height; corners count twice.
fn border_median(image: &Rgb) -> Color {
    let (width, height, edge) = (image.width, image.height, (image.height / 40).max(2));
    let rows = (0..edge).chain(height - edge..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let columns = (0..height).flat_map(|y| (0..edge).chain(width - edge..width).map(move |x| (x, y)));
    median(rows.chain(columns).map(|(x, y)| pixel(image, x, y)))
}

/// Of each channel by itself.
fn median(colors: impl Iterator<Item = Color>) -> Color {
    let colors: Vec<Color> = colors.collect();
    [0, 1, 2].map(|channel| {
        let mut values: Vec<f64> = colors.iter().map(|color| color[channel]).collect();
        values.sort_by(f64::total_cmp);
        (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
    })
}

fn mean(values: impl ExactSizeIterator<Item = usize>) -> f64 {
    let count = values.len() as f64;
    values.sum::<usize>() as f64 / count
}

/// The cells to the left, to the right, above and below.
fn neighbours(cell: usize) -> impl Iterator<Item = usize> {
    let (x, y) = (cell % CELLS, cell / CELLS);
    let among = [
        (x > 0, cell.wrapping_sub(1)),
        (x + 1 < CELLS, cell + 1),
        (y > 0, cell.wrapping_sub(CELLS)),
        (y + 1 < CELLS, cell + CELLS),
    ];
    among.into_iter().filter(|(inside, _)| *inside).map(|(_, at)| at)
}

/// The 4-connected parts of a mask [CELLS, CELLS] as lists of cells, the largest first.
fn parts(mask: &[bool]) -> Vec<Vec<usize>> {
    let mut rest = mask.to_vec();
    let mut found = Vec::new();
    for first in 0..rest.len() {
        if !std::mem::take(&mut rest[first]) {
            continue;
        }
        let mut part = vec![first];
        let mut next = 0;
        while let Some(&cell) = part.get(next) {
            next += 1;
            part.extend(neighbours(cell).filter(|at| std::mem::take(&mut rest[*at])));
        }
        found.push(part);
    }
    found.sort_by_key(|part| std::cmp::Reverse(part.len()));
    found
}
