//! What makes the images that are measured.

use std::sync::Arc;

use flux::backend::Backend;
use flux::model::ModelInfo;
use flux::pipeline::{CancelFlag, Image, Model, Parallel, Request};
use flux::{Error, Result};

/// A model on one device, or on several that make one image together.
pub(super) enum Maker<B: Backend> {
    One(Arc<Model<B>>),
    Several(Parallel<B>),
}

impl<B: Backend> Maker<B> {
    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::One(model) => model.info(),
            Self::Several(parallel) => parallel.first().info(),
        }
    }

    /// The name of a row: that of one device, and over how many it is.
    pub fn name(&self, of_one: String) -> String {
        match self {
            Self::One(_) => of_one,
            Self::Several(parallel) => format!("{of_one} over {}", parallel.models().len()),
        }
    }

    pub fn generate_batch(&self, request: &Request, count: usize) -> Result<Vec<Image>> {
        match self {
            Self::One(model) => model.generate_batch(request, count),
            Self::Several(parallel) => parallel.generate_batch(request, count, &CancelFlag::default(), &mut |_| {}),
        }
    }

    pub fn generate(&self, request: &Request) -> Result<Image> {
        self.generate_batch(request, 1)?.pop().ok_or_else(|| Error::new("no image was made"))
    }
}
