//! The sizes in which models read images.

use std::borrow::Cow;

use super::lanczos;
use super::region::Region;
use crate::rgb::Rgb;
use flux_base::error::{Error, Result};
use flux_base::memory;
use flux_base::stage::CancelFlag;

/// The sides of a model's image are multiples of this many pixels.
pub const CELL: usize = 16;

/// Larger images are scaled down to about this many pixels.
const MEGAPIXEL: usize = 1024 * 1024;

/// Maximum pixels of a single reference, and the maximum length of its sides.
const MAX_SINGLE: usize = 4 * MEGAPIXEL;
const MAX_CANVAS: usize = 4096;

const MIN_REFERENCE_SIDE: usize = 64;
const MAX_REFERENCE_RATIO: usize = 8;
/// The hint for an image that is too narrow.
const NARROW: &str = "crop it, or scale it up with another program";

/// [`reference_of_any_size`] for models that bound the size of references.
///
/// Errors as [`check_reference`].
pub fn reference(image: &Rgb) -> Result<Rgb> {
    check_reference([image.width, image.height])?;
    reference_of_any_size(image)
}

/// Errors if a side of a reference image is below 64 pixels, or more than eight times the other side.
pub fn check_reference([width, height]: [usize; 2]) -> Result<()> {
    let (long, short) = (width.max(height), width.min(height));
    let wrong = |expected: &str| Error::new(format!("the reference image is {width}x{height}, expected {expected}"));
    if short < MIN_REFERENCE_SIDE {
        return Err(wrong("sides of at least 64").hint("scale it up with another program"));
    }
    if long > MAX_REFERENCE_RATIO * short {
        return Err(wrong("an aspect ratio of at most 8").hint("crop it"));
    }
    Ok(())
}

/// Scales a reference image above 1024 x 1024 pixels down to at most as many, and takes its middle, with sides that
/// are multiples of 16.
///
/// Errors if less than 16 pixels are left of a side.
pub fn reference_of_any_size(image: &Rgb) -> Result<Rgb> {
    let _reserved = memory::reserve(image.bytes.len())?;
    let scaled = scaled_down(image);
    let size = floored([scaled.width, scaled.height]);
    if size.contains(&0) {
        let what =
            format!("the reference image is {}x{}, too narrow to keep 16 pixels per side", image.width, image.height);
        return Err(Error::new(what).hint(NARROW));
    }
    Ok(cut(&scaled, Region::middle([scaled.width, scaled.height], size)))
}

/// Scales an image above 1024 x 1024 pixels down to at most as many.
pub fn capped(image: Rgb) -> Rgb {
    match scaled_down(&image) {
        Cow::Owned(scaled) => scaled,
        Cow::Borrowed(_) => image,
    }
}

/// Prepares a single reference image for models that keep its size: scaled down to at most four megapixels, in the
/// middle of a canvas whose sides are multiples of 16. Also returns the image's place in the canvas. Around that place
/// the image is mirrored.
///
/// Source: FLUX.3 reference image processor, in its mode `fill`.
pub fn reference_alone(image: &Rgb) -> Result<(Rgb, Region)> {
    let (width, height) = (image.width, image.height);
    if width == 0 || height == 0 {
        return Err(Error::new("the reference image has no pixels"));
    }
    let _reserved = memory::reserve(image.bytes.len())?;
    let Canvas { scaled, canvas } = Canvas::new([width, height]);
    let scaled = if scaled == [width, height] { Cow::Borrowed(image) } else { Cow::Owned(resized(image, scaled)) };
    let place = Region::middle(canvas, [scaled.width, scaled.height]);
    let [columns, rows] = [
        mirrored([scaled.width, scaled.height], scaled.width, place.left, canvas[0]),
        mirrored([scaled.width, scaled.height], scaled.height, place.top, canvas[1]),
    ];
    let pixel = |y: usize, x: usize| &scaled.bytes[3 * (y * scaled.width + x)..][..3];
    let bytes = rows.iter().flat_map(|&y| columns.iter().flat_map(move |&x| pixel(y, x))).copied().collect();
    Ok((Rgb { width: canvas[0], height: canvas[1], bytes }, place))
}

/// Cuts out a region of an image.
pub fn cropped(image: &Rgb, region: Region) -> Rgb {
    cut(image, region)
}

/// The size of a single reference, and of the canvas that it is padded to.
struct Canvas {
    scaled: [usize; 2],
    canvas: [usize; 2],
}

