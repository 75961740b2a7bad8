//! The sizes in which models read images.

use std::borrow::Cow;

use super::lanczos;
use super::region::Region;
use crate::error::{Error, Result};
use crate::rgb::Rgb;

/// The sides of an image of the model are multiples of this many pixels.
pub const CELL: usize = 16;

/// Larger images are scaled down to about as many pixels.
const MEGAPIXEL: usize = 1024 * 1024;

const MIN_REFERENCE_SIDE: usize = 64;
const MAX_REFERENCE_RATIO: usize = 8;

/// A reference image as the model reads it: above 1024 x 1024 pixels scaled down to at most as many, then its middle,
/// with sides that are multiples of 16.
///
/// Errors when a side is below 64 pixels, or more than eight times the other one.
pub fn reference(image: &Rgb) -> Result<Rgb> {
    let (width, height) = (image.width, image.height);
    let (long, short) = (width.max(height), width.min(height));
    let wrong = |expected: &str| Error::new(format!("the reference image is {width}x{height}, expected {expected}"));
    if short < MIN_REFERENCE_SIDE {
        return Err(wrong("sides of at least 64").hint("scale it up with another program"));
    }
    if long > MAX_REFERENCE_RATIO * short {
        return Err(wrong("sides of which none is above 8 times the other").hint("cut it to what matters"));
    }
    let capped = capped(image);
    Ok(cut(&capped, Region::middle([capped.width, capped.height], floored([capped.width, capped.height]))))
}

/// The size in which an image that is changed is made: its own, above 1024 x 1024 pixels scaled down to at most as
/// many, and both sides rounded down to multiples of 16.
///
/// Errors when less than 16 pixels are left of a side.
pub fn editing_size(width: usize, height: usize) -> Result<[usize; 2]> {
    let size = floored(capped_size(width, height));
    if size.contains(&0) {
        return Err(Error::new(format!(
            "the image to change is {width}x{height}, too narrow to have 16 pixels a side"
        ))
        .hint("cut it, or scale it up with another program"));
    }
    Ok(size)
}

/// The image to change as the model reads it: scaled to at most 1024 x 1024 pixels, then stretched to `size`.
pub(super) fn stretched(image: &Rgb, size: [usize; 2]) -> Rgb {
    resized(&capped(image), size)
}

/// The image in another size.
pub fn resized(image: &Rgb, [width, height]: [usize; 2]) -> Rgb {
    let bytes = lanczos::resize::<3>(&image.bytes, [image.width, image.height], [width, height]);
    Rgb { width, height, bytes }
}

/// A region of the image.
pub(super) fn cut(image: &Rgb, region: Region) -> Rgb {
    Rgb { width: region.width, height: region.height, bytes: region.cut(&image.bytes, image.width, 3) }
}

fn capped(image: &Rgb) -> Cow<'_, Rgb> {
    let size = capped_size(image.width, image.height);
    if size == [image.width, image.height] { Cow::Borrowed(image) } else { Cow::Owned(resized(image, size)) }
}

fn capped_size(width: usize, height: usize) -> [usize; 2] {
    if width * height <= MEGAPIXEL {
        return [width, height];
    }
    let scale = (MEGAPIXEL as f64 / (width * height) as f64).sqrt();
    // A line of pixels keeps one.
    [width, height].map(|side| ((side as f64 * scale) as usize).max(1))
}

fn floored(size: [usize; 2]) -> [usize; 2] {
    size.map(|side| side / CELL * CELL)
}
