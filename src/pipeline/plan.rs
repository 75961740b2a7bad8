//! What a user asks for, and what the model makes of it.

use serde::Serialize;

use super::adapters;
use super::info::{MAX_SIDE, MAX_STEPS, ModelInfo};
use crate::error::{Error, Result};
use crate::files::adapter::AdapterUse;

/// An image that a user asks for. Where a field is `None`, the model chooses.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What to draw, at most [`MAX_PROMPT_BYTES`] bytes; line feeds and tabs are its only control characters.
    pub prompt: String,
    /// Pixels; rounded down to what the model can make.
    pub width: Option<usize>,
    /// Pixels; rounded down to what the model can make.
    pub height: Option<usize>,
    /// Denoising steps: one evaluation of the transformer each, two with guidance.
    pub steps: Option<usize>,
    /// Seed of the noise.
    pub seed: u64,
    /// How far the image leans towards the prompt; only undistilled models use it.
    pub guidance: Option<f32>,
    /// What changes the transformer; the changes of all of them are added.
    pub adapters: Vec<AdapterUse>,
}

/// The longest prompt in bytes: more than any model reads, and short enough for the tokenizer to read without a delay.
pub const MAX_PROMPT_BYTES: usize = 64 << 10;
/// What to do about a longer one.
pub const PROMPT_TOO_LONG: &str = "shorten it: a model reads a few hundred words";

impl Request {
    /// A prompt and a seed; the model chooses everything else.
    pub fn new(prompt: impl Into<String>, seed: u64) -> Self {
        Self {
            prompt: prompt.into(),
            width: None,
            height: None,
            steps: None,
            seed,
            guidance: None,
            adapters: Vec::new(),
        }
    }

    /// Errors when the prompt is longer than [`MAX_PROMPT_BYTES`], or has control characters other than line feeds and
    /// tabs: a prompt with those was damaged, or is no text.
    pub fn check_prompt(&self) -> Result<()> {
        let bytes = self.prompt.len();
        if bytes > MAX_PROMPT_BYTES {
            return Err(Error::usage(format!("the prompt is {bytes} bytes long, expected at most {MAX_PROMPT_BYTES}"))
                .hint(PROMPT_TOO_LONG));
        }
        let refused = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        if let Some((before, c)) = self.prompt.chars().enumerate().find(|&(_, c)| refused(c)) {
            return Err(Error::usage(format!(
                "character {} of the prompt is the control character U+{:04X}, expected text, line feeds and tabs",
                before + 1,
                u32::from(c)
            ))
            .hint("remove it: a prompt is plain text"));
        }
        Ok(())
    }
}

/// A request in which every choice is made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Guidance scale; 1 is without guidance.
    pub guidance: f32,
    /// Seed of the noise.
    pub seed: u64,
    /// What the user should know: a size that was rounded or does not suit the model, an option that has no effect.
    pub notes: Vec<String>,
}

impl Plan {
    /// Errors when the model cannot do what is asked for.
    pub(super) fn new(request: &Request, info: &ModelInfo) -> Result<Self> {
        request.check_prompt().map_err(|e| e.at("--prompt"))?;
        let mut notes = Vec::new();
        let mut side = |name: &str, asked: Option<usize>, default: usize| {
            let pixels = asked.unwrap_or(default);
            let patch = info.vae.patch_pixels();
            if pixels < patch || pixels > MAX_SIDE {
                return Err(Error::usage(format!("{name} is {pixels} pixels, expected {patch} to {MAX_SIDE}"))
                    .at(format!("--{name}"))
                    .hint(format!("leave it out for the model's own {name}, {default}")));
            }
            let rounded = pixels / patch * patch;
            if rounded != pixels {
                notes.push(format!("{name} {pixels} is rounded down to {rounded}, a multiple of {patch}"));
            }
            Ok(rounded)
        };
        let [default_height, default_width] = info.default_image_size;
        let (height, width) =
            (side("height", request.height, default_height)?, side("width", request.width, default_width)?);
        notes.extend(info.size_note(width, height));
        notes.extend(adapters::notes(&request.adapters, info)?);

        let steps = request.steps.unwrap_or(info.default_steps);
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(Error::usage(format!("steps is {steps}, expected 1 to {MAX_STEPS}"))
                .at("--steps")
                .hint(format!("leave it out for the model's own number, {}", info.default_steps)));
        }
        let asked = request.guidance.unwrap_or(info.default_guidance());
        if !(asked.is_finite() && (0.0..=1000.0).contains(&asked)) {
            return Err(Error::usage(format!("guidance is {asked}, expected 0 to 1000"))
                .at("--guidance")
                .hint(format!("leave it out for the model's own scale, {}", info.default_guidance())));
        }
        if info.is_distilled && request.guidance.is_some_and(|g| g != 1.0) {
            notes.push("guidance has no effect: this model is distilled".to_string());
        }
        let guidance = if info.is_distilled { 1.0 } else { asked.max(1.0) };
        Ok(Self { width, height, steps, guidance, seed: request.seed, notes })
    }

    /// Whether a step takes two evaluations.
    pub fn guided(&self) -> bool {
        self.guidance > 1.0
    }

    /// Evaluations of the transformer that make a step.
    pub(super) fn evaluations(&self) -> u64 {
        if self.guided() { 2 } else { 1 }
    }
}

impl ModelInfo {
    /// Height and width in packed latents.
    pub fn latent_size(&self, plan: &Plan) -> (usize, usize) {
        (plan.height / self.vae.patch_pixels(), plan.width / self.vae.patch_pixels())
    }
}
