//! Parsing of requests to enlarge an image.

use std::path::PathBuf;
use std::time::Duration;

use flux::engine::{EmbeddedFiles, Priority, Recipe};
use flux::output::ImageFormat;
use serde::Deserialize;

use super::{Answer, Asked, Encoding, PRIORITIES, Previews, Route, Upload, add_files, read_answer, read_encoding};
use crate::http::error::{ApiError, Result};
use crate::jobs::enlarging::{Enlargement, MAX_FACTOR};
use crate::jobs::fields::{Faults, Fields};

/// The field of a job that enlarges an image. On the route of its own, its keys are fields.
pub const FIELD: &str = "upscale";
/// The name of the image among the files of a request.
pub const NAME: &str = "image";

/// The value of [`FIELD`].
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    upscaler: Option<String>,
    by: Option<f64>,
    size: Option<String>,
}

impl Asked {
    /// Creates a request to enlarge the file [`NAME`], without other options.
    pub fn enlarging(enlargement: Enlargement, files: EmbeddedFiles) -> Self {
        let recipe = Recipe { inputs: vec![PathBuf::from(NAME)], ..Recipe::default() };
        Self { enlarging: Some(enlargement), ..Self::with_recipe(recipe, files) }
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
        let asked = Self::with_recipe(recipe, files);
        Ok(Self { enlarging: enlargement, no_recipe, encoding, answer, priority, deadline, user, notes, ..asked })
    }

    /// Returns a request with defaults for everything but its recipe and its files.
    fn with_recipe(recipe: Recipe, files: EmbeddedFiles) -> Self {
        Self {
            model: None,
            recipe,
            enlarging: None,
            expansion: None,
            files,
            preparation: None,
            upsample: None,
            adapters: Vec::new(),
            count: 1,
            encoding: Encoding { format: ImageFormat::Png, quality: None },
            no_recipe: false,
            previews: Previews::AtMost(0),
            priority: Priority::Normal,
            deadline: None,
            user: None,
            feedback: None,
            notes: Vec::new(),
            answer: Answer::default(),
        }
    }
}
