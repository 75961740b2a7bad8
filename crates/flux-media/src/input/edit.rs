//! Edits of an input image: the input of the model, and the composite of its result onto the original.
//!
//! Users expect their own image back: in its size, and unchanged wherever the mask is black. The model works on at
//! most a megapixel, and its encoder and decoder change every pixel a little. So its result is scaled to the size of
//! the original region, and only the masked area is taken from it.

use super::decoded::expect_requested_size;
use super::extend::{Sides, bordered, extended};
use super::feather::feathered;
use super::mask::{Grey, Mask};
use super::region::Region;
use super::size::{cut, editing_size, is_reduced, resized, stretched};
use crate::rgb::Rgb;
use flux_base::error::{Error, Field, Result};
use flux_base::memory;

/// An edit of an input image.
#[derive(Debug, Clone)]
pub struct Edit {
    original: Rgb,
    /// The region of the original that the model sees.
    region: Region,
    image: Rgb,
    /// The region's place in `image`. Pixels around it only fill the size.
    place: Region,
    mask: Option<Painted>,
    /// The size of the result, from the upper left of the original.
    kept: [usize; 2],
    /// `true` if a result without a mask is also scaled to the size of the original.
    is_full_size: bool,
}

/// A mask in both forms that an edit needs.
#[derive(Debug, Clone)]
struct Painted {
    /// The mask in the size of the original.
    grey: Grey,
    cells: Vec<f32>,
}

impl Edit {
    /// Creates an edit of the whole image.
    ///
    /// Errors if the image is too narrow.
    pub fn whole(original: Rgb) -> Result<Self> {
        let size = editing_size(original.width, original.height)?;
        let _reserved = memory::reserve(original.bytes.len())?;
        let (region, kept) = (Region::all(original.width, original.height), [original.width, original.height]);
        let image = stretched(&original, size);
        Ok(Self {
            original,
            region,
            image,
            place: Region::all(size[0], size[1]),
            mask: None,
            kept,
            is_full_size: false,
        })
    }

    /// Creates an edit of the area where `mask` is white. The mask may have any size, and is stretched over the image.
    ///
    /// Errors if the image is too narrow.
    pub fn masked(original: Rgb, mask: &Mask) -> Result<Self> {
        let mut edit = Self::whole(original)?;
        let _reserved = memory::reserve(edit.original.bytes.len())?;
        let cells = mask.grey([edit.image.width, edit.image.height]).cells();
        edit.mask = Some(Painted { grey: mask.grey(edit.kept), cells });
        Ok(edit)
    }

    /// As [`Edit::masked`], but the model sees only the masked area and `padding` pixels around it, in the size that
    /// it would see the whole image in, so that small things get all their detail. The region has the image's
    /// proportions if there is room.
    ///
    /// Errors if the image is too narrow, or the mask is black.
    pub fn cropped(original: Rgb, mask: &Mask, padding: usize) -> Result<Self> {
        let size = editing_size(original.width, original.height)?;
        let kept = [original.width, original.height];
        let _reserved = memory::reserve(2 * original.bytes.len())?;
        let grey = mask.grey(kept);
        let region = Region::around(&grey.bytes, grey.width, padding, size).ok_or_else(|| {
            Error::new("the mask is black, so there is nothing to crop to")
                .hint("paint the area to change white, or leave out the padding")
        })?;
        let place = fitted(region.size(), size);
        let image = bordered::<3>(&resized(&cut(&original, region), place.size()).bytes, place, size);
        let image = Rgb { width: size[0], height: size[1], bytes: image };
        let seen = grey.cut(region).resized(place.size());
        let cells = Grey { width: size[0], height: size[1], bytes: bordered::<1>(&seen.bytes, place, size) }.cells();
        Ok(Self { original, region, image, place, mask: Some(Painted { grey, cells }), kept, is_full_size: false })
    }

    /// Creates an edit that extends the image by some pixels at its sides. These pixels, and the area where `mask` is
    /// white, are regenerated. The new area is first filled with the colours of the image's edge, because the model
    /// sees it. Along the sides that grow, the last 16 pixels of the image are also regenerated, so that no seam is
    /// left.
    ///
    /// Errors if no side grows, or the image becomes too large.
    pub fn extended(original: &Rgb, sides: Sides, mask: Option<&Mask>) -> Result<Self> {
        let kept = sides.grown([original.width, original.height]);
        if kept == [original.width, original.height] {
            return Err(Error::usage("the image is not extended, all sides are 0")
                .for_field(Field::Extend)
                .hint("extend at least one side"));
        }
        expect_requested_size(kept, Field::Extend)?;
        // Red, green, blue and the mask of the canvas, each in two sizes.
        let reserved = memory::reserve(8 * kept[0] * kept[1])?;
        let (canvas, mask) = extended(original, sides, mask);
        drop(reserved);
        Ok(Self { kept, ..Self::masked(canvas, &mask)? })
    }

