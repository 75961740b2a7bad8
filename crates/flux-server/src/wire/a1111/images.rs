//! Images of `img2img`: the input image, its mask, and the size of the result.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flux::engine::{EmbeddedFiles, Recipe};
use flux::input::{self, Mask, Region};
use flux::memory;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use serde_json::Value;

use super::file_of;
use super::reading::Reading;
use crate::http::error::{ApiError, Result};
use crate::jobs::admission::{self, Estimate};
use crate::jobs::fields::missing;
use crate::jobs::masks;
use crate::jobs::request::read_estimate;

/// Max pixels of a scaled image.
const MAX_PIXELS: usize = 16 << 20;
const MASK: &str = "mask.png";

/// A way to resize an image to another aspect ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resize {
    Stretch,
    /// Crops the image to the new aspect ratio, centered.
    Crop,
    /// Fits the whole image, and fills the rest by repeating its edges.
    Fill,
}

/// Work on the files of a request.
struct Preparation {
    first: PathBuf,
    size: Option<[usize; 2]>,
    resize: Resize,
    has_mask: bool,
    inverts: bool,
}

impl Reading<'_> {
    /// Adds the input image and its mask to a recipe.
    pub(super) fn with_images(
        &mut self,
        recipe: Recipe,
    ) -> Result<(Recipe, EmbeddedFiles, Option<admission::Preparation>)> {
        let missing = || missing("init_images");
        let images = match self.fields.remove("init_images") {
            Some(Value::Array(images)) if !images.is_empty() => images,
            Some(Value::String(image)) => vec![Value::String(image)],
            _ => return Err(missing()),
        };
        let mut files = BTreeMap::new();
        let mut inputs = Vec::new();
        for (number, image) in images.iter().enumerate() {
            let bytes = file_of(image.as_str().ok_or_else(missing)?, "init_images")?;
            masks::check(&bytes, "init_images")?;
            let name = PathBuf::from(format!("{}.png", number + 1));
            files.insert(name.clone(), bytes);
            inputs.push(name);
        }
        if inputs.len() > 1 {
            self.notes.push("init_images: the first image is edited, and the others are references".to_string());
        }
        let strength = self.number("denoising_strength", 0.0..=1.0)?.unwrap_or(0.75);
        let asked = [recipe.width, recipe.height];
        let mut recipe = Recipe { strength: Some(strength), width: None, height: None, ..recipe };
        let resize = self.resize()?;
        let mask = self.fields.remove("mask").filter(|mask| mask.as_str() != Some(""));
        let mut inverts = false;
        if let Some(mask) = &mask {
            let text = mask.as_str().ok_or_else(|| ApiError::value("mask", "`mask` is not a string"))?;
            let bytes = file_of(text, "mask")?;
            masks::check(&bytes, "mask")?;
            files.insert(PathBuf::from(MASK), bytes);
            recipe.mask = Some(PathBuf::from(MASK));
            inverts = self.mask_fields(&mut recipe)?;
        }
        let first = inputs[0].clone();
        let own = input::file_size(&files[&first]).unwrap_or_default();
        let is_whole = recipe.mask_padding.is_none();
        let size = [asked[0].unwrap_or(own[0]), asked[1].unwrap_or(own[1])];
        let size = (asked != [None, None]).then_some(size);
        match size.filter(|_| is_whole) {
            Some([width, height]) if width * height > MAX_PIXELS => {
                let message = format!("the image would be {width}x{height}, expected at most {MAX_PIXELS} pixels");
                return Err(ApiError::value("width", message));
            }
            Some(size) => self.note_size(size, mask.is_some())?,
            None if size.is_some_and(|size| size != own) => {
                self.notes.push("width and height: with inpaint_full_res the image keeps its size".to_string());
            }
            None => {}
        }
        let size = size.filter(|_| is_whole);
        if mask.is_some() {
            self.notes.extend(masks::size_note(&files[&PathBuf::from(MASK)], &files[&first]));
        }
        let preparation = Preparation { first, size, resize, has_mask: mask.is_some(), inverts };
        recipe.inputs = inputs;
        let estimate = preparation.estimate(&files);
        let work = move |files: &mut EmbeddedFiles, cancel: &CancelFlag| preparation.run(files, cancel);
        Ok((recipe, files, Some(admission::Preparation { estimate, work: Box::new(work) })))
    }

    /// Adds a note if the result has another size than requested.
    fn note_size(&mut self, [width, height]: [usize; 2], has_mask: bool) -> Result<()> {
        let wrong = |e: flux::Error| ApiError::value("width", e.what());
        let made = input::editing_size(width, height).map_err(wrong)?;
        if made != [width, height] && !has_mask {
            let [made_width, made_height] = made;
            let message = "edited images have sides in multiples of 16, and at most a megapixel";
            self.notes.push(format!("{width}x{height} becomes {made_width}x{made_height}: {message}"));
        }
        Ok(())
    }

    fn resize(&mut self) -> Result<Resize> {
        Ok(match self.whole("resize_mode", 0..=3)?.unwrap_or(0) {
            1 => Resize::Crop,
            2 => Resize::Fill,
            3 => {
                self.lost.push("resize_mode 3 (the image is stretched, not its latents)".to_string());
                Resize::Stretch
            }
            _ => Resize::Stretch,
        })
    }

    /// Parses the fields of a mask. Returns `true` if the mask is inverted.
    fn mask_fields(&mut self, recipe: &mut Recipe) -> Result<bool> {
        let blur = self.number("mask_blur", 0.0..=1e6)?;
        let [x, y] = [self.number("mask_blur_x", 0.0..=1e6)?, self.number("mask_blur_y", 0.0..=1e6)?];
        let both = x.or(y).map(|_| f64::max(x.unwrap_or(0.0), y.unwrap_or(0.0)));
        if blur.is_none() && x.unwrap_or(0.0) != y.unwrap_or(0.0) && x.is_some() && y.is_some() {
            self.notes.push("mask_blur_x and mask_blur_y: the larger value is used in both directions".to_string());
        }
        recipe.feather = blur.or(both).unwrap_or(0.0) as usize;
        let fill = self.whole("inpainting_fill", 0..=3)?.unwrap_or(1);
        if fill > 1 {
            self.lost.push(format!("inpainting_fill {fill} (the model starts from the image under the mask)"));
        }
        let padding = self.whole("inpaint_full_res_padding", 0..=16384)?.unwrap_or(0);
        if self.number("inpaint_full_res", 0.0..=1.0)? == Some(1.0) {
            recipe.mask_padding = Some(padding as usize);
        }
        Ok(self.number("inpainting_mask_invert", 0.0..=1.0)? == Some(1.0))
    }
}

