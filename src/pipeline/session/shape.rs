//! What decides whether images are made as one batch.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::pipeline::request::adapters::{AdapterSet, SetKey};
use crate::pipeline::request::plan::{Plan, Request};
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::session::model::Model;
use crate::pipeline::session::references::Images;
use crate::rgb::Rgb;
use crate::sampler::Rng;

/// Everything that the items of a batch have in common: size, steps, guidance, schedule, numbers of text tokens, sizes
/// of references, adapters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shape {
    /// With nothing in it that an item has for itself.
    plan: Plan,
    adapters: SetKey,
    /// Whether text features are given in place of prompts.
    has_embeddings: bool,
    /// Whether some of an image stays, see [`Change::cells`](crate::pipeline::Change::cells).
    has_mask: bool,
    /// The references, where their keys and values are made once.
    cached_references: Vec<Arc<Rgb>>,
    /// Images that are one batch at most, where memory does not decide, and whether that gains anything.
    most: usize,
    gains: bool,
}

impl Shape {
    pub(crate) fn of(request: &Request, Prepared { plan, needs, .. }: &Prepared, info: &ModelInfo) -> Self {
        let common = Plan { seed: 0, rng: Rng::default(), negative: None, notes: Vec::new(), ..plan.clone() };
        Self {
            plan: Plan { is_read_elsewhere: false, ..common },
            adapters: AdapterSet::of(&request.adapters).key().clone(),
            has_embeddings: request.embeddings.is_some(),
            has_mask: request.change.as_ref().is_some_and(|change| change.cells.is_some()),
            cached_references: if info.caches_references { Images::of(request).into_references() } else { Vec::new() },
            gains: !needs.in_turn,
            most: needs.wanted(usize::MAX),
        }
    }

    /// Images that are one batch at most, where memory does not decide.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The same of images that take less time in one batch than one after the other.
    pub(crate) fn most_at_once(&self) -> usize {
        if self.gains { self.most } else { 1 }
    }
}

impl<B: Backend> Model<B> {
    /// What decides with which others an image may be made.
    ///
    /// Errors as [`Model::plan`], but for the tokenizer.
    pub(crate) fn shape(&self, request: &Request) -> Result<Shape> {
        let request = request.for_kind(self.info().kind)?;
        Ok(Shape::of(&request, &self.prepare(&request, false)?, self.info()))
    }
}
