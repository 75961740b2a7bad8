//! A user's request for an image, and the plan that the model makes of it.

use std::borrow::Cow;
use std::iter;
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
use crate::pipeline::request::hires::Hires;
use crate::pipeline::request::images::{Change, ImagePlan};
use crate::pipeline::request::kept::{self, Reuse};
use crate::pipeline::request::latents::Latents;
use crate::pipeline::request::regions::{RegionPrompt, region_map};
use crate::pipeline::request::tiles::TilePlan;
use crate::pipeline::request::transparency::Transparency;
use crate::rgb::Rgb;
use crate::sampler::{Rng, ScheduleKind, Start, Variation, Variety};
use crate::transformer::RegionMap;

/// A request for an image. The model chooses fields that are `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt, at most [`MAX_PROMPT_BYTES`] bytes; line feeds and tabs are its only control characters.
    pub prompt: String,
    /// `true` if the prompt has boxes, which only some kinds of models read.
    pub has_boxes: bool,
    /// Texts for parts of the image, at most [`MAX_REGIONS`](crate::pipeline::MAX_REGIONS). The whole image sees the
    /// prompt.
    pub regions: Vec<RegionPrompt>,
    /// Width in pixels; rounded down to a size that the model supports.
    pub width: Option<usize>,
    /// Height in pixels; rounded down to a size that the model supports.
    pub height: Option<usize>,
    /// Denoising steps: one evaluation of the transformer each, two with guidance.
    pub steps: Option<usize>,
    /// Seed of the noise.
    pub seed: u64,
    /// Guidance scale, the strength of the prompt; only undistilled models use it.
    pub guidance: Option<f32>,
    /// Image of another seed that is varied.
    pub variation: Option<Variation>,
    /// Noise on the text features of the first steps.
    pub variety: Option<Variety>,
    /// Random number generator of the noise.
    pub rng: Rng,
    /// Schedule of the noise levels.
    pub schedule: ScheduleKind,
    /// Negative prompt, in place of the empty prompt; only guidance reads it. At most [`MAX_PROMPT_BYTES`] bytes, as
    /// the prompt.
    pub negative: Option<String>,
    /// Number of tokens that a prompt is truncated or padded to. The transformer also reads the padding, so another
    /// number gives another image.
    pub max_sequence_length: Option<usize>,
    /// Text features that replace the prompt and the negative prompt. The prompt then only describes the features.
    /// The text encoder is not used.
    pub embeddings: Option<Embeddings>,
    /// Noise in place of the seed's noise, for as many images as are generated.
    pub noise: Option<Latents>,
    /// Input of the first step, unchanged: the latents at the first noise level, for as many images as are generated.
    /// At level 1 they are noise. They determine the size of the image.
    pub latents: Option<Latents>,
    /// Reference images, as returned by [`crate::input::reference`]; at most
    /// [`MAX_REFERENCES`](crate::pipeline::MAX_REFERENCES). The first one determines the size if the request has
    /// none.
    pub references: Vec<Arc<Rgb>>,
    /// More reference images, before resizing: the kind of the model decides how to resize them.
    pub given_references: Vec<Arc<GivenReference>>,
    /// Factors of the keys and values of references, in their order: an image to edit that is a reference comes first.
    /// Missing ones are 1.
    pub reference_weights: Vec<f32>,
    /// An image to edit, which determines the size.
    pub change: Option<Change>,
    /// `true` if steps after the first recompute only the masked area of an image to edit and the tokens next to it.
    /// For the other tokens, they read cached keys and values of the first step.
    pub sparse: bool,
    /// Reuse of tokens of an earlier video frame. The frame is the first image of the request. The result differs
    /// from an image without reuse.
    pub reuse: Option<Reuse>,
    /// The way to remove the background. An [`Engine`](crate::engine::Engine) does so; a session generates the opaque
    /// image.
    pub transparent: Transparency,
    /// Adapters of the transformer; the changes of all of them are added.
    pub adapters: Vec<AdapterUse>,
    /// Side in pixels of the tiles of an image that is larger than one, and the least pixels that two neighbours share.
    /// 0 is without tiles. With a second pass, its image has the tiles.
    pub tile: Option<usize>,
    /// See [`Request::tile`].
    pub tile_overlap: Option<usize>,
    /// A second pass at a larger size. An [`Engine`](crate::engine::Engine) runs it, a session does not.
    pub hires: Option<Hires>,
}

