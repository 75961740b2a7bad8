//! The shape of images, which decides if they can form one batch.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::pipeline::request::adapters::{AdapterSet, SetKey};
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::request::transparency::Transparency;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::session::model::Model;
use crate::pipeline::session::references::Images;
use crate::rgb::Rgb;
use crate::sampler::Rng;

/// Everything that the items of a batch have in common: size, steps, guidance, schedule, numbers of text tokens,
/// sizes of references, adapters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shape {
    /// The plan without values that belong to a single item.
    plan: Plan,
    adapters: SetKey,
    /// `true` if text features replace prompts.
    has_embeddings: bool,
    /// `true` if parts of an image are unmasked, see [`Change::cells`](crate::pipeline::Change::cells).
    has_mask: bool,
    /// The references, if their keys and values are computed once.
    cached_references: Vec<Arc<Rgb>>,
    /// Maximum images per batch, if memory is not limited; `gains` is `true` if batching them saves time.
    max_images: usize,
    gains: bool,
}

impl Shape {
    pub(crate) fn new(request: &Request, Prepared { plan, needs, .. }: &Prepared, info: &ModelInfo) -> Self {
        Self {
            plan: common(plan),
            adapters: AdapterSet::new(&request.adapters).key().clone(),
            has_embeddings: request.embeddings.is_some(),
            has_mask: request.change.as_ref().is_some_and(|change| change.cells.is_some()),
            cached_references: if info.caches_references {
                Images::from_request(request).into_references()
            } else {
                Vec::new()
            },
            gains: !needs.in_turn,
            max_images: needs.wanted(usize::MAX),
        }
    }

    /// Returns the tokens of an image that a step computes, and the evaluations of the transformer. With a second
    /// pass, these are the tokens of its larger pass, and as many evaluations as take the time of both.
    pub(crate) fn tokens_and_evaluations(&self) -> (usize, usize) {
        let first = tokens_and_evaluations(&self.plan);
        let second = match (self.plan.second_pass(), self.plan.transparent) {
            (Some(plan), _) => tokens_and_evaluations(plan),
            // The image on another background has the first image as its reference.
            (None, Transparency::Edit) => {
                let image = self.plan.height / 16 * (self.plan.width / 16);
                (2 * image + self.plan.text_tokens, evaluations(&self.plan, self.plan.steps))
            }
            (None, Transparency::No | Transparency::Key) => return first,
        };
        let tokens = first.0.max(second.0).max(1);
        (tokens, (first.0 * first.1 + second.0 * second.1).div_ceil(tokens))
    }

    /// Returns width and height of an image in pixels.
    pub(crate) fn size(&self) -> [usize; 2] {
        [self.plan.width, self.plan.height]
    }

    /// Returns the maximum images per batch, if memory is not limited.
    pub(crate) fn max_images(&self) -> usize {
        self.max_images
    }

    /// Returns the maximum images that take less time in one batch than one after the other.
    pub(crate) fn max_at_once(&self) -> usize {
        if self.gains { self.max_images } else { 1 }
    }
}

/// Returns a plan without values that belong to a single item.
fn common(plan: &Plan) -> Plan {
    let mut common =
        Plan { seed: 0, variation: None, rng: Rng::default(), negative: None, notes: Vec::new(), ..plan.clone() };
    common.is_read_elsewhere = false;
    for edit in common.hires.iter_mut().flat_map(|hires| &mut hires.edit) {
        **edit = self::common(edit);
    }
    common
}

/// Returns the tokens of an evaluation of a plan's image or tile, and the evaluations of the transformer.
fn tokens_and_evaluations(plan: &Plan) -> (usize, usize) {
    let tokens = |[height, width]: [usize; 2]| height / 16 * (width / 16);
    let references = plan.seen_references().map(tokens).sum::<usize>();
    let all = tokens(plan.evaluated_size()) + references + plan.text_tokens;
    (all, plan.tile_count() * evaluations(plan, plan.steps_to_run()))
}

/// Returns the evaluations of the transformer in a number of steps.
fn evaluations(plan: &Plan, steps: usize) -> usize {
    steps * if plan.guided() { 2 } else { 1 }
}

impl<B: Backend> Model<B> {
    /// Returns the shape of an image, which decides with which other images it can form a batch.
    ///
    /// Errors as [`Model::plan`], without the errors of the tokenizer.
    pub(crate) fn shape(&self, request: &Request) -> Result<Shape> {
        let request = request.for_kind(self.info().kind)?;
        Ok(Shape::new(&request, &self.prepare(&request, false)?, self.info()))
    }
}
