//! Alpha of images with a plain background.
//!
//! [`from_two`] compares an image with the same image on another background, and [`from_key`] fills the background of
//! one image from its border. Both measure the colours of backgrounds at the border, and remove them from the colours
//! of translucent pixels.

use flux_base::error::{Error, Result};
use flux_base::memory;

use crate::rgb::Rgb;

/// Minimum distance of two backgrounds, of 442 from black to white.
const MIN_CONTRAST: f32 = 128.0;
/// Alpha below this is 0, and alpha above 1 minus this is 1: flat areas of two images differ a little.
const MARGIN: f32 = 0.06;
/// Maximum distance of the background's pixels from its colour, of 442.
const TOLERANCE: f32 = 40.0;
/// Part of the greatest distance near a pixel from which the pixel is opaque.
const SOLID: f32 = 0.9;
/// Width of a soft edge in pixels.
const EDGE: usize = 2;

/// Bytes of the working memory for a pixel.
const PIXEL_BYTES: usize = 24;

/// A colour: red, green and blue from 0 to 255.
type Colour = [f32; 3];

/// An image without its background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutout {
    /// The colours without the background. Pixels with an alpha of 0 keep theirs.
    pub rgb: Rgb,
    /// The alpha of each pixel [height, width], from 0 to 255.
    pub alpha: Vec<u8>,
}

/// Returns `true` if the background of an image is light.
pub fn is_light(image: &Rgb) -> bool {
    background(image).iter().sum::<f32>() > 3.0 * 127.5
}

/// Returns an image without its background, by the same image on another background. Alpha is the share of the
/// backgrounds' difference that is missing.
///
/// Errors if the sizes differ, the backgrounds have similar colours, or there is too little memory.
pub fn from_two(image: &Rgb, other: &Rgb) -> Result<Cutout> {
    if [image.width, image.height] != [other.width, other.height] {
        return Err(Error::new(format!(
            "an image has {}x{} pixels, but {}x{} on the other background",
            image.width, image.height, other.width, other.height
        )));
    }
    let _reserved = memory::reserve(PIXEL_BYTES * image.width * image.height)?;
    let own = background(image);
    let change = difference(background(other), own);
    let contrast = dot(change, change);
    if contrast < MIN_CONTRAST * MIN_CONTRAST {
        return Err(Error::new("the background stayed the same when it was to change, so it cannot be removed")
            .hint("ask for a plain background in the prompt, or use another seed"));
    }
    let alpha = |(a, b): (Colour, Colour)| {
        let missing = 1.0 - dot(difference(b, a), change) / contrast;
        ((missing - MARGIN) / (1.0 - 2.0 * MARGIN)).clamp(0.0, 1.0)
    };
    let alpha: Vec<f32> = pixels(image).zip(pixels(other)).map(alpha).collect();
    cutout(image, own, &alpha)
}

/// Returns an image without its background, which is all that has the background's colour and is connected with the
/// border.
///
/// Errors if the border has no plain colour, or there is too little memory.
pub fn from_key(image: &Rgb) -> Result<Cutout> {
    let _reserved = memory::reserve(PIXEL_BYTES * image.width * image.height)?;
    let own = background(image);
    let distances: Vec<f32> = pixels(image).map(|colour| length(difference(colour, own))).collect();
    let filled = filled(image, &distances);
    let (all, plain) = border(image).fold((0, 0), |(all, plain), at| (all + 1, plain + usize::from(filled[at])));
    if 2 * plain < all {
        return Err(Error::new("the image has no plain background, so it cannot be removed")
            .hint("ask for a plain background in the prompt, or use another seed"));
    }
    let alpha = |at: usize| match strongest_near_background(image, &distances, &filled, at) {
        Some(strongest) => ((distances[at] - TOLERANCE) / (SOLID * strongest - TOLERANCE).max(1.0)).clamp(0.0, 1.0),
        None => 1.0,
    };
    let alpha: Vec<f32> = (0..filled.len()).map(|at| if filled[at] { 0.0 } else { alpha(at) }).collect();
    cutout(image, own, &alpha)
}