/// Maximum images in a batch. It bounds the memory, and the time until the first of many images is done.
pub(crate) const MAX_SAMPLES: usize = 8;
/// Maximum bytes of a prompt: more than any model reads, and short enough for the tokenizer to read without a delay.
pub const MAX_PROMPT_BYTES: usize = 64 << 10;
/// The hint for a prompt that is too long.
pub const PROMPT_TOO_LONG: &str = "shorten it: a model reads a few hundred words";

impl Request {
    /// Creates a request from a prompt and a seed; the model chooses everything else.
    pub fn new(prompt: impl Into<String>, seed: u64) -> Self {
        Self {
            prompt: prompt.into(),
            has_boxes: false,
            regions: Vec::new(),
            width: None,
            height: None,
            steps: None,
            seed,
            guidance: None,
            variation: None,
            variety: None,
            rng: Rng::default(),
            schedule: ScheduleKind::default(),
            negative: None,
            max_sequence_length: None,
            embeddings: None,
            noise: None,
            latents: None,
            references: Vec::new(),
            given_references: Vec::new(),
            reference_weights: Vec::new(),
            change: None,
            sparse: false,
            reuse: None,
            transparent: Transparency::No,
            adapters: Vec::new(),
            tile: None,
            tile_overlap: None,
            hires: None,
        }
    }

    /// Returns the request with all references resized for models of this kind.
    ///
    /// Errors if the kind does not support such references.
    pub(crate) fn for_kind(&self, kind: &ModelKind) -> Result<Cow<'_, Self>> {
        if self.given_references.is_empty() {
            return Ok(Cow::Borrowed(self));
        }
        let read = self.given_references.iter().map(|given| given.read(kind.references));
        let references = self.references.iter().cloned().map(Ok).chain(read).collect::<Result<_>>()?;
        Ok(Cow::Owned(Self { references, given_references: Vec::new(), ..self.clone() }))
    }

    /// Returns all images that are encoded, in the order of the references: an image to edit comes first.
    pub(crate) fn images(&self) -> impl Iterator<Item = &Arc<Rgb>> {
        self.change.iter().map(|change| &change.image).chain(&self.references)
    }

    /// Returns `true` if any images are encoded.
    pub(crate) fn has_images(&self) -> bool {
        !self.given_references.is_empty() || self.images().next().is_some()
    }

    /// Returns the input of the first step, if it does not come from the seed, and the field that provides it.
    pub(crate) fn start(&self) -> Option<(&Latents, Field)> {
        let noise = self.noise.as_ref().map(|noise| (noise, Field::Noise));
        self.latents.as_ref().map(|latents| (latents, Field::Latents)).or(noise)
    }

    /// Returns the request for a range of its images: with the seed of the first one in the range, and their noise
    /// and latents.
    pub fn part(&self, images: Range<usize>) -> Self {
        let part = |latents: &Option<Latents>| latents.as_ref().map(|latents| latents.part(images.clone()));
        let seed = self.seed.saturating_add(images.start as u64);
        Self { seed, noise: part(&self.noise), latents: part(&self.latents), ..self.clone() }
    }

    /// Returns a request for each of `count` images with consecutive seeds, at most one batch of them.
    ///
    /// Errors as [`Request::check_count`].
    pub(crate) fn items(&self, count: usize) -> Result<Vec<Self>> {
        self.check_count(count)?;
        Ok((0..count.min(MAX_SAMPLES)).map(|image| self.part(image..image + 1)).collect())
    }

    /// Checks that `count` images can be generated.
    ///
    /// Errors if `count` is 0, seeds exceed the largest seed, or noise or latents are passed for another number of
    /// images.
    pub fn check_count(&self, count: usize) -> Result<()> {
        if count == 0 {
            return Err(Error::usage("0 images were requested, expected at least 1").for_field(Field::Count));
        }
        if self.seed.checked_add(count as u64 - 1).is_none() {
            return Err(
                Error::usage(format!("seed {} is too large for {count} images", self.seed)).for_field(Field::Seed)
            );
        }
        match self.start() {
            Some((start, field)) if start.images() != count => {
                let images = start.images();
                Err(Error::usage(format!("the file contains {images} images, but {count} were requested"))
                    .for_field(field)
                    .hint(format!("request {images} images with `{:#}`", Field::Count)))
            }
            _ => Ok(()),
        }
    }

    /// Checks the prompts.
    ///
    /// Errors if the prompt, the negative prompt or the text of a region is longer than [`MAX_PROMPT_BYTES`], or has
    /// control characters other than line feeds and tabs: such a prompt is damaged or not text.
    pub fn check_prompt(&self) -> Result<()> {
        let regions = || self.regions.iter().try_for_each(|region| check_text(&region.prompt));
        let negative =
            self.negative.as_deref().map_or(Ok(()), check_text).map_err(|e| e.for_field(Field::NegativePrompt));
        check_text(&self.prompt).and(negative).and_then(|()| regions().map_err(|e| e.for_field(Field::Regions)))
    }
}

