//! The model that generates the measured images.

use std::sync::Arc;

use flux::backend::Backend;
use flux::model::ModelInfo;
use flux::pipeline::{Image, Model, Parallel, Request};
use flux::stage::CancelFlag;
use flux::{Error, Result};

/// A model on one device, or on several devices that generate one image together.
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

    /// Returns the name of a row: the name for one device, with the number of devices.
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
        self.generate_batch(request, 1)?.pop().ok_or_else(|| Error::new("no image was generated"))
    }
}