impl Canvas {
    fn new(size: [usize; 2]) -> Self {
        let [width, height] = size.map(|side| side as f64);
        let mut scale =
            (MAX_SINGLE as f64 / (width * height)).sqrt().min(MAX_CANVAS as f64 / width.max(height)).min(1.0);
        loop {
            let scaled = size.map(|side| ((side as f64 * scale).round_ties_even() as usize).max(1));
            let canvas = scaled.map(|side| (side.div_ceil(CELL) * CELL).clamp(MIN_REFERENCE_SIDE, MAX_CANVAS));
            if canvas[0] * canvas[1] <= MAX_SINGLE {
                return Self { scaled, canvas };
            }
            scale *= 0.995;
        }
    }
}

/// Returns the source of each of `all` pixels: its index among `own` pixels, which begin at `first` and are mirrored
/// beyond their edges as often as needed. The edge itself is not repeated, unless a side of the image, of this `size`,
/// is very short.
fn mirrored(size: [usize; 2], own: usize, first: usize, all: usize) -> Vec<usize> {
    let repeats_edge = size[0].min(size[1]) <= CELL;
    let period = if repeats_edge { 2 * own } else { 2 * (own - 1) };
    let place = |at: usize| {
        let there = (at as i64 - first as i64).rem_euclid(period as i64) as usize;
        match there < own {
            true => there,
            false if repeats_edge => period - 1 - there,
            false => period - there,
        }
    };
    (0..all).map(place).collect()
}

/// Returns the size in which an input image is edited: its own, above 1024 x 1024 pixels scaled down to at most as
/// many, with both sides rounded down to multiples of 16.
///
/// Errors if less than 16 pixels are left of a side.
pub fn editing_size(width: usize, height: usize) -> Result<[usize; 2]> {
    let size = floored(capped_size(width, height));
    if size.contains(&0) {
        return Err(Error::new(format!(
            "the image to edit is {width}x{height}, too narrow to keep 16 pixels per side"
        ))
        .hint(NARROW));
    }
    Ok(size)
}

/// Returns `true` if an image is above a megapixel and the model reads it in fewer pixels.
pub fn is_reduced(from: [usize; 2], to: [usize; 2]) -> bool {
    let pixels = |[width, height]: [usize; 2]| width * height;
    // Rounding to multiples of 16 does not deserve a note.
    pixels(from) > MEGAPIXEL && pixels(to) * 10 < pixels(from) * 9
}

/// Returns the input image as the model reads it: scaled to at most 1024 x 1024 pixels, then stretched to `size`.
pub(super) fn stretched(image: &Rgb, size: [usize; 2]) -> Rgb {
    resized(&scaled_down(image), size)
}

/// Resizes an image.
pub fn resized(image: &Rgb, size: [usize; 2]) -> Rgb {
    scaled_to(image, size, &CancelFlag::default())
}

/// [`resized`] that ends between two rows once `cancel` is set.
///
/// Errors if it is cancelled.
pub fn resized_unless(image: &Rgb, size: [usize; 2], cancel: &CancelFlag) -> Result<Rgb> {
    let resized = scaled_to(image, size, cancel);
    cancel.check().map(|()| resized)
}

fn scaled_to(image: &Rgb, [width, height]: [usize; 2], cancel: &CancelFlag) -> Rgb {
    let bytes = lanczos::resize_unless::<3>(&image.bytes, [image.width, image.height], [width, height], cancel);
    Rgb { width, height, bytes }
}

/// Cuts out a region of an image.
pub(super) fn cut(image: &Rgb, region: Region) -> Rgb {
    Rgb { width: region.width, height: region.height, bytes: region.cut(&image.bytes, image.width, 3) }
}

pub(super) fn scaled_down(image: &Rgb) -> Cow<'_, Rgb> {
    let size = capped_size(image.width, image.height);
    if size == [image.width, image.height] { Cow::Borrowed(image) } else { Cow::Owned(resized(image, size)) }
}

fn capped_size(width: usize, height: usize) -> [usize; 2] {
    if width * height <= MEGAPIXEL {
        return [width, height];
    }
    let scale = (MEGAPIXEL as f64 / (width * height) as f64).sqrt();
    // Each side keeps at least one pixel.
    [width, height].map(|side| ((side as f64 * scale) as usize).max(1))
}

/// Returns the nearest multiple of 16 pixels, at least 16.
pub fn in_cells(side: usize) -> usize {
    (side.saturating_add(CELL / 2) / CELL * CELL).max(CELL)
}