impl Preparation {
    /// Returns the work: both files are decoded, scaled and encoded.
    fn estimate(&self, files: &EmbeddedFiles) -> Estimate {
        if self.size.is_none() && !self.has_mask {
            return Estimate::default();
        }
        let made = self.size.map_or(0, |[width, height]| (width as u64).saturating_mul(height as u64));
        let mask = PathBuf::from(MASK);
        let work = [&self.first, &mask].into_iter().filter_map(|name| input::file_size(files.get(name)?).ok());
        work.fold(Estimate::default(), |sum, size| sum + read_estimate(size) + Estimate::scale(made.saturating_mul(3)))
    }

    /// Scales the image and its mask.
    ///
    /// Errors if one of them cannot be read.
    fn run(self, files: &mut EmbeddedFiles, cancel: &CancelFlag) -> Result<()> {
        let Self { first, size, resize, has_mask, inverts } = self;
        if size.is_none() && !has_mask {
            return Ok(());
        }
        let image = input::read_bytes(&files[&first]).map_err(|e| ApiError::image(&e, "init_images"))?;
        let own = [image.width, image.height];
        let size = size.unwrap_or(own);
        let _reserved = memory::reserve(9 * size[0] * size[1])?;
        if size != own {
            files.insert(first, png(&resize.apply(&image, size))?);
        }
        drop(image);
        cancel.check()?;
        let Some(file) = files.get_mut(&PathBuf::from(MASK)).filter(|_| has_mask) else { return Ok(()) };
        let mask = Mask::read_bytes(file).map_err(|e| ApiError::image(&e, "mask"))?;
        if mask.size() == size && !inverts {
            return Ok(());
        }
        let grey = mask.grey(mask.size()).bytes;
        let values = grey.into_iter().map(|value| if inverts { 255 - value } else { value });
        let [width, height] = mask.size();
        let mask = Rgb { width, height, bytes: values.flat_map(|value| [value; 3]).collect() };
        *file = png(&if mask.width == size[0] && mask.height == size[1] { mask } else { resize.apply(&mask, size) })?;
        Ok(())
    }
}