/// Errors if a prompt is too long or not text.
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

/// A request with all choices made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Guidance scale; 1 is without guidance.
    pub guidance: f32,
    /// Seed of the noise.
    pub seed: u64,
    /// Image of another seed that is varied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variation: Option<Variation>,
    /// Noise on the text features of the first steps, if it is not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variety: Option<Variety>,
    /// Random number generator of the noise.
    pub rng: Rng,
    /// Schedule of the noise levels.
    pub schedule: ScheduleKind,
    /// Negative prompt, if it is not empty.
    pub negative: Option<String>,
    /// Tokens of the prompt and of the texts of regions, including padding.
    pub text_tokens: usize,
    /// Tokens of the negative prompt. Different from `text_tokens` only if the number depends on the prompt, or if
    /// features of another length are passed.
    pub negative_tokens: usize,
    /// Sizes of the reference images, [height, width] in pixels; an image to edit that is a reference comes first.
    pub references: Vec<[usize; 2]>,
    /// Factors of the keys and values of each reference; empty if all are 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_weights: Vec<f32>,
    /// Part of the schedule that runs for an image to edit.
    pub strength: Option<f64>,
    /// First step of the schedule that runs.
    pub first_step: usize,
    /// Tiles, if the image is larger than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TilePlan>,
    /// Second pass at a larger size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hires: Option<HiresPlan>,
    /// The way to remove the background of the result.
    #[serde(skip_serializing_if = "is_opaque")]
    pub transparent: Transparency,
    /// Notes for the user: a size that was rounded or does not suit the model, an option without effect.
    pub notes: Vec<String>,
    /// `true` if another device runs the text encoder.
    #[serde(skip)]
    pub(crate) is_read_elsewhere: bool,
    /// Number of cached tokens over all steps, whose keys and values other steps read. With any, the image forms its
    /// own batch.
    #[serde(skip)]
    pub(crate) kept_tokens: usize,
    /// Regions of the image. With any, the image forms its own batch.
    #[serde(skip)]
    pub(crate) regions: Option<Arc<RegionMap>>,
}

/// The second pass of a [`Plan`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HiresPlan {
    /// Width of the result in pixels.
    pub width: usize,
    /// Height of the result in pixels.
    pub height: usize,
    /// The edit; `None` if the image is only enlarged.
    pub edit: Option<Box<Plan>>,
}

fn is_opaque(transparent: &Transparency) -> bool {
    *transparent == Transparency::No
}