/// Returns `true` for each pixel that has the background's colour and is connected with the border.
fn filled(image: &Rgb, distances: &[f32]) -> Vec<bool> {
    let mut filled = vec![false; distances.len()];
    let mut next: Vec<usize> = border(image).collect();
    while let Some(at) = next.pop() {
        if filled[at] || distances[at] > TOLERANCE {
            continue;
        }
        filled[at] = true;
        let (x, y) = (at % image.width, at / image.width);
        let neighbours = [
            (x > 0).then(|| at - 1),
            (x + 1 < image.width).then(|| at + 1),
            (y > 0).then(|| at - image.width),
            (y + 1 < image.height).then(|| at + image.width),
        ];
        next.extend(neighbours.into_iter().flatten().filter(|at| !filled[*at]));
    }
    filled
}

/// Returns the greatest distance from the background's colour near a pixel; `None` if no background is near.
fn strongest_near_background(image: &Rgb, distances: &[f32], filled: &[bool], at: usize) -> Option<f32> {
    let near = |place: usize, side: usize| place.saturating_sub(EDGE)..(place + EDGE + 1).min(side);
    let (columns, rows) = (near(at % image.width, image.width), near(at / image.width, image.height));
    let mut around = rows.flat_map(|y| columns.clone().map(move |x| y * image.width + x));
    around.clone().any(|at| filled[at]).then(|| around.by_ref().map(|at| distances[at]).fold(0.0, f32::max))
}

/// Removes the colour `background` from the pixels of an image with this alpha.
///
/// Errors if nothing is left, or nothing was removed.
fn cutout(image: &Rgb, background: Colour, alpha: &[f32]) -> Result<Cutout> {
    let bytes: Vec<u8> = alpha.iter().map(|alpha| (255.0 * alpha).round() as u8).collect();
    let first = bytes.first().copied().unwrap_or_default();
    if bytes.iter().all(|alpha| *alpha == first) {
        let what = if first == 0 { "the image is all background" } else { "the image has no background" };
        return Err(Error::new(format!("{what}, so none can be removed"))
            .hint("ask for one object on a plain background, or use another seed"));
    }
    let colour = |((colour, alpha), byte): ((Colour, &f32), &u8)| match byte {
        0 | 255 => colour.map(|value| value as u8),
        _ => [0, 1, 2].map(|i| {
            let own = background[i] + (colour[i] - background[i]) / alpha;
            own.round().clamp(0.0, 255.0) as u8
        }),
    };
    let rgb = pixels(image).zip(alpha).zip(&bytes).flat_map(colour).collect();
    Ok(Cutout { rgb: Rgb { bytes: rgb, ..*image }, alpha: bytes })
}

/// Returns the colour of the background: of each channel, the median at the border.
fn background(image: &Rgb) -> Colour {
    let median = |channel: usize| {
        let mut values: Vec<u8> = border(image).map(|at| image.bytes[3 * at + channel]).collect();
        let middle = values.len() / 2;
        if values.is_empty() { 0.0 } else { f32::from(*values.select_nth_unstable(middle).1) }
    };
    [0, 1, 2].map(median)
}

/// Returns the places of the pixels at the border.
fn border(&Rgb { width, height, .. }: &Rgb) -> impl Iterator<Item = usize> {
    let rows = [0, height.saturating_sub(1)].into_iter().take(height);
    let columns = [0, width.saturating_sub(1)].into_iter().take(width);
    let sides = (1..height.saturating_sub(1)).flat_map(move |y| columns.clone().map(move |x| y * width + x));
    rows.flat_map(move |y| (0..width).map(move |x| y * width + x)).chain(sides)
}

fn pixels(image: &Rgb) -> impl Iterator<Item = Colour> {
    image.bytes.chunks_exact(3).map(|pixel| [pixel[0], pixel[1], pixel[2]].map(f32::from))
}

fn difference(a: Colour, b: Colour) -> Colour {
    [0, 1, 2].map(|i| a[i] - b[i])
}

