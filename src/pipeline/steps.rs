//! What the steps of batches of one shape have in common.

use std::sync::Arc;

use super::Plan;
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::Rope;
use crate::sampler::{self, Conditioning};
use crate::tensor::Tensor;
use crate::transformer::{Modulations, StepModulation, Transformer};

/// Everything that decides which work a step is. The number of steps does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BatchShape {
    height: usize,
    width: usize,
    text: Vec<usize>,
    guidance_bits: u32,
    /// How many images were wanted in one batch, and how many are in it: fewer where memory did not allow more.
    wanted: usize,
    samples: usize,
}

impl BatchShape {
    pub(super) fn new(plan: &Plan, wanted: usize, samples: usize) -> Self {
        let &Plan { height, width, guidance, .. } = plan;
        Self { height, width, text: plan.text(), guidance_bits: guidance.to_bits(), wanted, samples }
    }

    /// Whether the first batch of `wanted` images like `plan` has this shape. The work depends on how many images are
    /// in the batch, not on how many follow it. The batch has as many images as are wanted, or fewer: then memory did
    /// not allow one more, although room had been made.
    pub(super) fn serves(&self, plan: &Plan, wanted: usize) -> bool {
        *self == Self::new(plan, self.wanted, self.samples)
            && (self.samples == wanted || (self.samples < self.wanted && self.samples < wanted))
    }
}

/// What every step of a shape reads beside its inputs.
pub(super) struct Steps<B: Backend> {
    pub(super) transformer: Arc<Transformer<B>>,
    pub(super) rope: Rope<B>,
    /// Text tokens of one sample.
    pub(super) txt: usize,
    /// Positions and text tokens of the negative prompt where they are others.
    pub(super) negative: Option<(Rope<B>, usize)>,
    pub(super) samples: usize,
    pub(super) guidance: Option<f32>,
    /// Whether both evaluations of guidance run as one batch.
    pub(super) batched: bool,
}

impl<B: Backend> Steps<B> {
    /// Latents, context, row of modulations, dt -> latents.
    pub(super) fn step(&self, [latents, context, modulation, dt]: [&Tensor<B>; 4]) -> Result<Tensor<B>> {
        let &Self { txt, guidance, batched, .. } = self;
        let negative = self.negative.as_ref().map(|(rope, txt)| (rope, *txt));
        let conditioning = Conditioning { context, rope: &self.rope, txt, negative, guidance, batched };
        let latents = latents.row_view(0..latents.rows());
        sampler::step(&self.transformer, latents, &conditioning, &StepModulation::of_row(modulation)?, dt)
    }
}

/// The modulation and the length of each step of a schedule.
pub(super) struct Schedules<B: Backend> {
    pub(super) modulations: Modulations<B>,
    pub(super) dts: Tensor<B>, // [steps, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_serves_every_count_that_begins_with_the_same_batch() {
        let plan = Plan { guidance: 4.0, ..Plan::of_size(32, 16) };
        let serves = |made_for, samples, wanted| BatchShape::new(&plan, made_for, samples).serves(&plan, wanted);
        assert!(serves(8, 8, 8) && serves(3, 3, 3) && serves(1, 1, 1));
        assert!(!serves(8, 8, 7) && !serves(3, 3, 4) && !serves(1, 1, 8));
        // Memory allowed five of eight, so it allows five of seven; four are another batch.
        assert!(serves(8, 5, 8) && serves(8, 5, 7) && serves(8, 5, 5) && !serves(8, 5, 4));
        // Where memory allowed only five of six, it does not allow eight.
        assert!(serves(6, 5, 8));
        let shape = BatchShape::new(&plan, 1, 1);
        assert!(shape.serves(&Plan { steps: 4, seed: 2, ..plan.clone() }, 1));
        assert!(!shape.serves(&Plan { height: 32, ..plan.clone() }, 1));
        assert!(!shape.serves(&Plan { guidance: 3.0, ..plan.clone() }, 1));
        assert!(!shape.serves(&Plan { text_tokens: 77, ..plan.clone() }, 1));
    }
}