/// Prompts with fewer words are short for a model that was trained on full captions.
const MIN_CAPTION_WORDS: usize = 40;

/// Returns a note if the model was trained on full captions and the prompt is short.
fn caption_note(request: &Request, info: &ModelInfo) -> Option<String> {
    let words = request.prompt.split_whitespace().count();
    let is_short = (1..MIN_CAPTION_WORDS).contains(&words) && request.embeddings.is_none();
    (is_short && info.kind.wants_captions).then(|| {
        let name = info.kind.files.name;
        format!(
            "{name} is trained on full captions: write one, or let a language model write it with `{:#}`",
            Field::Upsample
        )
    })
}

/// The largest factor of a reference's keys and values. Images fall apart before it.
const MAX_REFERENCE_WEIGHT: f32 = 2.0;

/// Returns the weight of each of `references` references; none if all are 1.
///
/// Errors if there are more weights, one is out of range, or steps reuse keys of references.
fn reference_weights(request: &Request, references: usize) -> Result<Vec<f32>> {
    let given = &request.reference_weights;
    let wrong = |what: String| Err(Error::usage(what).for_field(Field::InputWeights));
    if given.len() > references {
        return wrong(format!("{} weights were passed for {references} references", given.len()));
    }
    if let Some(weight) = given.iter().find(|weight| !(0.0..=MAX_REFERENCE_WEIGHT).contains(*weight)) {
        return wrong(format!("the weight of a reference is {weight}, expected 0 to {MAX_REFERENCE_WEIGHT}"));
    }
    if given.iter().all(|weight| *weight == 1.0) {
        return Ok(Vec::new());
    }
    if request.sparse || request.reuse.is_some() {
        let other = if request.sparse { Field::Sparse } else { Field::Reuse };
        return wrong(format!("`{:#}` cannot be used with `{other:#}`", Field::InputWeights));
    }
    Ok(given.iter().copied().chain(iter::repeat(1.0)).take(references).collect())
}

/// Errors if another option excludes regions.
fn check_regions(request: &Request) -> Result<()> {
    let others = [
        (request.sparse, Field::Sparse),
        (request.reuse.is_some(), Field::Reuse),
        (request.embeddings.is_some(), Field::Embeddings),
    ];
    match others.iter().find(|(given, _)| *given && !request.regions.is_empty()) {
        Some((_, other)) => Err(Error::usage(format!("`{:#}` cannot be used with `{other:#}`", Field::Regions))
            .for_field(Field::Regions)
            .hint("leave one of them out")),
        None => Ok(()),
    }
}

/// Returns the noise on text features, if there is any.
///
/// Errors if the tokens without padding are unknown, or later steps reuse keys of the first step's text.
fn variety(request: &Request) -> Result<Option<Variety>> {
    let Some(variety) = request.variety.filter(Variety::has_effect) else { return Ok(None) };
    let others = [
        (request.embeddings.is_some(), Field::Embeddings),
        (request.sparse, Field::Sparse),
        (request.reuse.is_some(), Field::Reuse),
        (!request.regions.is_empty(), Field::Regions),
    ];
    match others.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, other)) => Err(Error::usage(format!("`{:#}` cannot be used with `{other:#}`", Field::Variety))
            .for_field(Field::Variety)
            .hint("leave one of them out")),
        None => Ok(Some(variety)),
    }
}

impl Plan {
    /// Creates the plan of a request. If the number of text tokens depends on the prompt, the plan assumes that of a
    /// typical prompt.
    ///
    /// Errors if the model cannot do what is requested.
    pub(crate) fn new(request: &Request, info: &ModelInfo) -> Result<Self> {
        Self::counted(request, info, |_| Ok(USUAL_TOKENS))
    }

