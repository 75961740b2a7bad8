//! Regions of a request: texts for parts of the image.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::input::Mask;
use crate::model::info::ModelInfo;
use crate::text_encoder::Window;
use crate::transformer::RegionMap;

/// Maximum number of regions of an image.
pub const MAX_REGIONS: usize = 30;
/// Maximum number of different sets of regions that image tokens see. Attention runs once for each.
const MAX_SETS: usize = 128;
/// The window of a region's text. Short windows cost little, and give the same images as long ones. Windows of FLUX.2
/// are 8 steps; attention kernels take 64 keys at a time.
const WINDOW: Window = Window { max: 512, step: Some(64) };
/// A token shows a region if the mask above it is brighter in the mean.
const MASKED: u8 = 127;

/// A text for a part of the image.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionPrompt {
    /// The text.
    pub prompt: String,
    /// The part of the image.
    pub area: Area,
}

/// A part of an image.
#[derive(Debug, Clone, PartialEq)]
pub enum Area {
    /// Top, left, bottom and right in thousandths of the image.
    Box([u16; 4]),
    /// The white part of a mask, which is stretched over the image.
    Mask(Arc<Mask>),
}

impl Area {
    /// Returns `true` for each token in the area, for an image of `height` x `width` tokens, row by row. Sides of boxes
    /// are at the nearest token.
    fn tokens(&self, [height, width]: [usize; 2]) -> Vec<bool> {
        match self {
            Self::Box([top, left, bottom, right]) => {
                let place = |side: &u16, tokens: usize| (usize::from(*side) * tokens + 500) / 1000;
                let (rows, columns) =
                    (place(top, height)..place(bottom, height), place(left, width)..place(right, width));
                let inside = |n: usize| rows.contains(&(n / width)) && columns.contains(&(n % width));
                (0..height * width).map(inside).collect()
            }
            Self::Mask(mask) => mask.grey([width, height]).bytes.iter().map(|value| *value > MASKED).collect(),
        }
    }

    /// Returns a note if a mask has other proportions than an image of this size in pixels.
    fn note(&self, region: usize, [height, width]: [usize; 2]) -> Option<String> {
        let Self::Mask(mask) = self else { return None };
        let [mask_width, mask_height] = mask.size();
        let (is, expected) = (mask_width * height, mask_height * width);
        // Sides of images are rounded to multiples of 16.
        let fits = is.abs_diff(expected) * 10 <= expected;
        (!fits).then(|| {
            format!(
                "the mask of region {region}, {mask_width}x{mask_height}, is stretched to the image of {width}x{height}"
            )
        })
    }
}

/// Returns the map of regions for an image of this height and width in pixels, and notes for the user; `None` without
/// regions. `count` returns the number of tokens of a prompt.
///
/// Errors if the model excludes regions, also because it caches keys of images and there are any. Errors if a region
/// covers no token, or there are too many.
pub(crate) fn region_map(
    regions: &[RegionPrompt],
    (info, has_images): (&ModelInfo, bool),
    size: [usize; 2],
    count: impl Fn(&str) -> Result<usize>,
) -> Result<(Option<Arc<RegionMap>>, Vec<String>)> {
    if regions.is_empty() {
        return Ok((None, Vec::new()));
    }
    check(regions, info, has_images)?;
    let patch = info.vae.patch_pixels();
    let grid = size.map(|side| side / patch);
    let (mut texts, mut notes, mut tokens) = (Vec::new(), Vec::new(), vec![0_u32; grid[0] * grid[1]]);
    let longest = WINDOW.max.min(info.longest_sequence());
    for (index, region) in regions.iter().enumerate() {
        let covered = region.area.tokens(grid);
        if !covered.contains(&true) {
            let [height, width] = size;
            let what = format!(
                "region {} covers none of the {patch} x {patch} pixel cells of the image, {width}x{height}",
                index + 1
            );
            return Err(wrong(what).hint("make the region larger"));
        }
        for (set, _) in tokens.iter_mut().zip(covered).filter(|(_, covered)| *covered) {
            *set |= 1 << index;
        }
        texts.push(WINDOW.length(count(&region.prompt)?, longest));
        notes.extend(region.area.note(index + 1, size));
    }
    let sets = tokens.iter().collect::<BTreeSet<_>>().len();
    if sets > MAX_SETS {
        return Err(wrong(format!("the regions overlap in {sets} ways, expected at most {MAX_SETS}"))
            .hint("use fewer regions, or let fewer of them overlap"));
    }
    Ok((Some(Arc::new(RegionMap { texts, tokens })), notes))
}

