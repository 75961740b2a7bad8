//! Regions of a recipe: texts that only parts of the image see, for FLUX.2.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::boxes::Rectangle;
use crate::error::{Error, Field, Result};
use crate::input::{Mask, is_stdin};
use crate::pipeline::{Area, MAX_REGIONS, RegionPrompt};

/// A text for a part of the image, which is a box or the white part of a mask.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with box or mask, and prompt")]
pub struct TextRegion {
    /// Box: top, left, bottom and right.
    #[serde(default, rename = "box", skip_serializing_if = "Option::is_none")]
    pub rectangle: Option<Rectangle>,
    /// Mask image, white in the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<PathBuf>,
    /// Text.
    pub prompt: String,
}

impl TextRegion {
    /// Returns the region with its mask, which `read` reads.
    ///
    /// Errors as `read`.
    pub(super) fn read(&self, read: impl FnOnce(&Path) -> Result<Mask>) -> Result<RegionPrompt> {
        let area = match (&self.mask, self.rectangle) {
            (Some(file), _) => Area::Mask(Arc::new(read(file).map_err(|e| e.for_field(Field::Regions))?)),
            (None, rectangle) => Area::Box(rectangle.map_or([0; 4], Rectangle::sides)),
        };
        Ok(RegionPrompt { prompt: self.prompt.clone(), area })
    }
}

/// Reads `TOP,LEFT,BOTTOM,RIGHT:TEXT` or `MASK:TEXT`.
impl FromStr for TextRegion {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        // The colon of a drive, as in `C:\mask.png`, is part of the file.
        let drive = text.get(1..3).is_some_and(|part| [":/", ":\\"].contains(&part));
        let skipped = if drive { 2 } else { 0 };
        let split = text[skipped..].split_once(':').map(|(area, _)| text.split_at(skipped + area.len()));
        let (area, prompt) = split.ok_or("expected TOP,LEFT,BOTTOM,RIGHT:TEXT or MASK.png:TEXT")?;
        let (area, prompt) = (area.trim(), prompt[1..].trim().to_string());
        let is_box = area.contains(',') && area.chars().all(|c| c.is_ascii_digit() || ",.% -".contains(c));
        match (is_box, area) {
            (_, "") => Err("the region has no box and no mask".to_string()),
            (true, area) => Ok(Self { rectangle: Some(area.parse()?), mask: None, prompt }),
            (false, file) => Ok(Self { rectangle: None, mask: Some(file.into()), prompt }),
        }
    }
}

impl fmt::Display for TextRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.mask, self.rectangle) {
            (Some(file), _) => write!(f, "{}", file.display())?,
            (None, rectangle) => {
                let [top, left, bottom, right] = rectangle.map_or([0; 4], Rectangle::sides);
                write!(f, "{top},{left},{bottom},{right}")?;
            }
        }
        write!(f, ":{}", self.prompt)
    }
}

/// Errors if a region lacks its place or its text, or if there are too many.
pub fn check(regions: &[TextRegion]) -> Result<()> {
    let wrong = |what: String, hint: &str| Err(Error::usage(what).for_field(Field::Regions).hint(hint));
    if regions.len() > MAX_REGIONS {
        return wrong(
            format!("{} regions were passed, expected at most {MAX_REGIONS}", regions.len()),
            "leave some out",
        );
    }
    for (number, region) in (1..).zip(regions) {
        if region.rectangle.is_some() == region.mask.is_some() {
            return wrong(format!("region {number} must have either a box or a mask"), "pass one of them");
        }
        if region.mask.as_deref().is_some_and(is_stdin) {
            return wrong(format!("region {number} reads its mask from standard input"), "name the file of the mask");
        }
        if region.prompt.trim().is_empty() {
            return wrong(format!("region {number} has no text"), "describe what the region shows");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_a_box_or_a_mask_and_a_text() {
        for (text, is_box, place, prompt) in [
            ("0,0,1000,500:a red circle: large", true, "0,0,1000,500", "a red circle: large"),
            ("10%, 0 ,50%,100% : x", true, "100,0,500,1000", "x"),
            ("left mask.png:a cat", false, "left mask.png", "a cat"),
            ("C:\\masks\\1,2.png:a cat", false, "C:\\masks\\1,2.png", "a cat"),
        ] {
            let region: TextRegion = text.parse().unwrap();
            assert_eq!((region.rectangle.is_some(), region.prompt.as_str()), (is_box, prompt), "{text}");
            assert_eq!(region.to_string(), format!("{place}:{prompt}"));
            assert_eq!(region.to_string().parse(), Ok(region.clone()));
            let json = serde_json::to_string(&region).unwrap();
            assert_eq!(serde_json::from_str::<TextRegion>(&json).unwrap(), region, "{json}");
        }
        for (text, words) in [
            ("a cat", "MASK.png:TEXT"),
            (":a cat", "no box and no mask"),
            ("0,0,1001,500:a cat", "0 to 1000"),
            ("0,500,1000,500:a cat", "left must be less"),
            ("0,0,500:a cat", "TOP,LEFT,BOTTOM,RIGHT"),
            ("-1,0,9,9:a cat", "TOP,LEFT,BOTTOM,RIGHT"),
        ] {
            let error = text.parse::<TextRegion>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn regions_have_one_place_and_a_text() {
        let region: TextRegion = "0,0,9,9:a cat".parse().unwrap();
        assert!(check(&vec![region.clone(); 30]).is_ok());
        for (regions, words) in [
            (vec![region.clone(); 31], "31 regions"),
            (vec![TextRegion { mask: Some("m.png".into()), ..region.clone() }], "either a box or a mask"),
            (vec!["-:a cat".parse().unwrap()], "standard input"),
            (vec![region.clone(), TextRegion { prompt: " ".to_string(), ..region }], "region 2 has no text"),
        ] {
            let error = check(&regions).unwrap_err();
            assert!(error.field() == Some(Field::Regions) && error.to_string().contains(words), "{error}");
        }
    }
}