    /// Creates the plan of a request. `count` returns the number of tokens of a prompt, if the number of text tokens
    /// depends on it.
    ///
    /// Errors if the model cannot do what is requested, or as `count`.
    pub(crate) fn counted(request: &Request, info: &ModelInfo, count: impl Fn(&str) -> Result<usize>) -> Result<Self> {
        Self::single(request, info, &count)?.with_hires(request, info, &count)
    }

    /// Creates the plan of a single pass, as [`Plan::counted`].
    ///
    /// Errors as [`Plan::counted`].
    pub(super) fn single(request: &Request, info: &ModelInfo, count: &dyn Fn(&str) -> Result<usize>) -> Result<Self> {
        let reduced = request.given_references.iter().filter_map(|given| given.note(info.kind.references));
        let mut notes: Vec<String> = reduced.collect();
        let request = &*request.for_kind(info.kind)?;
        request.check_prompt().map_err(|e| e.for_field(Field::Prompt))?;
        if request.has_boxes {
            info.check_boxes()?;
        }
        request.transparent.check(request.change.is_some(), request.reuse.is_some())?;
        notes.extend(caption_note(request, info));
        let mut side = |field: Field, asked: Option<usize>, default: usize| {
            let name = field.key();
            let pixels = asked.unwrap_or(default);
            let patch = info.vae.patch_pixels();
            if pixels < patch || pixels > MAX_SIDE {
                return Err(Error::usage(format!("{name} is {pixels} pixels, expected {patch} to {MAX_SIDE}"))
                    .for_field(field)
                    .hint(format!("leave it out for the model's own {name}, {default}")));
            }
            let rounded = pixels / patch * patch;
            if rounded != pixels && !info.kind.rounds_sizes {
                return Err(Error::usage(format!("{name} is {pixels} pixels, expected a multiple of {patch}"))
                    .for_field(field)
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
            check_size(start, info, [height, width]).map_err(|e| e.for_field(field))?;
        }
        notes.extend(info.size_note(width, height));
        notes.extend(adapters::notes(&request.adapters, info)?);

        if request.change.is_some() && [height, width] != images.default_size {
            let what =
                format!("{width}x{height} was requested, but the input image is {default_width}x{default_height}");
            return Err(Error::usage(what)
                .for_field(Field::Width)
                .hint("leave the size out to use the size of the image"));
        }
        if request.change.is_some() && request.latents.is_some() {
            return Err(Error::usage(
                "latents cannot be used with an input image, which already provides the first latents",
            )
            .for_field(Field::Latents)
            .hint("leave one of them out"));
        }
        notes.extend(images.notes);
        let asked = request.guidance.unwrap_or(info.default_guidance());
        if !(asked.is_finite() && (0.0..=1000.0).contains(&asked)) {
            return Err(Error::usage(format!("guidance is {asked}, expected 0 to 1000"))
                .for_field(Field::Guidance)
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
        let tiles = request.tiles(info, [height, width])?;
        check_regions(request)?;
        let (regions, region_notes) =
            region_map(&request.regions, (info, request.has_images()), [height, width], count)?;
        notes.extend(region_notes);
        let [prompt_tokens, negative_tokens] = text_tokens(request, info, guided, count)?;
        let text_tokens = prompt_tokens + regions.as_ref().map_or(0, |regions| regions.text_tokens());
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
                "`{:#}` cannot be used with `{field:#}`: all frames start from the noise of one seed",
                Field::Reuse
            ))
            .for_field(Field::Reuse)
            .hint("leave one of them out"));
        }
        let negative = request.negative.clone().filter(|_| guided);
        if request.negative.is_some() && negative.is_none() {
            let why = if info.is_distilled { "this model is distilled" } else { "there is no guidance" };
            notes.push(format!("the negative prompt has no effect: {why}"));
        }
        let mut plan = Self {
            width,
            height,
            steps,
            guidance,
            seed: request.seed,
            variation: request.variation,
            variety: variety(request)?,
            rng: request.rng,
            schedule: request.schedule.clone(),
            negative,
            text_tokens,
            negative_tokens,
            reference_weights: reference_weights(request, images.references.len())?,
            references: images.references,
            strength: request.change.as_ref().map(|change| change.strength),
            first_step: images.first_step,
            tiles,
            hires: None,
            transparent: request.transparent,
            notes,
            is_read_elsewhere: false,
            kept_tokens,
            regions,
        };
        let tile_notes = plan.tile_notes();
        plan.notes.extend(tile_notes);
        Ok(plan)
    }

