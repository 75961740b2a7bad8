//! Data that the steps of batches of one shape share.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Rope, TokenSplit};
use crate::pipeline::request::plan::Plan;
use crate::pipeline::request::tiles::TilePlan;
use crate::sampler::{self, Conditioning, Evaluations, Tiles};
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Modulations, ReferenceWeights, RegionMap, Regions, Sequence, Transformer};

/// Everything that determines the work of a step; the number of steps does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BatchShape {
    height: usize,
    width: usize,
    text: Vec<usize>,
    references: Vec<[usize; 2]>,
    /// Bits of the weights of references.
    weights: Vec<u32>,
    regions: Option<Arc<RegionMap>>,
    tiles: Option<TilePlan>,
    guidance_bits: u32,
    /// Number of images wanted in one batch, and number of images in it: fewer if memory did not allow more.
    wanted: usize,
    samples: usize,
}

impl BatchShape {
    pub(crate) fn new(plan: &Plan, wanted: usize, samples: usize) -> Self {
        let &Plan { height, width, guidance, tiles, .. } = plan;
        let (text, references) = (plan.text(), plan.references.clone());
        let weights = plan.reference_weights.iter().map(|weight| weight.to_bits()).collect();
        let (regions, guidance_bits) = (plan.regions.clone(), guidance.to_bits());
        Self { height, width, text, references, weights, regions, tiles, guidance_bits, wanted, samples }
    }

    /// Returns `true` if the first batch of `wanted` images like `plan` has this shape. The work depends on the
    /// number of images in the batch, not on later batches. The batch has as many images as are wanted, or fewer if
    /// memory did not allow one more even after making room.
    pub(crate) fn serves(&self, plan: &Plan, wanted: usize) -> bool {
        *self == Self::new(plan, self.wanted, self.samples)
            && (self.samples == wanted || (self.samples < self.wanted && self.samples < wanted))
    }
}

/// Inputs of every step of a shape besides its tensors.
pub(crate) struct Steps<B: Backend> {
    pub(crate) transformer: Arc<Transformer<B>>,
    pub(crate) rope: Rope<B>,
    /// The tokens of one evaluation: of all images of the batch, or of each image or each tile in turn.
    pub(crate) split: TokenSplit,
    /// Number of images that are evaluated one after the other; 1 if all form one batch.
    pub(crate) turns: usize,
    /// Positions and tokens of the negative prompt, if it has another number of tokens or the prompt has regions.
    pub(crate) negative: Option<(Rope<B>, TokenSplit)>,
    /// Factors of keys and values of references in the sequence.
    pub(crate) weights: Option<ReferenceWeights<B>>,
    /// Regions of the prompt's evaluation, if any.
    pub(crate) regions: Option<Regions>,
    /// The tiles of the image, if it is evaluated in tiles. Every device has all of its latents.
    pub(crate) tiles: Option<Tiles<B>>,
    /// Keys and values of references that are not in the sequence.
    pub(crate) cached: Option<Arc<KeyCache<B>>>,
    pub(crate) guidance: Option<f32>,
    pub(crate) evaluations: Evaluations,
}

impl<B: Backend> Steps<B> {
    /// Returns the number of images in the batch.
    pub(crate) fn samples(&self) -> usize {
        self.split.whole().batch * self.turns
    }

    /// Runs a step: latents, context, row of modulations, dt -> latents.
    pub(crate) fn step(&self, [latents, context, modulation, dt]: [&Tensor<B>; 4]) -> Result<Tensor<B>> {
        let &Self { split, turns, guidance, evaluations, .. } = self;
        let modulation = self.transformer.modulation(modulation)?;
        let sequence = |split, rope, regions| Sequence { split, rope, weights: self.weights.as_ref(), regions };
        let negative = self.negative.as_ref().map(|(rope, split)| sequence(*split, rope, None));
        let (sequence, cached) = (sequence(split, &self.rope, self.regions.as_ref()), self.cached.as_deref());
        let step = |turn: usize| {
            let own = |x: &Tensor<B>| x.row_view(turn * (x.rows() / turns)..(turn + 1) * (x.rows() / turns));
            let context = &own(context);
            let tiles = self.tiles.as_ref();
            let conditioning = Conditioning { context, sequence, negative, cached, guidance, evaluations, tiles };
            sampler::step(&self.transformer, own(latents), &conditioning, &modulation, dt)
        };
        if turns == 1 {
            return step(0);
        }
        let made = (0..turns).map(step).collect::<Result<Vec<_>>>()?;
        Tensor::concat_rows(&made.iter().collect::<Vec<_>>())
    }

    /// Runs [`Steps::step`] for one image without guidance, and returns the keys and values of some of its tokens as
    /// well.
    pub(crate) fn step_recorded(
        &self,
        [latents, context, modulation, dt]: [&Tensor<B>; 4],
        tokens: Vec<Range<usize>>,
    ) -> Result<(Tensor<B>, KeyCache<B>)> {
        let modulation = self.transformer.modulation(modulation)?;
        let sequence = Sequence::new(self.split, &self.rope);
        let (velocity, keys) = self.transformer.forward_recorded(latents, context, &modulation, &sequence, tokens)?;
        Ok((latents.row_view(0..latents.rows()).euler_step(&velocity, dt)?, keys))
    }
}

/// The modulation and the length of each step of a schedule.
pub(crate) struct Schedules<B: Backend> {
    pub(crate) modulations: Modulations<B>,
    pub(crate) dts: Tensor<B>,    // [steps, 1]
    pub(crate) sigmas: Tensor<B>, // [steps + 1, 1] in float32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_serves_every_count_that_begins_with_the_same_batch() {
        let plan = Plan { guidance: 4.0, ..Plan::with_size(32, 16) };
        let serves = |made_for, samples, wanted| BatchShape::new(&plan, made_for, samples).serves(&plan, wanted);
        assert!(serves(8, 8, 8) && serves(3, 3, 3) && serves(1, 1, 1));
        assert!(!serves(8, 8, 7) && !serves(3, 3, 4) && !serves(1, 1, 8));
        // Memory allowed five of eight, so it allows five of seven; four are another batch.
        assert!(serves(8, 5, 8) && serves(8, 5, 7) && serves(8, 5, 5) && !serves(8, 5, 4));
        // If memory allowed only five of six, it does not allow eight.
        assert!(serves(6, 5, 8));
        let shape = BatchShape::new(&plan, 1, 1);
        assert!(shape.serves(&Plan { steps: 4, seed: 2, ..plan.clone() }, 1));
        assert!(!shape.serves(&Plan { height: 32, ..plan.clone() }, 1));
        assert!(!shape.serves(&Plan { guidance: 3.0, ..plan.clone() }, 1));
        assert!(!shape.serves(&Plan { text_tokens: 77, ..plan.clone() }, 1));
    }
}
