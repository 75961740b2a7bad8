//! What a user asks for, and what the model makes of it.

use std::sync::Arc;

use serde::Serialize;

use super::images::{Change, ImagePlan};
use super::info::{MAX_SIDE, MAX_STEPS, ModelInfo};
use crate::error::{Error, Result};
use crate::rgb::Rgb;
use crate::sampler::{Rng, ScheduleKind};

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
    /// How the seed becomes noise.
    pub rng: Rng,
    /// How the noise levels fall.
    pub schedule: ScheduleKind,
    /// What the image leans away from, in place of the empty prompt; only guidance reads it. At most
    /// [`MAX_PROMPT_BYTES`] bytes, as the prompt.
    pub negative: Option<String>,
    /// Tokens that a prompt is cut or padded to. The transformer reads the padding too, so another number gives another
    /// image.
    pub max_sequence_length: Option<usize>,
    /// Images that the transformer sees, as [`crate::input::reference`] makes them; at most
    /// [`MAX_REFERENCES`](super::MAX_REFERENCES). The first one gives the size where none is asked for.
    pub references: Vec<Arc<Rgb>>,
    /// An image to change, which gives the size.
    pub change: Option<Change>,
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
            rng: Rng::default(),
            schedule: ScheduleKind::default(),
            negative: None,
            max_sequence_length: None,
            references: Vec::new(),
            change: None,
        }
    }

    /// All images that are encoded, in the order of the references: an image to change comes first.
    pub(super) fn images(&self) -> impl Iterator<Item = &Arc<Rgb>> {
        self.change.iter().map(|change| &change.image).chain(&self.references)
    }

    /// Errors when the prompt or the negative one is longer than [`MAX_PROMPT_BYTES`], or has control characters other
    /// than line feeds and tabs: a prompt with those was damaged, or is no text.
    pub fn check_prompt(&self) -> Result<()> {
        let negative =
            self.negative.as_deref().map_or(Ok(()), |negative| check_text(negative).map_err(|e| e.at("--negative")));
        check_text(&self.prompt).and(negative)
    }
}

/// Errors when a prompt is too long or no text.
fn check_text(prompt: &str) -> Result<()> {
    let bytes = prompt.len();
    if bytes > MAX_PROMPT_BYTES {
        return Err(Error::usage(format!("the prompt is {bytes} bytes long, expected at most {MAX_PROMPT_BYTES}"))
            .hint(PROMPT_TOO_LONG));
    }
    let refused = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if let Some((before, c)) = prompt.chars().enumerate().find(|&(_, c)| refused(c)) {
        return Err(Error::usage(format!(
            "character {} of the prompt is the control character U+{:04X}, expected text, line feeds and tabs",
            before + 1,
            u32::from(c)
        ))
        .hint("remove it: a prompt is plain text"));
    }
    Ok(())
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
    /// How the seed becomes noise.
    pub rng: Rng,
    /// How the noise levels fall.
    pub schedule: ScheduleKind,
    /// What the image leans away from, where that is not the empty prompt.
    pub negative: Option<String>,
    /// Tokens of a prompt, padding included.
    pub text_tokens: usize,
    /// The sizes of the reference images, [height, width] in pixels; an image to change that is one comes first.
    pub references: Vec<[usize; 2]>,
    /// How much of the schedule runs, where an image is changed.
    pub strength: Option<f64>,
    /// The step with which the schedule begins.
    pub first_step: usize,
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
        let steps = steps(request, info)?;
        let images = ImagePlan::new(&request.references, request.change.as_ref(), steps, info)?;
        let [default_height, default_width] = images.default_size;
        let (height, width) =
            (side("height", request.height, default_height)?, side("width", request.width, default_width)?);
        notes.extend(info.size_note(width, height));

        if request.change.is_some() && [height, width] != images.default_size {
            let what =
                format!("{width}x{height} is asked for, the image to change is {default_width}x{default_height}");
            return Err(Error::usage(what).at("--width").hint("leave the size out: it is that of the image"));
        }
        notes.extend(images.notes);
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
        let negative = request.negative.clone().filter(|_| guidance > 1.0);
        if request.negative.is_some() && negative.is_none() {
            let why = if info.is_distilled { "this model is distilled" } else { "there is no guidance" };
            notes.push(format!("the negative prompt has no effect: {why}"));
        }
        Ok(Self {
            width,
            height,
            steps,
            guidance,
            seed: request.seed,
            rng: request.rng,
            schedule: request.schedule.clone(),
            negative,
            text_tokens: text_tokens(request, info)?,
            references: images.references,
            strength: request.change.as_ref().map(|change| change.strength),
            first_step: images.first_step,
            notes,
        })
    }

    /// One step to an image of this size, for tests of what is made of a plan.
    #[cfg(test)]
    pub(super) fn of_size(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            steps: 1,
            guidance: 1.0,
            seed: 1,
            rng: Rng::default(),
            schedule: ScheduleKind::default(),
            negative: None,
            text_tokens: 512,
            references: Vec::new(),
            strength: None,
            first_step: 0,
            notes: Vec::new(),
        }
    }

    /// How many steps run.
    pub fn steps_to_run(&self) -> usize {
        self.steps - self.first_step
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

/// The number of steps.
///
/// Errors when it is out of bounds, or the schedule is wrong or has another number.
fn steps(request: &Request, info: &ModelInfo) -> Result<usize> {
    request.schedule.check().map_err(|e| e.at("--schedule"))?;
    let of_schedule = request.schedule.steps();
    if let (Some(levels), Some(steps)) = (of_schedule, request.steps)
        && levels != steps
    {
        return Err(Error::usage(format!("the noise levels make {levels} steps, {steps} are asked for"))
            .at("--schedule")
            .hint("leave out the number of steps: each level but the 0 at the end is one"));
    }
    let steps = of_schedule.or(request.steps).unwrap_or(info.default_steps);
    if (1..=MAX_STEPS).contains(&steps) {
        return Ok(steps);
    }
    let error = Error::usage(format!("steps is {steps}, expected 1 to {MAX_STEPS}"));
    Err(match of_schedule {
        Some(_) => error.at("--schedule").hint("name fewer noise levels"),
        None => error.at("--steps").hint(format!("leave it out for the model's own number, {}", info.default_steps)),
    })
}

/// Tokens of a prompt.
///
/// Errors when the model does not read so many.
fn text_tokens(request: &Request, info: &ModelInfo) -> Result<usize> {
    let tokens = request.max_sequence_length.unwrap_or(info.max_sequence_length);
    let most = info.longest_sequence();
    if (1..=most).contains(&tokens) {
        return Ok(tokens);
    }
    Err(Error::usage(format!("a prompt of {tokens} tokens is asked for, expected 1 to {most}"))
        .at("--max-sequence-length")
        .hint(format!("leave it out for the model's own number, {}", info.max_sequence_length)))
}

impl ModelInfo {
    /// Height and width in packed latents.
    pub fn latent_size(&self, plan: &Plan) -> (usize, usize) {
        (plan.height / self.vae.patch_pixels(), plan.width / self.vae.patch_pixels())
    }

    /// The sizes of the reference images, [height, width] in packed latents.
    pub(super) fn reference_sizes(&self, plan: &Plan) -> Vec<[usize; 2]> {
        plan.references.iter().map(|size| size.map(|side| side / self.vae.patch_pixels())).collect()
    }

    /// Tokens of all reference images.
    pub(super) fn reference_tokens(&self, plan: &Plan) -> usize {
        self.reference_sizes(plan).iter().map(|[height, width]| height * width).sum()
    }
}
