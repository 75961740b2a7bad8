//! What a user asks for, and what the model makes of it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, Field, Result};
use crate::files::adapter::AdapterUse;
use crate::model::info::{MAX_SIDE, MAX_STEPS, ModelInfo, USUAL_TOKENS};
use crate::model::registry::ModelKind;
use crate::pipeline::request::adapters;
use crate::pipeline::request::embeddings::Embeddings;
use crate::pipeline::request::given_reference::GivenReference;
use crate::pipeline::request::images::{Change, ImagePlan};
use crate::pipeline::request::kept::{self, Reuse};
use crate::pipeline::request::latents::Latents;
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
    /// Text features in place of the prompt, which then only says what they are of, and of the negative prompt. The
    /// text encoder is not used.
    pub embeddings: Option<Embeddings>,
    /// Noise in place of the seed's, for as many images as are made.
    pub noise: Option<Latents>,
    /// What the first step begins with, as it is: the latents at the first noise level, for as many images as are made.
    /// At level 1 that is noise. The image has their size.
    pub latents: Option<Latents>,
    /// Images that the transformer sees, as [`crate::input::reference`] makes them; at most
    /// [`MAX_REFERENCES`](crate::pipeline::MAX_REFERENCES). The first one gives the size where none is asked for.
    pub references: Vec<Arc<Rgb>>,
    /// More of them, as they are: the kind of the model decides how it reads them.
    pub given_references: Vec<Arc<GivenReference>>,
    /// An image to change, which gives the size.
    pub change: Option<Change>,
    /// Whether steps behind the first compute only what is drawn anew of an image to change, and what is next to it:
    /// for the rest they read the keys and values of the first step.
    pub sparse: bool,
    /// Whether it is made of a frame of a video, the first of its images, and which tokens are those of an earlier one.
    /// The image is another one than without.
    pub reuse: Option<Reuse>,
    /// What changes the transformer; the changes of all of them are added.
    pub adapters: Vec<AdapterUse>,
}

/// The most images in a batch. It bounds the memory, and the time until the first of many images is done.
pub(crate) const MAX_SAMPLES: usize = 8;
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
            embeddings: None,
            noise: None,
            latents: None,
            references: Vec::new(),
            given_references: Vec::new(),
            change: None,
            sparse: false,
            reuse: None,
            adapters: Vec::new(),
        }
    }

    /// The request with all references as models of this kind read them.
    ///
    /// Errors when the kind has no such references.
    pub(crate) fn for_kind(&self, kind: &ModelKind) -> Result<Cow<'_, Self>> {
        if self.given_references.is_empty() {
            return Ok(Cow::Borrowed(self));
        }
        let read = self.given_references.iter().map(|given| given.read(kind.references));
        let references = self.references.iter().cloned().map(Ok).chain(read).collect::<Result<_>>()?;
        Ok(Cow::Owned(Self { references, given_references: Vec::new(), ..self.clone() }))
    }

    /// All images that are encoded, in the order of the references: an image to change comes first.
    pub(crate) fn images(&self) -> impl Iterator<Item = &Arc<Rgb>> {
        self.change.iter().map(|change| &change.image).chain(&self.references)
    }

    /// Whether images are encoded.
    pub(crate) fn has_images(&self) -> bool {
        !self.given_references.is_empty() || self.images().next().is_some()
    }

    /// What the first step begins with, where that does not come from the seed, and the field that gives it.
    pub(crate) fn start(&self) -> Option<(&Latents, Field)> {
        let noise = self.noise.as_ref().map(|noise| (noise, Field::Noise));
        self.latents.as_ref().map(|latents| (latents, Field::Latents)).or(noise)
    }

    /// The request for some of its images alone: with the first one's seed, and the noise and latents of all of them.
    pub fn part(&self, images: Range<usize>) -> Self {
        let part = |latents: &Option<Latents>| latents.as_ref().map(|latents| latents.part(images.clone()));
        let seed = self.seed.saturating_add(images.start as u64);
        Self { seed, noise: part(&self.noise), latents: part(&self.latents), ..self.clone() }
    }

    /// Each of `count` images, whose seeds are this one's and those that follow it, as a request of its own; no more
    /// than one batch has.
    ///
    /// Errors as [`Request::check_count`].
    pub(crate) fn items(&self, count: usize) -> Result<Vec<Self>> {
        self.check_count(count)?;
        Ok((0..count.min(MAX_SAMPLES)).map(|image| self.part(image..image + 1)).collect())
    }

    /// Errors when `count` images cannot be made: there are none, their seeds exceed the largest one, or noise or
    /// latents are given for another number.
    pub fn check_count(&self, count: usize) -> Result<()> {
        if count == 0 {
            return Err(Error::usage("0 images are asked for, expected at least 1").of(Field::Count));
        }
        if self.seed.checked_add(count as u64 - 1).is_none() {
            return Err(Error::usage(format!("seed {} is too large for {count} images", self.seed)).of(Field::Seed));
        }
        match self.start() {
            Some((start, field)) if start.images() != count => {
                let images = start.images();
                Err(Error::usage(format!("it holds {images} images, {count} are asked for"))
                    .of(field)
                    .hint(format!("ask for {images} images with `{:#}`", Field::Count)))
            }
            _ => Ok(()),
        }
    }

    /// Errors when the prompt or the negative one is longer than [`MAX_PROMPT_BYTES`], or has control characters other
    /// than line feeds and tabs: a prompt with those was damaged, or is no text.
    pub fn check_prompt(&self) -> Result<()> {
        let negative = self.negative.as_deref().map_or(Ok(()), check_text).map_err(|e| e.of(Field::NegativePrompt));
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
    /// Tokens of the prompt, padding included.
    pub text_tokens: usize,
    /// Tokens of the negative prompt: as many, unless features of another length are given.
    pub negative_tokens: usize,
    /// The sizes of the reference images, [height, width] in pixels; an image to change that is one comes first.
    pub references: Vec<[usize; 2]>,
    /// How much of the schedule runs, where an image is changed.
    pub strength: Option<f64>,
    /// The step with which the schedule begins.
    pub first_step: usize,
    /// What the user should know: a size that was rounded or does not suit the model, an option that has no effect.
    pub notes: Vec<String>,
    /// Whether another device runs the text encoder.
    #[serde(skip)]
    pub(crate) is_read_elsewhere: bool,
    /// Tokens whose keys and values are kept from a step for others, those of each step counted. The image is made
    /// alone where there are any.
    #[serde(skip)]
    pub(crate) kept_tokens: usize,
}

