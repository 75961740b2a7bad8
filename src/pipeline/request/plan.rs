//! The plan that a model makes of a request.

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, Field, Result};
use crate::model::info::{ModelInfo, USUAL_TOKENS};
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::images::ImagePlan;
use crate::pipeline::request::regions::region_map;
use crate::pipeline::request::tiles::TilePlan;
use crate::pipeline::request::transparency::Transparency;
use crate::pipeline::request::{adapters, choices};
use crate::sampler::{Rng, ScheduleKind, Start, Variation, Variety};
use crate::transformer::RegionMap;

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
        notes.extend(choices::caption_note(request, info));
        let steps = choices::steps(request, info)?;
        let images = ImagePlan::new(&request.references, request.change.as_ref(), steps, info)?;
        let [height, width] = choices::size(request, info, images.default_size, &mut notes)?;
        notes.extend(adapters::notes(&request.adapters, info)?);
        notes.extend(images.notes);
        let guidance = choices::guidance(request, info, &mut notes)?;
        let guided = guidance != 1.0;
        let tiles = request.tiles(info, [height, width])?;
        choices::check_regions(request)?;
        let (regions, region_notes) =
            region_map(&request.regions, (info, request.has_images()), [height, width], count)?;
        notes.extend(region_notes);
        let [prompt_tokens, negative_tokens] = choices::text_tokens(request, info, guided, count)?;
        let text_tokens = prompt_tokens + regions.as_ref().map_or(0, |regions| regions.text_tokens());
        let steps_to_run = steps - images.first_step;
        let kept_tokens = choices::kept_tokens(request, info, guided, (text_tokens, [height, width], steps_to_run))?;
        let negative = choices::negative(request, info, guided, &mut notes);
        let mut plan = Self {
            width,
            height,
            steps,
            guidance,
            seed: request.seed,
            variation: request.variation,
            variety: choices::variety(request)?,
            rng: request.rng,
            schedule: request.schedule.clone(),
            negative,
            text_tokens,
            negative_tokens,
            reference_weights: choices::reference_weights(request, images.references.len())?,
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
