//! A user's request for an image.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::files::adapter::AdapterUse;
use crate::model::registry::ModelKind;
use crate::pipeline::request::embeddings::Embeddings;
use crate::pipeline::request::given_reference::GivenReference;
use crate::pipeline::request::hires::Hires;
use crate::pipeline::request::images::Change;
use crate::pipeline::request::kept::Reuse;
use crate::pipeline::request::latents::Latents;
use crate::pipeline::request::regions::RegionPrompt;
use crate::pipeline::request::transparency::Transparency;
use crate::rgb::Rgb;
use crate::sampler::{Rng, ScheduleKind, Variation, Variety};

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
