//! Parsing of the fields of `txt2img` and `img2img`. Fields that are not supported are reported.

use std::sync::Arc;

use flux::engine::expand::Expansion;
use flux::engine::{EmbeddedFiles, Recipe};
use flux::files::adapter::BlockStrengths;
use flux::metadata::{split_tags, split_weights};
use flux::output::ImageFormat;
use flux::sampler::{Variation, random_seed};
use serde_json::{Map, Value};

use super::effects::{dynamic_prompts, without_effect};
use crate::App;
use crate::http::config::Config;
use crate::http::error::{ApiError, Result, shown};
use crate::jobs::fields::{Faults, Fields};
use crate::jobs::models::stem;
use crate::jobs::request::{Asked, Encoding, Lora, Previews, UPSAMPLE, own_names, read_own};

/// Max images of a request.
const MAX_IMAGES: u64 = 64;
/// Max prompt tags with a note.
const MAX_TAG_NOTES: usize = 8;
/// Max steps that benefit a distilled model. Clients send 20 by default.
const MAX_DISTILLED_STEPS: u64 = 8;

pub struct Reading<'a> {
    app: &'a App,
    pub(super) fields: Map<String, Value>,
    pub(super) notes: Vec<String>,
    /// Fields without effect.
    pub(super) lost: Vec<String>,
}

impl<'a> Reading<'a> {
    pub fn new(app: &'a Arc<App>, fields: Map<String, Value>) -> Self {
        Self { app, fields, notes: Vec::new(), lost: Vec::new() }
    }

    /// Parses all fields.
    ///
    /// Errors if one is invalid.
    pub fn read(mut self, default: String, from_image: bool) -> Result<Asked> {
        let mut settings = match self.fields.remove("override_settings") {
            Some(Value::Object(settings)) => settings,
            other => Map::from_iter(other.map(|other| ("?".to_string(), other))),
        };
        let model = settings.remove("sd_model_checkpoint").and_then(|title| title.as_str().map(str::to_string));
        let model = model.map_or(default, |title| model_name(self.app, &title));
        let encoding = self.encoding(&mut settings);
        // A1111's setting for the texts in its files.
        let no_recipe = settings.remove("enable_pnginfo") == Some(Value::Bool(false));
        let prompt = self.text("prompt")?.unwrap_or_default();
        let (prompt, adapters) = self.adapters(&prompt);
        let prompt = self.words(&prompt);
        let count =
            self.whole("batch_size", 1..=MAX_IMAGES)?.unwrap_or(1) * self.whole("n_iter", 1..=MAX_IMAGES)?.unwrap_or(1);
        if count > MAX_IMAGES {
            return Err(ApiError::value(
                "n_iter",
                format!("{count} images were requested, expected at most {MAX_IMAGES}"),
            ));
        }
        let upsample = self.whole(UPSAMPLE, 0..=1)?.map(|on| on == 1);
        let models = &self.app.queue.models();
        let is_distilled = models.is_distilled(models.find(Some(&model)).map_or(0, |(place, _)| place));
        let (seed, variation) = self.seeds()?;
        let recipe = Recipe {
            prompt,
            variation,
            negative: self.negative(is_distilled)?,
            width: self.side("width")?,
            height: self.side("height")?,
            steps: self.steps(is_distilled)?,
            seed,
            guidance: self.guidance(is_distilled)?,
            hires: if from_image { None } else { self.hires(is_distilled)? },
            ..self.own_fields()?
        };
        recipe.check_format(encoding.format).map_err(ApiError::from)?;
        let (recipe, files, preparation) =
            if from_image { self.with_images(recipe)? } else { (recipe, EmbeddedFiles::new(), None) };
        self.sampler();
        let expansion = self.expansion();
        self.lost.extend(without_effect(self.fields, settings));
        if !self.lost.is_empty() {
            self.notes.push(format!("without effect: {}", self.lost.join(", ")));
        }
        Ok(Asked {
            model: Some(model),
            expansion,
            preparation,
            upsample,
            adapters,
            count: count as usize,
            encoding,
            no_recipe,
            previews: Previews::All,
            notes: self.notes,
            ..Asked::new(recipe, files)
        })
    }