    /// Scales results without a mask to the size of the original, too.
    pub fn with_full_size(self, is_full_size: bool) -> Self {
        Self { is_full_size, ..self }
    }

    /// Returns the size of the region that the model sees, and the size in which the model sees it, if the original is
    /// too large for the model.
    pub fn reduced(&self) -> Option<[[usize; 2]; 2]> {
        let [from, to] = [self.region.size(), self.place.size()];
        is_reduced(from, to).then_some([from, to])
    }

    /// Returns the model's input; its sides are multiples of 16. Results have this size.
    pub fn image(&self) -> &Rgb {
        &self.image
    }

    /// Returns the bytes of the pixels and the mask that the edit holds.
    pub fn bytes(&self) -> usize {
        self.original.bytes.len() + self.image.bytes.len() + self.mask.as_ref().map_or(0, |mask| mask.grey.bytes.len())
    }

    /// Returns 1 for each cell of 16 x 16 pixels of [`Edit::image`] that is regenerated, and 0 for the rest, row by
    /// row. `None` if all cells are regenerated.
    pub fn cells(&self) -> Option<&[f32]> {
        self.mask.as_ref().map(|mask| mask.cells.as_slice())
    }

    /// Returns the size of the image that [`Edit::composite`] returns.
    pub fn composite_size(&self) -> [usize; 2] {
        if self.mask.is_some() || self.is_full_size { self.kept } else { [self.image.width, self.image.height] }
    }

    /// Lays the model's `result` over the original: fully where the mask is white, partly where it is grey. Around the
    /// white area the result fades out over `feather` pixels of the original. All other pixels are the original's,
    /// byte for byte. Without a mask this returns the result, unchanged or in full size.
    ///
    /// Errors if the result differs from [`Edit::image`] in size.
    pub fn composite(&self, result: &Rgb, feather: usize) -> Result<Rgb> {
        if (result.width, result.height) != (self.image.width, self.image.height) {
            let [got, expected] = [result, &self.image].map(|image| format!("{}x{}", image.width, image.height));
            return Err(Error::new(format!("the result is {got}, expected {expected}")).at("composite"));
        }
        // The original, the result in its size, and the mask with the distances from it.
        let _reserved = memory::reserve(12 * self.original.width * self.original.height)?;
        let Some(mask) = &self.mask else {
            return Ok(if self.is_full_size { resized(result, self.kept) } else { result.clone() });
        };
        let soft = feathered(&mask.grey, feather);
        let piece = resized(&cut(result, self.place), self.region.size());
        let mut image = self.original.clone();
        let (left, row) = (self.region.left, self.region.width);
        for (y, piece) in piece.bytes.chunks_exact(3 * row).enumerate() {
            let at = (self.region.top + y) * image.width + left;
            let pixels = image.bytes[3 * at..][..3 * row].chunks_exact_mut(3);
            for ((pixel, new), weight) in pixels.zip(piece.chunks_exact(3)).zip(&soft.bytes[at..]) {
                for (value, new) in pixel.iter_mut().zip(new) {
                    *value = mixed(*value, *new, *weight);
                }
            }
        }
        if self.kept == [image.width, image.height] {
            return Ok(image);
        }
        Ok(cut(&image, Region::all(self.kept[0], self.kept[1])))
    }
}

/// Mixes `weight` parts of `new` with `255 - weight` parts of `old`, rounded to nearest.
fn mixed(old: u8, new: u8, weight: u8) -> u8 {
    let [old, new, weight] = [old, new, weight].map(u32::from);
    ((new * weight + old * (255 - weight) + 127) / 255) as u8
}

