//! What decides whether images are made as one batch.

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::request::adapters::{AdapterSet, SetKey};
use crate::pipeline::request::plan::{Plan, Request};
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::session::model::Model;
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
    /// Images that are one batch at most, where memory does not decide.
    most: usize,
}

impl Shape {
    pub(crate) fn of(request: &Request, Prepared { plan, needs, .. }: &Prepared) -> Self {
        let common = Plan { seed: 0, rng: Rng::default(), negative: None, notes: Vec::new(), ..plan.clone() };
        Self {
            plan: Plan { is_read_elsewhere: false, ..common },
            adapters: AdapterSet::of(&request.adapters).key().clone(),
            has_embeddings: request.embeddings.is_some(),
            most: needs.wanted(usize::MAX),
        }
    }

    /// Images that are one batch at most, where memory does not decide.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most
    }
}

impl<B: Backend> Model<B> {
    /// What decides with which others an image may be made.
    ///
    /// Errors as [`Model::plan`], but for the tokenizer.
    pub(crate) fn shape(&self, request: &Request) -> Result<Shape> {
        Ok(Shape::of(request, &self.prepare(request, false)?))
    }
}