fn dot(a: Colour, b: Colour) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(colour: Colour) -> f32 {
    dot(colour, colour).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: usize = 96;
    const RED: Colour = [200.0, 30.0, 40.0];

    /// Returns the share of a heart in a pixel.
    fn heart(at: usize) -> f32 {
        let inside = |i: usize| {
            let place =
                |pixel: usize, part: usize| (pixel as f32 + (part as f32 + 0.5) / 8.0) / SIDE as f32 * 3.0 - 1.5;
            let (x, y) = (place(at % SIDE, i % 8), -place(at / SIDE, i / 8));
            (x * x + y * y - 1.0).powi(3) - x * x * y * y * y <= 0.0
        };
        (0..64).filter(|i| inside(*i)).count() as f32 / 64.0
    }

    /// Returns the heart on a background, with noise of up to `noise` levels.
    fn drawn(background: Colour, noise: usize) -> Rgb {
        let pixel = |at: usize| {
            let share = heart(at);
            let level = |i: usize| {
                let error = ((at * 7919 + i * 104_729) % (2 * noise + 1)) as f32 - noise as f32;
                (share * RED[i] + (1.0 - share) * background[i] + error).round().clamp(0.0, 255.0) as u8
            };
            [0, 1, 2].map(level)
        };
        Rgb { width: SIDE, height: SIDE, bytes: (0..SIDE * SIDE).flat_map(pixel).collect() }
    }

    /// Checks alpha inside and outside of the heart, and that it falls from its middle to the left.
    #[track_caller]
    fn assert_heart(cutout: &Cutout, edge: f32) {
        let alpha = |at: usize| f32::from(cutout.alpha[at]) / 255.0;
        for at in 0..SIDE * SIDE {
            let share = heart(at);
            let expected = if share == 1.0 { alpha(at) > 0.98 } else { share > 0.0 || alpha(at) < 0.02 };
            assert!(expected && (alpha(at) - share).abs() < edge, "{at}: {} of {share}", alpha(at));
            let colour: Vec<f32> = cutout.rgb.bytes[3 * at..3 * at + 3].iter().map(|value| f32::from(*value)).collect();
            if share > 0.5 {
                assert!(length(difference([colour[0], colour[1], colour[2]], RED)) < 60.0, "{at}: {colour:?}");
            }
        }
        let middle = SIDE / 2 * SIDE;
        let row: Vec<f32> = (0..SIDE / 2).map(|x| alpha(middle + x)).collect();
        assert!(row.is_sorted() && row[0] == 0.0 && row[SIDE / 2 - 1] == 1.0, "{row:?}");
    }

    #[test]
    fn a_heart_on_two_backgrounds_is_cut_out() {
        let (white, black) = (drawn([255.0; 3], 0), drawn([0.0; 3], 0));
        assert!(is_light(&white) && !is_light(&black));
        assert_heart(&from_two(&white, &black).unwrap(), 0.1);
        assert_heart(&from_two(&black, &white).unwrap(), 0.1);
        assert_heart(&from_two(&drawn([240.0, 238.0, 230.0], 4), &drawn([25.0, 20.0, 20.0], 4)).unwrap(), 0.15);
    }

    #[test]
    fn a_heart_on_a_plain_background_is_cut_out() {
        for (background, noise) in [([255.0; 3], 0), ([0.0; 3], 0), ([70.0, 160.0, 220.0], 5)] {
            assert_heart(&from_key(&drawn(background, noise)).unwrap(), 0.35);
        }
    }

    #[test]
    fn background_inside_of_an_object_stays_with_a_key_and_goes_with_two_images() {
        let ring = |level: u8| {
            let pixel = |at: usize| {
                let distance = (at % 32).abs_diff(16).max((at / 32).abs_diff(16));
                if (5..=12).contains(&distance) { [200, 0, 0] } else { [level; 3] }
            };
            Rgb { width: 32, height: 32, bytes: (0..32 * 32).flat_map(pixel).collect() }
        };
        let middle = 16 * 32 + 16;
        assert_eq!(from_key(&ring(255)).unwrap().alpha[middle], 255);
        assert_eq!(from_two(&ring(255), &ring(0)).unwrap().alpha[middle], 0);
    }

    #[test]
    fn images_without_a_plain_background_are_errors() {
        let plain = |level: u8| Rgb { width: 8, height: 4, bytes: vec![level; 96] };
        let noise = Rgb { width: 32, height: 32, bytes: (0..3 * 1024).map(|i| (i * i * 31 % 251) as u8).collect() };
        assert!(from_key(&noise).is_err() && from_key(&plain(7)).is_err());
        assert!(from_two(&plain(9), &plain(12)).is_err() && from_two(&plain(0), &plain(255)).is_err());
        assert!(from_two(&plain(0), &Rgb { width: 4, height: 8, ..plain(255) }).is_err());
        for [width, height] in [[0, 0], [1, 1], [5, 1], [1, 5]] {
            let [black, white] = [0, 255].map(|level| Rgb { width, height, bytes: vec![level; 3 * width * height] });
            assert!(from_key(&black).is_err() && from_two(&black, &white).is_err(), "{width}x{height}");
        }
    }
}
