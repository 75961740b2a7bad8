//! Resizing of an input image before it is used.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::decoded::expect_requested_size;
use super::region::Region;
use flux_base::error::{Error, Field, Result};

/// Maximum pixels that an input image may grow to.
const MAX_PIXELS: usize = 1 << 24;
const EXPECTED: &str = "expected the longer side or WIDTHxHEIGHT, such as 512, 768x512, 768x or x512";

/// The new size of an input image, as in `512`, `768x512`, `768x` and `x512`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Resize {
    /// The longer side; the other side keeps the proportions.
    Longest(usize),
    /// Width and height. With both, the middle of the image is used; a missing one keeps the proportions.
    Sides([Option<usize>; 2]),
}

impl Resize {
    /// Returns the new size of an image of this size.
    ///
    /// Errors if a side would be too long, or if the image would grow to more than 2^24 pixels.
    pub fn output_size(self, size: [usize; 2]) -> Result<[usize; 2]> {
        let scaled = |side: usize, to: usize, from: usize| {
            let side = side as u128 * to as u128;
            usize::try_from((side + from as u128 / 2) / from.max(1) as u128).unwrap_or(usize::MAX).max(1)
        };
        let [width, height] = size;
        let by_side = |axis: usize, side: usize| match axis {
            0 => [side, scaled(height, side, width)],
            _ => [scaled(width, side, height), side],
        };
        let new = match self {
            Self::Longest(side) => by_side(usize::from(height > width), side),
            Self::Sides([Some(width), Some(height)]) => [width, height],
            Self::Sides([Some(width), None]) => by_side(0, width),
            Self::Sides([None, Some(height)]) => by_side(1, height),
            Self::Sides([None, None]) => size,
        };
        expect_requested_size(new, Field::Size)?;
        if new[0] * new[1] > MAX_PIXELS.max(width * height) {
            let [new_width, new_height] = new;
            let what = format!("the input of {width}x{height} would grow to {new_width}x{new_height}");
            return Err(Error::usage(format!("{what}, expected at most {MAX_PIXELS} pixels"))
                .for_field(Field::Size)
                .hint("use a smaller size: models work on one megapixel"));
        }
        Ok(new)
    }

    /// Returns the part of an image of this size that is used: all of it, unless the proportions change.
    pub fn region(self, [width, height]: [usize; 2]) -> Region {
        let Self::Sides([Some(new_width), Some(new_height)]) = self else { return Region::all(width, height) };
        // The largest centred region with the new proportions.
        let (wide, high) = (width as u128 * new_height as u128, height as u128 * new_width as u128);
        let fit = |product: u128, by: usize, most: usize| {
            usize::try_from(product / by.max(1) as u128).unwrap_or(most).clamp(1, most)
        };
        let size =
            if wide > high { [fit(high, new_height, width), height] } else { [width, fit(wide, new_width, height)] };
        Region::middle([width, height], size)
    }
}

impl FromStr for Resize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let side = |text: &str| match text.parse() {
            Ok(0) | Err(_) => Err(format!("invalid side `{text}`, {EXPECTED}")),
            Ok(side) => Ok(side),
        };
        let part = |text: &str| if text.is_empty() { Ok(None) } else { side(text).map(Some) };
        match text.split_once(['x', 'X']) {
            None => side(text).map(Self::Longest),
            Some(("", "")) => Err(EXPECTED.to_string()),
            Some((width, height)) => Ok(Self::Sides([part(width)?, part(height)?])),
        }
    }
}

impl fmt::Display for Resize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |side: Option<usize>| side.map_or_else(String::new, |side| side.to_string());
        match self {
            Self::Longest(side) => write!(f, "{side}"),
            Self::Sides([width, height]) => write!(f, "{}x{}", text(*width), text(*height)),
        }
    }
}

impl TryFrom<String> for Resize {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<Resize> for String {
    fn from(resize: Resize) -> Self {
        resize.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_base::error::ErrorKind;

    #[test]
    fn sizes_keep_the_proportions_unless_both_sides_are_given() {
        let of = |text: &str, size| text.parse::<Resize>().unwrap().output_size(size).unwrap();
        assert_eq!((of("512", [4000, 3000]), of("512", [3000, 4000])), ([512, 384], [384, 512]));
        assert_eq!((of("2000", [100, 50]), of("1", [100, 3])), ([2000, 1000], [1, 1]), "larger, and never empty");
        assert_eq!((of("300x", [4000, 3000]), of("x300", [4000, 3000])), ([300, 225], [400, 300]));
        assert_eq!(of("300x300", [4000, 3000]), [300, 300]);
        for (text, size) in [("99999", [1, 1]), ("16000x2000", [400, 300])] {
            let error = text.parse::<Resize>().unwrap().output_size(size).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::Usage, Some(Field::Size)), "{text}: {error}");
        }
        assert_eq!(of("6000", [8000, 4000]), [6000, 3000], "smaller");
        for bad in ["", "x", "0", "0x5", "a", "5x5x5", "-5", "99999999999999999999"] {
            let error = serde_json::from_value::<Resize>(bad.into()).unwrap_err().to_string();
            assert_eq!(error, bad.parse::<Resize>().unwrap_err());
            assert!(error.lines().count() == 1, "{error}");
        }
        for text in ["512", "768x512", "768x", "x512"] {
            let resize: Resize = text.parse().unwrap();
            assert_eq!(serde_json::from_str::<Resize>(&serde_json::to_string(&resize).unwrap()).unwrap(), resize);
        }
    }

    #[test]
    fn other_proportions_use_the_middle() {
        let region = |text: &str, size| text.parse::<Resize>().unwrap().region(size);
        assert_eq!(region("512x512", [400, 300]), Region { left: 50, top: 0, width: 300, height: 300 });
        assert_eq!(region("200x100", [100, 100]), Region { left: 0, top: 25, width: 100, height: 50 });
        assert_eq!(region("512", [400, 300]), Region::all(400, 300));
    }
}