    /// Creates a plan with one step for an image of this size, for tests.
    #[cfg(test)]
    pub(crate) fn with_size(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            steps: 1,
            guidance: 1.0,
            seed: 1,
            variation: None,
            variety: None,
            rng: Rng::default(),
            schedule: ScheduleKind::default(),
            negative: None,
            text_tokens: 512,
            negative_tokens: 512,
            references: Vec::new(),
            reference_weights: Vec::new(),
            strength: None,
            first_step: 0,
            tiles: None,
            hires: None,
            transparent: Transparency::No,
            notes: Vec::new(),
            is_read_elsewhere: false,
            kept_tokens: 0,
            regions: None,
        }
    }

    /// Returns the source of the noise.
    pub(crate) fn start(&self) -> Start<'static> {
        match self.variation {
            Some(variation) => Start::Varied(self.rng, self.seed, variation),
            None => Start::Seed(self.rng, self.seed),
        }
    }

    /// Returns the number of steps that run.
    pub fn steps_to_run(&self) -> usize {
        self.steps - self.first_step
    }

    /// Returns `true` if a step takes two evaluations.
    pub fn guided(&self) -> bool {
        self.guidance != 1.0
    }

    /// Returns the text tokens of each evaluation of a step.
    pub(crate) fn text(&self) -> Vec<usize> {
        if self.guided() { vec![self.text_tokens, self.negative_tokens] } else { vec![self.text_tokens] }
    }

    /// Returns the tokens of the text of each region.
    pub(crate) fn region_texts(&self) -> &[usize] {
        self.regions.as_ref().map_or(&[], |regions| &regions.texts)
    }

    /// Returns the tokens of the prompt, without the texts of regions.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.text_tokens - self.region_texts().iter().sum::<usize>()
    }
}

/// Returns the number of steps.
///
/// Errors if the number is out of bounds, or the schedule is invalid or has another number of steps.
fn steps(request: &Request, info: &ModelInfo) -> Result<usize> {
    request.schedule.check().map_err(|e| e.for_field(Field::Schedule))?;
    let of_schedule = request.schedule.steps();
    if let (Some(levels), Some(steps)) = (of_schedule, request.steps)
        && levels != steps
    {
        return Err(Error::usage(format!("the noise levels define {levels} steps, but {steps} were requested"))
            .for_field(Field::Schedule)
            .hint("leave out the number of steps: each level except the final 0 is one step"));
    }
    let steps = of_schedule.or(request.steps).unwrap_or(info.default_steps);
    if (1..=MAX_STEPS).contains(&steps) {
        return Ok(steps);
    }
    let error = Error::usage(format!("steps is {steps}, expected 1 to {MAX_STEPS}"));
    Err(match of_schedule {
        Some(_) => error.for_field(Field::Schedule).hint("list fewer noise levels"),
        None => error
            .for_field(Field::Steps)
            .hint(format!("leave it out for the model's own number, {}", info.default_steps)),
    })
}

/// Returns height and width in pixels of an image that begins with passed noise or latents.
///
/// Errors if both are passed, or they are larger than any image.
fn start_size(request: &Request, info: &ModelInfo) -> Result<Option<[usize; 2]>> {
    if request.noise.is_some() && request.latents.is_some() {
        return Err(Error::usage("noise and latents cannot be used together: both are the start of the first step")
            .for_field(Field::Latents)
            .hint("leave one of them out"));
    }
    let Some((start, field)) = request.start() else { return Ok(None) };
    let (patch, [channels, height, width]) = (info.vae.patch_pixels(), start.shape());
    let most = MAX_SIDE / patch;
    if height.max(width) > most {
        let what =
            format!("it has shape [{channels}, {height}, {width}], expected a height and width of at most {most}");
        return Err(Error::usage(what)
            .for_field(field)
            .hint("pass a file of noise or latents, which have one position for each 16 x 16 pixels"));
    }
    Ok(Some([height, width].map(|places| places * patch)))
}