fn floored(size: [usize; 2]) -> [usize; 2] {
    size.map(|side| side / CELL * CELL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn black(width: usize, height: usize) -> Rgb {
        Rgb { width, height, bytes: vec![0; width * height * 3] }
    }

    #[test]
    fn references_are_scaled_down_and_cut_as_in_the_reference() {
        for (size, scaled, cut, at) in [
            ([1025, 1025], [1024, 1024], [1024, 1024], (0, 0)),
            ([1024, 1025], [1023, 1024], [1008, 1024], (7, 0)),
            ([1536, 1024], [1254, 836], [1248, 832], (3, 2)),
            ([8000, 1000], [2896, 362], [2896, 352], (0, 5)),
            ([4000, 3000], [1182, 886], [1168, 880], (7, 3)),
            ([1300, 1100], [1113, 941], [1104, 928], (4, 6)),
            ([1100, 2300], [708, 1480], [704, 1472], (2, 4)),
            ([203, 317], [203, 317], [192, 304], (5, 6)),
            ([1024, 1024], [1024, 1024], [1024, 1024], (0, 0)),
        ] {
            assert_eq!(capped_size(size[0], size[1]), scaled, "{size:?}");
            let region = Region::middle(scaled, floored(scaled));
            assert_eq!((region.size(), (region.left, region.top)), (cut, at), "{size:?}");
        }
    }

    #[test]
    fn the_middle_of_a_reference_is_what_is_left() {
        let mut image = black(67, 84);
        image.bytes = (0..84).flat_map(|y| (0..67).flat_map(move |x| [x, y, 0])).collect();
        let read = reference(&image).unwrap();
        assert_eq!((read.width, read.height), (64, 80));
        assert_eq!(
            (&read.bytes[..3], &read.bytes[read.bytes.len() - 3..]),
            ([1, 2, 0].as_slice(), [64, 81, 0].as_slice())
        );
        let large = reference(&black(1100, 1000)).unwrap();
        assert_eq!((large.width, large.height), (1072, 976));
    }

    #[test]
    fn a_reference_alone_keeps_its_size_within_a_canvas_of_cells() {
        for (size, canvas, place) in [
            ([100, 70], [112, 80], (6, 5, 106, 75)),
            ([65, 65], [80, 80], (7, 7, 72, 72)),
            ([30, 20], [64, 64], (17, 22, 47, 42)),
            ([16, 300], [64, 304], (24, 2, 40, 302)),
            ([3000, 2000], [2496, 1664], (0, 0, 2496, 1664)),
            ([5000, 3000], [2640, 1584], (4, 3, 2635, 1581)),
            ([8000, 500], [4096, 256], (0, 0, 4096, 256)),
            ([3200, 1500], [2976, 1408], (0, 6, 2976, 1401)),
        ] {
            let found = Canvas::new(size);
            let Region { left, top, width, height } = Region::middle(found.canvas, found.scaled);
            assert_eq!((found.canvas, (left, top, left + width, top + height)), (canvas, place), "{size:?}");
        }
        let image = Rgb { width: 3, height: 1, bytes: vec![1, 1, 1, 2, 2, 2, 3, 3, 3] };
        let (canvas, place) = reference_alone(&image).unwrap();
        assert_eq!((place.left, place.top, cropped(&canvas, place)), (30, 31, image));
        let row: Vec<u8> = canvas.bytes[3 * 25..3 * 38].iter().step_by(3).copied().collect();
        assert_eq!(row, [2, 3, 3, 2, 1, 1, 2, 3, 3, 2, 1, 1, 2], "a short image repeats its edge");
        assert_eq!(
            mirrored([20, 20], 20, 3, 26),
            [3, 2, 1].into_iter().chain(0..20).chain([18, 17, 16]).collect::<Vec<_>>()
        );
        assert_eq!(mirrored([17, 17], 17, 40, 42)[..10], [8, 7, 6, 5, 4, 3, 2, 1, 0, 1], "there and back");
    }

    #[test]
    fn references_that_are_too_small_or_too_narrow_are_refused() {
        for (width, height, words) in [
            (63, 200, "63x200, expected sides of at least 64"),
            (200, 63, "at least 64"),
            (64, 513, "expected an aspect ratio of at most 8"),
            (513, 64, "expected an aspect ratio of at most 8"),
        ] {
            let error = reference(&black(width, height)).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("hint: "), "{error}");
        }
        assert!(reference(&black(64, 512)).is_ok() && reference(&black(64, 64)).is_ok());
        let without_bounds = |width, height| reference_of_any_size(&black(width, height));
        let read = without_bounds(45, 700).unwrap();
        assert_eq!((read.width, read.height), (32, 688));
        let error = without_bounds(15, 64).unwrap_err().to_string();
        assert!(error.contains("15x64") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn an_image_to_change_is_stretched_to_cells_and_too_narrow_ones_are_refused() {
        assert_eq!(editing_size(70, 53).unwrap(), [64, 48]);
        assert_eq!(editing_size(4000, 3000).unwrap(), [1168, 880]);
        assert_eq!(stretched(&black(70, 53), [64, 48]), black(64, 48));
        for (width, height) in [(15, 64), (64, 15), (1, 16384), (16384, 15)] {
            let error = editing_size(width, height).unwrap_err().to_string();
            let said = format!("{width}x{height}, too narrow");
            assert!(error.contains(&said) && error.contains("hint: "), "{error}");
        }
    }
}
