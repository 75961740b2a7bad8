//! The size of an image, in the notations of several APIs.

use serde_json::Value;

use crate::http::error::{ApiError, Result, shown};
use crate::jobs::fields::{Faults, Fields, missing};

/// The min and max side in pixels. The model's own limits are checked later.
const MIN_SIDE: usize = 64;
const MAX_SIDE: u64 = 1 << 20;
/// The min ratio of width to height in `aspect_ratio`. The max is its inverse.
const MIN_RATIO: f64 = 1.0 / 16.0;

/// Returns the size from `size`, from `width` and `height`, or from `aspect_ratio` at about `pixels` pixels.
pub(super) fn read_size(fields: &mut Fields, faults: &mut Faults, pixels: usize) -> Result<Option<[usize; 2]>> {
    let mut side = |name| faults.ok(fields.whole(name, MIN_SIDE as u64..=MAX_SIDE)).map(|side| side as usize);
    let sides = [side("width"), side("height")];
    let size = fields.given("size").map(|(name, value)| size_of(&name, &value)).transpose()?.flatten();
    let ratio = fields.given("aspect_ratio").map(|(name, value)| ratio_of(&name, &value)).transpose()?.flatten();
    match (size, sides) {
        (None, [None, None]) => Ok(ratio.map(|ratio| with_ratio(ratio, pixels))),
        (None, [Some(width), Some(height)]) => Ok(Some([width, height])),
        (None, [None, _]) => Err(missing("width")),
        (None, [_, None]) => Err(missing("height")),
        (Some([width, height]), [across, down])
            if across.is_none_or(|across| across == width) && down.is_none_or(|down| down == height) =>
        {
            Ok(Some([width, height]))
        }
        (Some(_), _) => Err(ApiError::value("size", "`size` differs from `width` and `height`: pass one of the two")),
    }
}

/// Parses `512x768`, or an object with both sides. `auto` gives `None`.
fn size_of(name: &str, value: &Value) -> Result<Option<[usize; 2]>> {
    let sides = match value {
        Value::String(text) if text.trim().eq_ignore_ascii_case("auto") => return Ok(None),
        Value::String(text) => {
            text.split_once(['x', 'X', '×', '*']).map(|(width, height)| [width, height].map(side_of))
        }
        Value::Object(sides) => Some(["width", "height"].map(|side| {
            let side = sides.get(side)?;
            side.as_u64().map_or_else(|| side_of(side.as_str()?), |side| usize::try_from(side).ok())
        })),
        _ => None,
    };
    match sides {
        Some([Some(width), Some(height)]) if width >= MIN_SIDE && height >= MIN_SIDE => Ok(Some([width, height])),
        _ => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let expected = format!("auto, or WIDTHxHEIGHT, each at least {MIN_SIDE}");
            let message = format!("`{}` is `{}`, expected {expected}", shown(name), shown(&text));
            Err(ApiError::value(name.to_string(), message))
        }
    }
}

fn side_of(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

/// Parses `16:9`. `auto` gives `None`, and so does the ratio of the input image, which is the default.
fn ratio_of(name: &str, value: &Value) -> Result<Option<[f64; 2]>> {
    let text = value.as_str().unwrap_or_default().trim();
    if ["auto", "match_input_image"].contains(&text) {
        return Ok(None);
    }
    let sides = text.split_once([':', '/', 'x']).map(|(width, height)| [width, height].map(|side| side.trim().parse()));
    match sides {
        Some([Ok(width), Ok(height)]) if (MIN_RATIO..=1.0 / MIN_RATIO).contains(&(width / height)) && width > 0.0 => {
            Ok(Some([width, height]))
        }
        _ => {
            let message = format!("`{}` is {}, expected a ratio such as 16:9", shown(name), shown(&value.to_string()));
            Err(ApiError::value(name.to_string(), message))
        }
    }
}

/// Returns sides of this ratio in multiples of 16, with about `pixels` pixels.
fn with_ratio([width, height]: [f64; 2], pixels: usize) -> [usize; 2] {
    let unit = (pixels as f64 / (width * height)).sqrt();
    [width, height].map(|side| ((side * unit / 16.0).round() as usize * 16).max(MIN_SIDE))
}
