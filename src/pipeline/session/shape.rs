//! The shape of images, which decides if they can form one batch.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::pipeline::request::adapters::{AdapterSet, SetKey};
use crate::pipeline::request::plan::{Plan, Request};
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
        let common =
            Plan { seed: 0, variation: None, rng: Rng::default(), negative: None, notes: Vec::new(), ..plan.clone() };
        Self {
            plan: Plan { is_read_elsewhere: false, ..common },
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

    /// Returns the tokens of an image that a step computes, and the evaluations of the transformer.
    pub(crate) fn tokens_and_evaluations(&self) -> (usize, usize) {
        let Plan { width, height, ref references, text_tokens, transparent, .. } = self.plan;
        let tokens = |[height, width]: &[usize; 2]| height / 16 * (width / 16);
        let image = tokens(&[height, width]);
        let all = image + references.iter().map(tokens).sum::<usize>() + text_tokens;
        let evaluations = |steps: usize| steps * if self.plan.guided() { 2 } else { 1 };
        let first = evaluations(self.plan.steps_to_run());
        // The image on another background has the first image as its reference.
        let second = match transparent {
            Transparency::Edit => (evaluations(self.plan.steps) * (2 * image + text_tokens)).div_ceil(all.max(1)),
            Transparency::No | Transparency::Key => 0,
        };
        (all, first + second)
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

impl<B: Backend> Model<B> {
    /// Returns the shape of an image, which decides with which other images it can form a batch.
    ///
    /// Errors as [`Model::plan`], without the errors of the tokenizer.
    pub(crate) fn shape(&self, request: &Request) -> Result<Shape> {
        let request = request.for_kind(self.info().kind)?;
        Ok(Shape::new(&request, &self.prepare(&request, false)?, self.info()))
    }
}