    /// Returns a recipe with the fields that only this server has.
    ///
    /// Errors if one is invalid.
    fn own_fields(&mut self) -> Result<Recipe> {
        let own = own_names().filter_map(|name| Some((name.to_string(), self.fields.remove(name)?)));
        let (mut fields, mut faults) = (Fields::from_object(own.collect()), Faults::default());
        let recipe = read_own(&mut fields, &mut faults);
        faults.check().map(|()| recipe)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.fields.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                Err(ApiError::value(name, format!("`{name}` is {}, expected a string", shown(&other.to_string()))))
            }
        }
    }

    pub(super) fn number(&mut self, name: &'static str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.fields.remove(name) else { return Ok(None) };
        let number = match &value {
            Value::Bool(on) => Some(f64::from(u8::from(*on))),
            Value::String(text) if text.trim().is_empty() => return Ok(None),
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_f64(),
        };
        number.filter(|number| range.contains(number)).map(Some).ok_or_else(|| {
            let expected = format!("a number from {} to {}", range.start(), range.end());
            ApiError::value(name, format!("`{name}` is {}, expected {expected}", shown(&value.to_string())))
        })
    }

    pub(super) fn whole(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let number = self.number(name, *range.start() as f64..=*range.end() as f64)?;
        Ok(number.map(|number| number as u64))
    }

    fn side(&mut self, name: &'static str) -> Result<Option<usize>> {
        Ok(self.whole(name, 64..=16384)?.map(|side| side as usize))
    }

    fn seed(&mut self, name: &'static str) -> Result<u64> {
        let seed = self.number(name, -1.0..=9e15)?.unwrap_or(-1.0);
        Ok(if seed < 0.0 { random_seed() } else { seed as u64 })
    }

    /// Returns the seed that counts up from image to image, and the variation. As in A1111, that seed is the subseed
    /// if it has a strength.
    fn seeds(&mut self) -> Result<(u64, Option<Variation>)> {
        let seed = self.seed("seed")?;
        match self.number("subseed_strength", 0.0..=1.0)? {
            Some(strength) if strength > 0.0 => Ok((self.seed("subseed")?, Some(Variation { seed, strength }))),
            _ => Ok((seed, None)),
        }
    }

    /// Returns the prompt without adapter tags, and the adapters. Tags of unknown adapters are dropped with a note, as
    /// in A1111.
    pub(super) fn adapters(&mut self, prompt: &str) -> (String, Vec<Lora>) {
        let (prompt, tags) = split_tags(prompt);
        if self.fields.get("disable_extra_networks") == Some(&Value::Bool(true)) {
            return (prompt, Vec::new());
        }
        let mut loras = Vec::new();
        for tag in tags {
            let text = shown(&tag.text);
            let blocks = tag.blocks.as_deref().map_or(Ok(BlockStrengths::default()), str::parse);
            let Ok(blocks) = blocks.map_err(|why| self.notes.push(format!("`{text}` is ignored: {why}"))) else {
                continue;
            };
            match (self.app.queue.models().adapter_name(&tag.name), tag.weight) {
                (Ok(name), Some(weight)) => {
                    loras.push(Lora { name: name.to_string(), weight, blocks });
                    if tag.has_other_text_weight {
                        self.notes.push(format!("`{text}`: the weight of the text encoder has no effect"));
                    }
                }
                (Err(error), Some(_)) => self.notes.push(format!("`{text}` is ignored: {}", error.message)),
                (_, None) => self.notes.push(format!("`{text}` is ignored: its weight or kind is invalid")),
            }
        }
        let more = self.notes.len().saturating_sub(MAX_TAG_NOTES);
        self.notes.truncate(MAX_TAG_NOTES);
        self.notes.extend((more > 0).then(|| format!("{more} more are ignored")));
        (prompt, loras)
    }

    /// Returns a prompt without the weights of its words, which clients send by habit.
    pub(super) fn words(&mut self, prompt: &str) -> String {
        let (words, weighted) = split_weights(prompt);
        self.notes
            .extend(weighted.map(|text| format!("`{}` is read without its weight, which has no effect", shown(text))));
        words
    }

    /// Returns the way to expand the prompt, if the server expands prompts and the request enables Dynamic Prompts.
    fn expansion(&mut self) -> Option<Expansion> {
        let Config { expands_sdapi, wildcards, .. } = &self.app.config;
        let expands = *expands_sdapi && dynamic_prompts(&mut self.fields);
        expands.then(|| Expansion { wildcards: wildcards.clone(), ..Expansion::default() })
    }

    /// Returns the file format from the settings.
    fn encoding(&mut self, settings: &mut Map<String, Value>) -> Encoding {
        let format = settings.remove("samples_format").and_then(|format| format.as_str().map(str::to_lowercase));
        let quality = settings.remove("jpeg_quality").and_then(|quality| quality.as_u64());
        let format = format.filter(|format| !format.is_empty()).and_then(|name| {
            let known = ImageFormat::from_name(&name);
            if known.is_none() {
                self.lost.push(format!("override_settings.samples_format `{}`", shown(&name)));
            }
            known
        });
        let format = format.unwrap_or(ImageFormat::Png);
        let quality = quality.filter(|_| format == ImageFormat::Jpeg).map(|quality| quality.clamp(1, 100) as u8);
        Encoding { format, quality }
    }

    fn negative(&mut self, is_distilled: bool) -> Result<Option<String>> {
        let negative = self.text("negative_prompt")?.filter(|text| !text.trim().is_empty());
        if is_distilled && negative.is_some() {
            self.lost.push("negative_prompt (the model is distilled)".to_string());
        }
        Ok(negative.filter(|_| !is_distilled).map(|negative| self.words(&negative)))
    }

    /// Returns the steps. Distilled models use their default if the request exceeds what benefits them.
    fn steps(&mut self, is_distilled: bool) -> Result<Option<usize>> {
        let steps = self.whole("steps", 1..=1000)?;
        Ok(self.useful_steps("steps", steps, is_distilled))
    }

    /// Returns the steps of a field, or `None` if they exceed what benefits the model.
    pub(super) fn useful_steps(&mut self, name: &str, steps: Option<u64>, is_distilled: bool) -> Option<usize> {
        let is_too_many = steps.is_some_and(|steps| steps > MAX_DISTILLED_STEPS);
        if is_distilled && is_too_many && !self.app.config.honours_sdapi_steps {
            let steps = steps.unwrap_or_default();
            self.notes.push(format!("{name} {steps}: the model is distilled, and uses its own number of steps"));
            return None;
        }
        steps.map(|steps| steps as usize)
    }

    fn guidance(&mut self, is_distilled: bool) -> Result<Option<f32>> {
        let scale = self.number("cfg_scale", 0.0..=1e4)?;
        if let Some(scale) = scale.filter(|scale| is_distilled && *scale > 0.0 && *scale != 1.0) {
            self.lost.push(format!("cfg_scale {scale} (the model is distilled)"));
        }
        Ok(scale.filter(|_| !is_distilled).map(|scale| scale as f32))
    }

    fn sampler(&mut self) {
        for name in ["sampler_name", "sampler_index", "scheduler", "hr_sampler_name", "hr_scheduler"] {
            let Some(value) = self.fields.remove(name) else { continue };
            let sampler = value.as_str().map_or_else(|| value.to_string(), str::to_lowercase);
            let is_own = matches!(
                sampler.trim(),
                "" | "none" | "euler" | "k_euler" | "automatic" | "simple" | "use same sampler" | "use same scheduler"
            );
            if !is_own {
                let own = if name.ends_with("scheduler") {
                    "the model's own levels are used"
                } else {
                    "the sampler is Euler"
                };
                self.notes.push(format!("{name} `{}` is not supported: {own}", shown(&sampler)));
            }
        }
    }
}

/// Returns the model for one of A1111's titles: a name, possibly as a file name, possibly followed by a hash.
pub fn model_name(app: &App, title: &str) -> String {
    let title = title.split(" [").next().unwrap_or_default();
    let models = app.queue.models();
    let known = models.names().find(|name| *name == title);
    let known = known.or_else(|| models.names().find(|name| stem(name).eq_ignore_ascii_case(stem(title))));
    known.unwrap_or(title).to_string()
}