impl Resize {
    /// Returns the resized image, as A1111 does in the corresponding mode.
    fn apply(self, image: &Rgb, size: [usize; 2]) -> Rgb {
        let (own, [width, height]) = ([image.width, image.height], size);
        match self {
            Self::Stretch => input::resized(image, size),
            Self::Crop => {
                let part = [own[0].min(own[1] * width / height), own[1].min(own[0] * height / width)];
                let part = input::cropped(image, Region::middle(own, part.map(|side| side.max(1))));
                input::resized(&part, size)
            }
            Self::Fill => {
                let inner = [width.min(own[0] * height / own[1]).max(1), height.min(own[1] * width / own[0]).max(1)];
                let (small, place) = (input::resized(image, inner), Region::middle(size, inner));
                let at = |place: usize, first: usize, count: usize| place.saturating_sub(first).min(count - 1);
                let mut bytes = Vec::with_capacity(3 * width * height);
                for y in 0..height {
                    let row = &small.bytes[3 * inner[0] * at(y, place.top, inner[1])..];
                    for x in 0..width {
                        bytes.extend_from_slice(&row[3 * at(x, place.left, inner[0])..][..3]);
                    }
                }
                Rgb { width, height, bytes }
            }
        }
    }
}

fn png(image: &Rgb) -> Result<Vec<u8>> {
    encode(image, ImageFormat::Png, &Metadata::default()).map_err(|e| ApiError::internal(e.what()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with a dark left half and a light right half.
    fn halves(width: usize, height: usize) -> Rgb {
        let bytes = (0..height).flat_map(|_| (0..width).flat_map(|x| [if 2 * x < width { 10 } else { 200 }; 3]));
        Rgb { width, height, bytes: bytes.collect() }
    }

    #[test]
    fn images_are_resized_in_the_ways_of_a1111() {
        let wide = halves(128, 64);
        for resize in [Resize::Stretch, Resize::Crop, Resize::Fill] {
            let narrow = resize.apply(&wide, [16, 4096]);
            assert_eq!(narrow.bytes.len(), 3 * 16 * 4096);
            for size in [[64, 64], [64, 128], [128, 64]] {
                let image = resize.apply(&wide, size);
                assert_eq!(
                    ([image.width, image.height], image.bytes.len()),
                    (size, 3 * size[0] * size[1]),
                    "{resize:?}"
                );
                // All modes keep the center, with the dark half on the left.
                let row = &image.bytes[3 * size[0] * (size[1] / 2)..][..3 * size[0]];
                assert!(row[0] < 60 && row[3 * size[0] - 3] > 150, "{resize:?} {size:?}");
            }
        }
        let mut marked = wide.clone();
        (0..64).for_each(|y| marked.bytes[3 * 128 * y..][..3 * 16].fill(90));
        let left = |resize: Resize| resize.apply(&marked, [64, 64]).bytes[3 * 64 * 32];
        assert_eq!(left(Resize::Crop), 10, "the sides are cut off");
        assert!(left(Resize::Stretch) > 60 && left(Resize::Fill) > 60, "the sides are kept");
        let tall = Resize::Fill.apply(&wide, [64, 128]);
        assert_eq!(tall.bytes[..3 * 64], tall.bytes[3 * 64 * 48..][..3 * 64], "the edge is repeated");
    }
}
