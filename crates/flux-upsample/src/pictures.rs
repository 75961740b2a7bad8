//! Input images as the language model sees them: small JPEG files in data URLs.
//!
//! Source: `prepare_reference` and `get_reference_size` of the FLUX.3 prompt upsampler in diffusers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flux::engine::{EmbeddedFiles, Recipe};
use flux::error::{Error, Field, Result};
use flux::input;
use flux::metadata::Metadata;
use flux::output::encode_jpeg;

/// Maximum number of images.
const MAX_PICTURES: usize = 10;
/// Sides are multiples of this many pixels.
const MULTIPLE: usize = 32;
/// Maximum ratio of the sides.
const MAX_RATIO: usize = 200;
const QUALITY: u8 = 92;

/// Returns the input images of a recipe as data URLs. `files` has their bytes.
///
/// Errors if there are too many, or one of them cannot be read or is too narrow.
pub fn data_urls(recipe: &Recipe, files: &EmbeddedFiles) -> Result<Vec<String>> {
    let count = recipe.inputs.len();
    if count > MAX_PICTURES {
        let what = format!("{count} input images were passed, but the language model sees at most {MAX_PICTURES}");
        return Err(Error::usage(what).for_field(Field::Upsample).hint("leave some out"));
    }
    let url = |file: &std::path::PathBuf| {
        let place = file.display().to_string();
        let bytes = files.get(file).ok_or_else(|| Error::new("the image was not loaded").at(place.clone()))?;
        let image = input::read_over_white(bytes).map_err(|e| e.at(place.clone()))?;
        let size = size([image.width, image.height], count).map_err(|e| e.at(place.clone()))?;
        let image = if size == [image.width, image.height] { image } else { input::resized(&image, size) };
        let jpeg = encode_jpeg(&image, QUALITY, &Metadata::default()).map_err(|e| e.at(place))?;
        Ok(format!("data:image/jpeg;base64,{}", STANDARD.encode(jpeg)))
    };
    recipe.inputs.iter().map(url).collect()
}

/// Returns width and height of one of `count` images.
///
/// Errors if it is too narrow.
fn size([width, height]: [usize; 2], count: usize) -> Result<[usize; 2]> {
    if width.max(height) > MAX_RATIO * width.min(height) {
        let what = format!("the image is {width}x{height}, expected an aspect ratio of at most {MAX_RATIO}");
        return Err(Error::usage(what).hint("crop it"));
    }
    let budget: usize = match count {
        ..=1 => 1024 * 1024,
        2 => 724 * 724,
        _ => 512 * 512,
    };
    let nearest = |side: usize| ((side as f64 / MULTIPLE as f64).round_ties_even() as usize * MULTIPLE).max(MULTIPLE);
    let floored = |side: f64| ((side / MULTIPLE as f64).floor() as usize * MULTIPLE).max(MULTIPLE);
    let fits = |[width, height]: [usize; 2]| width * height <= budget;
    let own = [width, height].map(nearest);
    if fits(own) {
        return Ok(own);
    }
    let scale = ((width * height) as f64 / budget as f64).sqrt();
    let scaled = [width, height].map(|side| floored(side as f64 / scale));
    Ok(match scaled {
        scaled if fits(scaled) => scaled,
        [MULTIPLE, _] => [MULTIPLE, floored((budget / MULTIPLE) as f64)],
        [_, height] => [floored(budget as f64 / height as f64), height],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_reference() {
        for (from, count, to) in [
            ([1920, 1080], 1, [1344, 768]),
            ([1920, 1080], 2, [960, 512]),
            ([1920, 1080], 3, [672, 384]),
            ([100, 70], 1, [96, 64]),
            ([16, 16], 1, [32, 32]),
            ([1040, 1040], 1, [1024, 1024]),
            ([725, 725], 2, [704, 704]),
            ([5000, 26], 1, [4992, 32]),
        ] {
            assert_eq!(size(from, count).unwrap(), to, "{from:?} of {count}");
        }
        assert!(size([2010, 10], 1).is_err() && size([2000, 10], 1).is_ok());
    }
}