/// Errors if `start` does not fit an image of this height and width in pixels.
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
        false => "they belong to another model: create them with this one".to_string(),
    };
    Err(Error::usage(format!("it has shape [{channels}, {height}, {width}], expected [{c}, {h}, {w}]")).hint(hint))
}

/// Returns the tokens of the prompt and of the negative prompt.
///
/// Errors if the model does not read so many tokens, or passed features do not fit the model.
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
    let refused = |what: String, hint: &str| Err(Error::usage(what).for_field(Field::Embeddings).hint(hint));
    if request.max_sequence_length.is_some() || request.negative.is_some() {
        return refused(
            "text features were passed, so no prompt is read".to_string(),
            "leave out the negative prompt and the number of tokens",
        );
    }
    let (got, expected) = (embeddings.prompt().shape[1], info.transformer.joint_attention_dim);
    if got != expected {
        return refused(
            format!(
                "text features have shape [{}, {got}], expected [tokens, {expected}]",
                embeddings.prompt().shape[0]
            ),
            "they belong to another model: save them with this one",
        );
    }
    let tokens = embeddings.prompt().shape[0];
    match embeddings.negative() {
        Some(negative) => Ok([tokens, negative.shape[0]]),
        None if guided => refused(
            "guidance needs the text features of a negative prompt".to_string(),
            &format!("save them with this model and guidance, or turn guidance off with `{} 1`", Field::Guidance),
        ),
        None => Ok([tokens, tokens]),
    }
}

/// Returns the number of tokens that prompts are truncated or padded to.
///
/// Errors if the model does not read so many.
fn prompt_tokens(request: &Request, info: &ModelInfo) -> Result<usize> {
    let tokens = request.max_sequence_length.unwrap_or(info.max_sequence_length);
    let most = info.longest_sequence();
    if (1..=most).contains(&tokens) {
        return Ok(tokens);
    }
    Err(Error::usage(format!("a prompt of {tokens} tokens was requested, expected 1 to {most}"))
        .for_field(Field::MaxSequenceLength)
        .hint(format!("leave it out for the model's own number, {}", info.max_sequence_length)))
}

impl ModelInfo {
    /// Returns height and width in packed latents.
    pub fn latent_size(&self, plan: &Plan) -> (usize, usize) {
        (plan.height / self.vae.patch_pixels(), plan.width / self.vae.patch_pixels())
    }

    /// Errors if the model was not trained on boxes.
    pub fn check_boxes(&self) -> Result<()> {
        if self.kind.reads_boxes {
            return Ok(());
        }
        Err(Error::usage(format!("{} models were not trained on boxes", self.kind.files.name))
            .for_field(Field::Boxes)
            .hint("use a FLUX.3 model, or describe the places in the prompt"))
    }

    /// Returns the sizes of the reference images that an evaluation sees, [height, width] in packed latents.
    pub(crate) fn reference_sizes(&self, plan: &Plan) -> Vec<[usize; 2]> {
        plan.seen_references().map(|size| size.map(|side| side / self.vae.patch_pixels())).collect()
    }

    /// Returns height and width in packed latents of the image or the tile of an evaluation.
    pub(crate) fn evaluated_size(&self, plan: &Plan) -> [usize; 2] {
        plan.evaluated_size().map(|side| side / self.vae.patch_pixels())
    }

    /// Returns the tokens of all reference images that an evaluation sees.
    pub(crate) fn reference_tokens(&self, plan: &Plan) -> usize {
        self.reference_sizes(plan).iter().map(|[height, width]| height * width).sum()
    }
}