/// Returns the centred region of `to` that fits the size `from`, as large as possible. Source: the image processor of
/// diffusers, in its mode `fill`.
fn fitted(from: [usize; 2], to: [usize; 2]) -> Region {
    let ratios = [to, from].map(|[width, height]| width as f64 / height as f64);
    let width = if ratios[0] < ratios[1] { to[0] } else { (from[0] * to[1] / from[1]).max(1) };
    let height = if ratios[0] >= ratios[1] { to[1] } else { (from[1] * to[0] / from[0]).max(1) };
    Region { left: to[0] / 2 - width / 2, top: to[1] / 2 - height / 2, width, height }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Colours that change slowly, so that scaling down and up changes them little.
    fn smooth(width: usize, height: usize) -> Rgb {
        let level = |at: usize, size: usize| (20 + 200 * at / size) as u8;
        let pixel = |x, y| [level(x, width), level(y, height), level(x + y, width + height)];
        let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
        Rgb { width, height, bytes }
    }

    /// A mask that is white in a region.
    fn mask(width: usize, height: usize, white: Region) -> Mask {
        let inside = |at: usize, start: usize, length: usize| (start..start + length).contains(&at);
        let of = |x, y| u8::from(inside(x, white.left, white.width) && inside(y, white.top, white.height)) * 255;
        let bytes = (0..height).flat_map(|y| (0..width).map(move |x| of(x, y))).collect();
        Mask::from(Grey { width, height, bytes })
    }

    fn even(like: &Rgb, level: u8) -> Rgb {
        Rgb { bytes: vec![level; like.bytes.len()], ..*like }
    }

    fn pixel(image: &Rgb, x: usize, y: usize) -> &[u8] {
        &image.bytes[3 * (y * image.width + x)..][..3]
    }

    /// The pixels that differ between two images.
    fn changed(a: &Rgb, b: &Rgb) -> Vec<(usize, usize)> {
        assert_eq!((a.width, a.height), (b.width, b.height));
        let pixels = a.bytes.chunks_exact(3).zip(b.bytes.chunks_exact(3)).enumerate();
        pixels.filter(|(_, (a, b))| a != b).map(|(at, _)| (at % a.width, at / a.width)).collect()
    }

    #[test]
    fn what_the_mask_leaves_black_comes_back_byte_for_byte_in_the_size_of_the_original() {
        let white = Region { left: 21, top: 10, width: 30, height: 17 };
        for (width, height) in [(64, 48), (70, 53), (1100, 1003)] {
            let original = smooth(width, height);
            let edit = Edit::masked(original.clone(), &mask(width, height, white)).unwrap();
            assert_eq!([edit.image().width, edit.image().height], editing_size(width, height).unwrap());
            let result = edit.composite(&even(edit.image(), 3), 0).unwrap();
            assert_eq!([result.width, result.height], edit.composite_size());
            let changed = changed(&result, &original);
            assert_eq!(changed.len(), 30 * 17, "{width}x{height}");
            assert!(changed.iter().all(|&(x, y)| (21..51).contains(&x) && (10..27).contains(&y)));
            assert!(changed.iter().all(|&(x, y)| pixel(&result, x, y) == [3; 3]));
        }
    }

    #[test]
    fn a_mask_of_another_size_is_stretched_over_the_image_and_grey_mixes() {
        let original = even(&smooth(64, 32), 100);
        let grey = Grey { width: 2, height: 1, bytes: vec![51, 51] };
        let edit = Edit::masked(original, &Mask::from(grey)).unwrap();
        assert_eq!(edit.cells(), Some([1.0; 8].as_slice()), "mixed pixels must be generated");
        let result = edit.composite(&even(edit.image(), 200), 0).unwrap();
        assert!(result.bytes.iter().all(|value| *value == 120), "a fifth of the way");
    }

    #[test]
    fn the_feather_is_around_the_mask_and_no_wider() {
        let original = even(&smooth(64, 64), 0);
        let white = Region { left: 30, top: 30, width: 4, height: 4 };
        let edit = Edit::masked(original, &mask(64, 64, white)).unwrap();
        let result = edit.composite(&even(edit.image(), 255), 4).unwrap();
        let row: Vec<u8> = (24..32).map(|x| pixel(&result, x, 31)[0]).collect();
        assert_eq!(row, [0, 0, 51, 102, 153, 204, 255, 255]);
        assert!(pixel(&result, 28, 28)[0] > 0 && pixel(&result, 27, 27) == [0; 3], "the corners are round");
    }

    #[test]
    fn a_crop_is_drawn_larger_and_comes_back_to_its_place() {
        let original = smooth(300, 200);
        let white = Region { left: 200, top: 20, width: 30, height: 20 };
        for padding in [0, 8, 1000] {
            let edit = Edit::cropped(original.clone(), &mask(300, 200, white), padding).unwrap();
            assert_eq!((edit.image().width, edit.image().height), (288, 192));
            // The model's input as its result: nothing moved.
            let same = edit.composite(edit.image(), 0).unwrap();
            let apart = same.bytes.iter().zip(&original.bytes).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(apart <= Some(2), "{padding}: {apart:?}");
            let result = edit.composite(&even(edit.image(), 3), 0).unwrap();
            assert_eq!(changed(&result, &original).len(), 30 * 20, "{padding}");
        }
        let near = Edit::cropped(original.clone(), &mask(300, 200, white), 8).unwrap();
        let far = Edit::cropped(original, &mask(300, 200, white), 1000).unwrap();
        let white = |edit: &Edit| edit.cells().unwrap().iter().filter(|cell| **cell > 0.0).count();
        assert!(white(&near) > 10 * white(&far), "{} {}", white(&near), white(&far));
        assert_eq!(near.region, Region { left: 188, top: 12, width: 54, height: 36 });
    }

    #[test]
    fn a_crop_at_the_edge_of_a_narrow_image_is_filled_up_and_comes_back() {
        let original = smooth(40, 300);
        let white = Region { left: 0, top: 100, width: 40, height: 2 };
        let edit = Edit::cropped(original.clone(), &mask(40, 300, white), 0).unwrap();
        let same = edit.composite(edit.image(), 3).unwrap();
        let apart = same.bytes.iter().zip(&original.bytes).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(apart <= Some(2), "{apart:?}");
    }

    #[test]
    fn a_black_mask_crops_to_nothing_and_is_refused() {
        let black = Region { left: 0, top: 0, width: 0, height: 0 };
        let error = Edit::cropped(smooth(64, 64), &mask(64, 64, black), 8).unwrap_err().to_string();
        assert!(error.contains("the mask is black") && error.contains("hint: "), "{error}");
        let edit = Edit::masked(smooth(64, 64), &mask(64, 64, black)).unwrap();
        assert_eq!(edit.composite(&even(edit.image(), 3), 9).unwrap(), smooth(64, 64));
    }

    #[test]
    fn an_image_grows_by_what_was_asked_and_stays_where_it_was() {
        let original = smooth(100, 70);
        let sides = Sides { left: 30, top: 0, right: 0, bottom: 25 };
        let edit = Edit::extended(&original, sides, None).unwrap();
        let seen = edit.image();
        assert_eq!((seen.width, seen.height), (144, 96), "130 x 95, in multiples of 16");
        assert_eq!(pixel(seen, 30, 0), pixel(&original, 0, 0));
        assert_eq!(pixel(seen, 3, 69), pixel(&original, 0, 69), "filled from the edge");
        assert_eq!(pixel(seen, 143, 95), pixel(&original, 99, 69));
        let result = edit.composite(&even(seen, 3), 0).unwrap();
        assert_eq!((result.width, result.height), (130, 95));
        for (x, y) in (0..130).flat_map(|x| (0..95).map(move |y| (x, y))) {
            let is_kept = x >= 30 + 16 && y < 70 - 16;
            let expected = if is_kept { pixel(&original, x - 30, y) } else { &[3; 3] };
            assert_eq!(pixel(&result, x, y), expected, "{x} {y}");
        }
    }

    #[test]
    fn growing_and_a_mask_go_together() {
        let original = smooth(64, 64);
        let white = Region { left: 40, top: 40, width: 2, height: 3 };
        let sides = Sides { right: 16, ..Sides::default() };
        let edit = Edit::extended(&original, sides, Some(&mask(64, 64, white))).unwrap();
        let result = edit.composite(&even(edit.image(), 3), 0).unwrap();
        assert_eq!(pixel(&result, 41, 42), [3; 3]);
        assert_eq!(pixel(&result, 42, 42), pixel(&original, 42, 42));
        assert_eq!(pixel(&result, 47, 0), pixel(&original, 47, 0));
        assert_eq!(pixel(&result, 48, 0), [3; 3]);
    }

    #[test]
    fn an_image_that_does_not_grow_or_grows_too_large_is_refused() {
        let refused = |sides| Edit::extended(&smooth(32, 32), sides, None).unwrap_err().to_string();
        assert!(refused(Sides::default()).contains("all sides are 0"));
        for left in [16384, usize::MAX] {
            let error = refused(Sides { left, ..Sides::default() });
            assert!(error.contains("x32, expected at most 16384x16384\n  in: extend\n  hint: "), "{error}");
        }
    }

    #[test]
    fn without_a_mask_all_of_the_result_is_returned_and_another_size_is_refused() {
        let edit = Edit::whole(smooth(70, 53)).unwrap();
        assert_eq!(edit.cells(), None);
        let result = even(edit.image(), 9);
        assert_eq!(edit.composite(&result, 5).unwrap(), result);
        let error = edit.composite(&smooth(70, 53), 0).unwrap_err().to_string();
        assert!(error.contains("70x53") && error.contains("64x48"), "{error}");
        assert!(Edit::whole(smooth(15, 64)).unwrap_err().to_string().contains("too narrow"));
    }
}