impl Plan {
    /// Where the number of text tokens depends on the prompt, that of a usual one.
    ///
    /// Errors when the model cannot do what is asked for.
    pub(crate) fn new(request: &Request, info: &ModelInfo) -> Result<Self> {
        Self::counted(request, info, |_| Ok(USUAL_TOKENS))
    }

    /// `count` tells how many tokens a prompt has, where the number of text tokens depends on that.
    ///
    /// Errors when the model cannot do what is asked for, or as `count`.
    pub(crate) fn counted(request: &Request, info: &ModelInfo, count: impl Fn(&str) -> Result<usize>) -> Result<Self> {
        let request = &*request.for_kind(info.kind)?;
        request.check_prompt().map_err(|e| e.of(Field::Prompt))?;
        let mut notes = Vec::new();
        let mut side = |field: Field, asked: Option<usize>, default: usize| {
            let name = field.key();
            let pixels = asked.unwrap_or(default);
            let patch = info.vae.patch_pixels();
            if pixels < patch || pixels > MAX_SIDE {
                return Err(Error::usage(format!("{name} is {pixels} pixels, expected {patch} to {MAX_SIDE}"))
                    .of(field)
                    .hint(format!("leave it out for the model's own {name}, {default}")));
            }
            let rounded = pixels / patch * patch;
            if rounded != pixels && !info.kind.rounds_sizes {
                return Err(Error::usage(format!("{name} is {pixels} pixels, expected a multiple of {patch}"))
                    .of(field)
                    .hint(format!("the nearest are {rounded} and {}", rounded + patch)));
            }
            if rounded != pixels {
                notes.push(format!("{name} {pixels} is rounded down to {rounded}, a multiple of {patch}"));
            }
            Ok(rounded)
        };
        let steps = steps(request, info)?;
        let images = ImagePlan::new(&request.references, request.change.as_ref(), steps, info)?;
        let [default_height, default_width] = start_size(request, info)?.unwrap_or(images.default_size);
        let (height, width) =
            (side(Field::Height, request.height, default_height)?, side(Field::Width, request.width, default_width)?);
        if let Some((start, field)) = request.start() {
            check_size(start, info, [height, width]).map_err(|e| e.of(field))?;
        }
        notes.extend(info.size_note(width, height));
        notes.extend(adapters::notes(&request.adapters, info)?);

        if request.change.is_some() && [height, width] != images.default_size {
            let what =
                format!("{width}x{height} is asked for, the image to change is {default_width}x{default_height}");
            return Err(Error::usage(what).of(Field::Width).hint("leave the size out: it is that of the image"));
        }
        if request.change.is_some() && request.latents.is_some() {
            return Err(Error::usage("an image to change gives the first latents, so none can be given beside it")
                .of(Field::Latents)
                .hint("leave one of them out"));
        }
        notes.extend(images.notes);
        let asked = request.guidance.unwrap_or(info.default_guidance());
        if !(asked.is_finite() && (0.0..=1000.0).contains(&asked)) {
            return Err(Error::usage(format!("guidance is {asked}, expected 0 to 1000"))
                .of(Field::Guidance)
                .hint(format!("leave it out for the model's own scale, {}", info.default_guidance())));
        }
        if info.is_distilled && request.guidance.is_some_and(|g| g != 1.0) {
            notes.push("guidance has no effect: this model is distilled".to_string());
        }
        let guidance = match (info.is_distilled, info.kind.guides_below_one) {
            (true, _) => 1.0,
            (false, true) => asked,
            (false, false) => asked.max(1.0),
        };
        let guided = guidance != 1.0;
        let [text_tokens, negative_tokens] = text_tokens(request, info, guided, count)?;
        let made_from = (request.change.as_ref(), &request.references[..]);
        let sparse = || kept::sparse_tokens(made_from, info, guided, text_tokens);
        let steps_to_run = steps - images.first_step;
        let kept_tokens = match request.reuse {
            Some(reuse) => {
                kept::frame_tokens(reuse, made_from, info, guided, (text_tokens, [height, width], steps_to_run))?
            }
            None => {
                if request.sparse {
                    sparse()?
                } else {
                    0
                }
            }
        };
        if let Some((_, field)) = request.start().filter(|_| request.reuse.is_some()) {
            return Err(Error::usage(format!(
                "`{:#}` does not go with `{field:#}`: frames begin with the noise of one seed",
                Field::Reuse
            ))
            .of(Field::Reuse)
            .hint("leave one of them out"));
        }
        let negative = request.negative.clone().filter(|_| guided);
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
            text_tokens,
            negative_tokens,
            references: images.references,
            strength: request.change.as_ref().map(|change| change.strength),
            first_step: images.first_step,
            notes,
            is_read_elsewhere: false,
            kept_tokens,
        })
    }

    /// One step to an image of this size, for tests of what is made of a plan.
    #[cfg(test)]
    pub(crate) fn of_size(width: usize, height: usize) -> Self {
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
            negative_tokens: 512,
            references: Vec::new(),
            strength: None,
            first_step: 0,
            notes: Vec::new(),
            is_read_elsewhere: false,
            kept_tokens: 0,
        }
    }

    /// How many steps run.
    pub fn steps_to_run(&self) -> usize {
        self.steps - self.first_step
    }

    /// Whether a step takes two evaluations.
    pub fn guided(&self) -> bool {
        self.guidance != 1.0
    }

    /// Text tokens of each evaluation of a step.
    pub(crate) fn text(&self) -> Vec<usize> {
        if self.guided() { vec![self.text_tokens, self.negative_tokens] } else { vec![self.text_tokens] }
    }
}

