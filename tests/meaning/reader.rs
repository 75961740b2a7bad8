//! Reads an image of shapes: its background, and the color, shape and place of every object.
//!
//! The steps are those of scripts/train_tiny/scorer.py: the background is the median of the border; cells that differ
//! from it form connected parts; a part has the nearest color of the palette and the shape whose template overlaps its
//! outline, by pixels, the most.

use std::collections::HashMap;

use flux::output::Rgb;

/// Cells on a side, to which the image is averaged.
const CELLS: usize = 64;
/// Minimum sRGB distance from the background of an object's cell.
const DIFFERENT: f64 = 48.0;
/// Number of cells of the smallest object. Smaller parts are specks.
const SMALLEST: usize = 20;
/// Reduction of the overlap for an aspect ratio that is off by a factor of e.
const ASPECT_WEIGHT: f64 = 0.6;

type Color = [f64; 3];

/// The palette and the shapes that the reader recognises.
#[derive(serde::Deserialize)]
pub struct Reader {
    pub colors: HashMap<String, Color>,
    shapes: Vec<Template>,
}

/// A shape, scaled to fill a square.
#[derive(serde::Deserialize)]
struct Template {
    name: String,
    /// Logarithm of width by height.
    aspect: f64,
    /// `#` inside the shape.
    rows: Vec<String>,
}

/// The content of an image.
pub struct Seen {
    pub background: String,
    /// Largest first.
    pub objects: Vec<Object>,
    /// Number of connected parts, specks included.
    parts: usize,
    /// Share of the cells that differ from the background.
    covered: f64,
    /// Share of the cells at the border that differ from the background.
    border: f64,
}

pub struct Object {
    pub color: String,
    pub shape: String,
    /// Center, relative to the image.
    pub x: f64,
    pub y: f64,
    /// The longer side of its outline, relative to the image's shorter side.
    pub side: f64,
}

impl Seen {
    /// Returns `true` if it shows one or a few objects on an even background: no noise, few specks, not empty.
    pub fn is_clean(&self) -> bool {
        (1..=4).contains(&self.parts)
            && !self.objects.is_empty()
            && (0.02..0.75).contains(&self.covered)
            && self.border < 0.02
    }
}

impl Reader {
    /// Reads an image with sides that are multiples of [`CELLS`].
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
    /// Returns the intersection over union of an outline, scaled to a square, and the shape, reduced by the difference
    /// of the aspect ratios.
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

/// Returns the smallest place, and the number of places from it to the largest.
fn extent(places: impl Iterator<Item = usize>) -> (usize, usize) {
    let (first, last) = places.fold((usize::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    (first, last + 1 - first)
}

/// Returns the cells of a part and their neighbours, as a mask [CELLS, CELLS].
fn grown(part: &[usize]) -> Vec<bool> {
    let mut mask = vec![false; CELLS * CELLS];
    part.iter().for_each(|&cell| std::iter::once(cell).chain(neighbours(cell)).for_each(|at| mask[at] = true));
    mask
}

/// Returns the pixels (x, y) of the cells `near` that are nearer to the object's color than to the background. If
/// there are none, as in objects of many colors, returns all of them.
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

/// Averages a part of an image (left, top, width, height) to side x side; windows of neighbours overlap if sizes do
/// not divide.
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

/// Returns the median of a frame of a fortieth of the height; corners count twice.
fn border_median(image: &Rgb) -> Color {
    let (width, height, edge) = (image.width, image.height, (image.height / 40).max(2));
    let rows = (0..edge).chain(height - edge..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let columns = (0..height).flat_map(|y| (0..edge).chain(width - edge..width).map(move |x| (x, y)));
    median(rows.chain(columns).map(|(x, y)| pixel(image, x, y)))
}

/// Returns the median of each channel.
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

/// Returns the cells to the left, to the right, above and below.
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

/// Returns the 4-connected parts of a mask [CELLS, CELLS] as lists of cells, the largest first.
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