fn wrong(what: String) -> Error {
    Error::usage(what).for_field(Field::Regions)
}

/// Errors if the model excludes regions, or there are too many.
fn check(regions: &[RegionPrompt], info: &ModelInfo, has_images: bool) -> Result<()> {
    if regions.len() > MAX_REGIONS {
        return Err(wrong(format!("{} regions were passed, expected at most {MAX_REGIONS}", regions.len()))
            .hint("leave some out"));
    }
    if info.transformer.has_early_blocks() {
        let what = format!("{} models cannot restrict texts to regions", info.kind.files.name);
        return Err(wrong(what).hint(format!("describe places with `{:#}`, or use a FLUX.2 model", Field::Boxes)));
    }
    if info.caches_references && has_images {
        return Err(wrong("regions cannot be used with cached keys of references".to_string())
            .hint("leave out the input images, or open the model without cached keys"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;
    use crate::input::Grey;

    fn info() -> ModelInfo {
        ModelInfo::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap()
    }

    fn region(area: Area) -> RegionPrompt {
        RegionPrompt { prompt: "a cat".to_string(), area }
    }

    fn mask(width: usize, height: usize, bytes: Vec<u8>) -> Area {
        Area::Mask(Arc::new(Mask::from(Grey { width, height, bytes })))
    }

    fn map(areas: Vec<Area>, count: usize) -> Result<(RegionMap, Vec<String>)> {
        let regions: Vec<_> = areas.into_iter().map(region).collect();
        let (map, notes) = region_map(&regions, (&info(), true), [32, 64], |_| Ok(count))?;
        Ok((Arc::unwrap_or_clone(map.unwrap()), notes))
    }

    #[test]
    fn tokens_have_a_bit_for_each_of_their_regions() {
        let (map, notes) = map(vec![Area::Box([0, 0, 1000, 500]), mask(2, 1, vec![0, 255])], 20).unwrap();
        assert_eq!((map.tokens, map.texts), (vec![1, 1, 2, 2, 1, 1, 2, 2], vec![64, 64]));
        assert!(notes.is_empty());
        // Sides are at the nearest token; grey is outside up to 127.
        let (map, notes) = self::map(vec![Area::Box([240, 130, 760, 620]), mask(1, 1, vec![128])], 65).unwrap();
        assert_eq!((map.tokens, map.texts), (vec![2, 3, 2, 2, 2, 3, 2, 2], vec![128, 128]));
        assert!(notes.len() == 1 && notes[0].contains("region 2, 1x1") && notes[0].contains("64x32"), "{notes:?}");
        assert_eq!(self::map(vec![Area::Box([0, 0, 1000, 1000])], 9000).unwrap().0.texts, [512]);
    }

    #[test]
    fn regions_without_tokens_and_too_many_are_refused() {
        let all = || Area::Box([0, 0, 1000, 1000]);
        for (areas, words) in [
            (vec![all(), Area::Box([0, 0, 100, 1000])], "region 2 covers none of the 16 x 16"),
            (vec![mask(2, 1, vec![127, 0])], "region 1 covers none"),
            (vec![all(); 31], "31 regions were passed, expected at most 30"),
        ] {
            let error = map(areas, 1).unwrap_err();
            assert!(error.field() == Some(Field::Regions) && error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains("hint"), "{error}");
        }
        let one_bit =
            |bit: usize| mask(64, 32, (0..64 * 32).map(|n| if n >> bit & 1 == 1 { 255 } else { 0 }).collect());
        let regions: Vec<_> = (0..8).map(one_bit).map(region).collect();
        let error = region_map(&regions, (&info(), false), [32 * 16, 64 * 16], |_| Ok(1)).unwrap_err();
        assert!(error.to_string().contains("256 ways"), "{error}");
    }

    #[test]
    fn models_with_cached_keys_exclude_regions_with_images() {
        let (regions, mut cached) = ([region(Area::Box([0, 0, 1000, 1000]))], info());
        cached.caches_references = true;
        let map = |has_images| region_map(&regions, (&cached, has_images), [32, 32], |_| Ok(1));
        assert!(map(true).unwrap_err().to_string().contains("cached keys") && map(false).is_ok());
    }
}