/// The number of steps.
///
/// Errors when it is out of bounds, or the schedule is wrong or has another number.
fn steps(request: &Request, info: &ModelInfo) -> Result<usize> {
    request.schedule.check().map_err(|e| e.of(Field::Schedule))?;
    let of_schedule = request.schedule.steps();
    if let (Some(levels), Some(steps)) = (of_schedule, request.steps)
        && levels != steps
    {
        return Err(Error::usage(format!("the noise levels make {levels} steps, {steps} are asked for"))
            .of(Field::Schedule)
            .hint("leave out the number of steps: each level but the 0 at the end is one"));
    }
    let steps = of_schedule.or(request.steps).unwrap_or(info.default_steps);
    if (1..=MAX_STEPS).contains(&steps) {
        return Ok(steps);
    }
    let error = Error::usage(format!("steps is {steps}, expected 1 to {MAX_STEPS}"));
    Err(match of_schedule {
        Some(_) => error.of(Field::Schedule).hint("name fewer noise levels"),
        None => error.of(Field::Steps).hint(format!("leave it out for the model's own number, {}", info.default_steps)),
    })
}

/// Height and width in pixels of an image that begins with given noise or latents.
///
/// Errors when both are given, or they are larger than any image.
fn start_size(request: &Request, info: &ModelInfo) -> Result<Option<[usize; 2]>> {
    if request.noise.is_some() && request.latents.is_some() {
        return Err(Error::usage("noise and latents are both given, and both are what the first step begins with")
            .of(Field::Latents)
            .hint("leave one of them out"));
    }
    let Some((start, field)) = request.start() else { return Ok(None) };
    let (patch, [channels, height, width]) = (info.vae.patch_pixels(), start.shape());
    let most = MAX_SIDE / patch;
    if height.max(width) > most {
        let what = format!("it is [{channels}, {height}, {width}], expected a height and width of at most {most}");
        return Err(Error::usage(what)
            .of(field)
            .hint("name a file of noise or latents, which hold a place for each 16 x 16 pixels"));
    }
    Ok(Some([height, width].map(|places| places * patch)))
}

