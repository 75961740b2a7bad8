//! Parsing of requests to enlarge an image.

use std::path::PathBuf;
use std::time::Duration;

use flux::engine::{EmbeddedFiles, EnlargedSize, Recipe};
use flux::input;
use serde::Deserialize;

use super::{Asked, PRIORITIES, Route, Upload, add_files, read_answer, read_encoding};
use crate::http::error::{ApiError, Result, shown};
use crate::jobs::admission::Estimate;
use crate::jobs::fields::{Faults, Fields};
use crate::upscalers::{LANCZOS, Upscalers};

/// The field of a job that enlarges an image. On the route of its own, its keys are fields.
pub const FIELD: &str = "upscale";
/// The name of the image among the files of a request.
pub const NAME: &str = "image";
/// The largest factor of width and height.
pub const MAX_FACTOR: f64 = 64.0;
/// The largest side of a result.
const MAX_SIDE: usize = 1 << 20;

/// A request to enlarge an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Enlargement {
    /// The upscaler as the client named it; `None` for the Lanczos filter.
    pub upscaler: Option<String>,
    pub size: EnlargedSize,
}

impl Enlargement {
    /// Creates a request from a name, a factor, and a size such as `3840x2160`.
    ///
    /// Errors if the size is invalid, or missing for the Lanczos filter.
    pub fn new(upscaler: Option<String>, by: Option<f64>, size: Option<&str>) -> Result<Self> {
        let upscaler = upscaler.filter(|name| !Upscalers::is_filter(name));
        let size = match (by, size) {
            (Some(_), Some(_)) => return Err(ApiError::value("size", "pass `by` or `size`, not both")),
            (Some(by), None) if by > 0.0 && by <= MAX_FACTOR => EnlargedSize::By(by),
            (Some(by), None) => {
                return Err(ApiError::value("by", format!("`by` is {by}, expected a factor up to {MAX_FACTOR}")));
            }
            (None, Some(text)) => EnlargedSize::To(size_of(text)?),
            (None, None) if upscaler.is_some() => EnlargedSize::Own,
            (None, None) => {
                let message = "the size is missing: pass `by`, a factor, or `size`, as in 3840x2160";
                return Err(ApiError::bad("missing_required_parameter", message).with_param("by"));
            }
        };
        Ok(Self { upscaler, size })
    }

    /// Returns the name of the upscaler, for clients.
    ///
    /// Errors if the server has no such upscaler.
    pub fn name(&self, upscalers: &Upscalers) -> Result<String> {
        match &self.upscaler {
            Some(name) => upscalers.find(name).map(|path| crate::upscalers::stem(&path).to_string()),
            None => Ok(LANCZOS.to_string()),
        }
    }

    /// Returns the work of the filter on an image, in addition to decoding it.
    pub fn estimate(&self, file: &[u8]) -> Estimate {
        let size = input::file_size(file).ok().filter(|_| self.upscaler.is_none());
        let to = size.and_then(|size| self.size.resolve(size, 1).ok());
        // Two passes of the filter, and encoding.
        to.map_or(Estimate::default(), |[width, height]| Estimate::scale(4 * width as u64 * height as u64))
    }
}

/// Parses a size such as `3840x2160`.
fn size_of(text: &str) -> Result<[usize; 2]> {
    let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
    let sides = text.split_once(['x', 'X', '×', '*']).and_then(|(width, height)| Some([side(width)?, side(height)?]));
    sides.ok_or_else(|| ApiError::value("size", format!("`size` is `{}`, expected WIDTHxHEIGHT", shown(text))))
}

/// The value of [`FIELD`].
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with upscaler, by or size")]
struct Wanted {
    upscaler: Option<String>,
    by: Option<f64>,
    size: Option<String>,
}

impl Asked {
    /// Creates a request to enlarge the file [`NAME`], without other options.
    pub fn enlarging(enlargement: Enlargement, files: EmbeddedFiles) -> Self {
        let recipe = Recipe { inputs: vec![PathBuf::from(NAME)], ..Recipe::default() };
        Self { enlarging: Some(enlargement), ..Self::new(recipe, files) }
    }

    /// Parses all fields of a request to enlarge an image.
    ///
    /// Errors if any field is invalid, missing or unknown. The error lists all of them.
    pub(super) fn read_enlarging(mut fields: Fields, uploads: Vec<Upload>, route: Route) -> Result<Self> {
        let (mut faults, mut notes, mut recipe) = (Faults::default(), Vec::new(), Recipe::default());
        let no_recipe = faults.ok(fields.flag("recipe")) == Some(false);
        let (files, mask) = add_files(&mut recipe, uploads, Route::Upscale, &mut faults);
        if mask.is_some() || recipe.inputs.len() > 1 {
            let field = if mask.is_some() { "mask" } else { "image" };
            faults.add(ApiError::value(field, "expected one image, without a mask"));
        }
        let wanted = match route {
            Route::Jobs => faults.ok(fields.value(FIELD)).unwrap_or_default(),
            _ => Wanted {
                upscaler: faults.ok(fields.text("upscaler")),
                by: faults.ok(fields.number("by", 0.0..=MAX_FACTOR)),
                size: faults.ok(fields.text("size")),
            },
        };
        let encoding = read_encoding(&mut fields, &mut faults, &mut notes);
        let answer = read_answer(&mut fields, &mut faults, None);
        let priority = faults.ok(fields.word("priority", &PRIORITIES)).unwrap_or_default();
        let deadline = faults.ok(fields.number("deadline_s", 0.0..=1e6)).map(Duration::from_secs_f64);
        let user = faults.ok(fields.text("user"));
        let enlargement = faults.ok(Enlargement::new(wanted.upscaler, wanted.by, wanted.size.as_deref()).map(Some));
        faults.extend(fields.finish());
        faults.check()?;
        let asked = Self::new(recipe, files);
        Ok(Self { enlarging: enlargement, no_recipe, encoding, answer, priority, deadline, user, notes, ..asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_factor_or_two_sides() {
        let new = |upscaler: &str, by, size| {
            let upscaler = Some(upscaler.to_string()).filter(|name| !name.is_empty());
            Enlargement::new(upscaler, by, size)
                .map(|one| (one.upscaler, one.size))
                .map_err(|error| error.param.unwrap())
        };
        let named = || Some("x".to_string());
        assert_eq!(new("x", None, None), Ok((named(), EnlargedSize::Own)));
        assert_eq!(new("", Some(1.5), None), Ok((None, EnlargedSize::By(1.5))));
        assert_eq!(new("lanczos", None, Some("30 x 20")), Ok((None, EnlargedSize::To([30, 20]))));
        for (upscaler, by, size, param) in [
            ("", None, None, "by"),
            ("Lanczos", None, None, "by"),
            ("x", Some(0.0), None, "by"),
            ("x", Some(f64::NAN), None, "by"),
            ("x", Some(65.0), None, "by"),
            ("x", Some(2.0), Some("8x8"), "size"),
            ("x", None, Some("8"), "size"),
            ("x", None, Some("0x8"), "size"),
            ("x", None, Some("99999999999x8"), "size"),
        ] {
            assert_eq!(new(upscaler, by, size).unwrap_err(), param, "{by:?} {size:?}");
        }
    }
}