/// Errors when `start` does not fit an image of this height and width in pixels.
fn check_size(start: &Latents, info: &ModelInfo, [height, width]: [usize; 2]) -> Result<()> {
    let patch = info.vae.patch_pixels();
    let expected = [info.transformer.in_channels, height / patch, width / patch];
    if start.shape() == expected {
        return Ok(());
    }
    let [channels, height, width] = start.shape();
    let [c, h, w] = expected;
    let hint = match channels == c {
        true => format!("leave out the size, which is then {} x {}", width * patch, height * patch),
        false => "they are of another model: make them with this one".to_string(),
    };
    Err(Error::usage(format!("it is [{channels}, {height}, {width}], expected [{c}, {h}, {w}]")).hint(hint))
}

/// Tokens of the prompt and of the negative one.
///
/// Errors when the model does not read so many, or given features are not the model's.
fn text_tokens(
    request: &Request,
    info: &ModelInfo,
    guided: bool,
    count: impl Fn(&str) -> Result<usize>,
) -> Result<[usize; 2]> {
    let Some(embeddings) = &request.embeddings else {
        let (most, window) = (prompt_tokens(request, info)?, info.kind.window);
        let length = |prompt: &str| match window.step {
            Some(_) => Ok::<_, Error>(window.length(count(prompt)?, most)),
            None => Ok(most),
        };
        let own = length(&request.prompt)?;
        let negative = guided.then(|| length(request.negative.as_deref().unwrap_or_default())).transpose()?;
        return Ok([own, negative.unwrap_or(own)]);
    };
    let refused = |what: String, hint: &str| Err(Error::usage(what).of(Field::Embeddings).hint(hint));
    if request.max_sequence_length.is_some() || request.negative.is_some() {
        return refused(
            "text features are given, so no prompt is read".to_string(),
            "leave out the negative prompt and the number of tokens",
        );
    }
    let (got, expected) = (embeddings.prompt().shape[1], info.transformer.joint_attention_dim);
    if got != expected {
        return refused(
            format!("text features are [{}, {got}], expected [tokens, {expected}]", embeddings.prompt().shape[0]),
            "they are of another model: save them with this one",
        );
    }
    let tokens = embeddings.prompt().shape[0];
    match embeddings.negative() {
        Some(negative) => Ok([tokens, negative.shape[0]]),
        None if guided => refused(
            "guidance needs the text features of a negative prompt".to_string(),
            &format!("save them with this model and guidance, or ask for none with `{} 1`", Field::Guidance),
        ),
        None => Ok([tokens, tokens]),
    }
}

/// Tokens that the prompts are cut or padded to.
///
/// Errors when the model does not read so many.
fn prompt_tokens(request: &Request, info: &ModelInfo) -> Result<usize> {
    let tokens = request.max_sequence_length.unwrap_or(info.max_sequence_length);
    let most = info.longest_sequence();
    if (1..=most).contains(&tokens) {
        return Ok(tokens);
    }
    Err(Error::usage(format!("a prompt of {tokens} tokens is asked for, expected 1 to {most}"))
        .of(Field::MaxSequenceLength)
        .hint(format!("leave it out for the model's own number, {}", info.max_sequence_length)))
}

impl ModelInfo {
    /// Height and width in packed latents.
    pub fn latent_size(&self, plan: &Plan) -> (usize, usize) {
        (plan.height / self.vae.patch_pixels(), plan.width / self.vae.patch_pixels())
    }

    /// The sizes of the reference images, [height, width] in packed latents.
    pub(crate) fn reference_sizes(&self, plan: &Plan) -> Vec<[usize; 2]> {
        plan.references.iter().map(|size| size.map(|side| side / self.vae.patch_pixels())).collect()
    }

    /// Tokens of all reference images.
    pub(crate) fn reference_tokens(&self, plan: &Plan) -> usize {
        self.reference_sizes(plan).iter().map(|[height, width]| height * width).sum()
    }
}
