//! The sampler: from noise to latents in Euler steps over a shifted schedule.

pub mod noise;
mod portable;
pub mod schedule;

pub use noise::{Noise, Rng, noise};
pub use schedule::{Schedule, ScheduleKind};

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Joint, Rope};
use crate::tensor::Tensor;
use crate::transformer::{StepModulation, Transformer};

/// What the transformer reads beside the latents.
pub struct Conditioning<'a, B: Backend> {
    /// Projected text [samples * txt, dim] of the prompt, once for each sample; with guidance, that of the empty prompt
    /// follows in as many rows.
    pub context: &'a Tensor<B>,
    /// Positions of one sample.
    pub rope: &'a Rope<B>,
    /// Text tokens of one sample.
    pub txt: usize,
    /// Guidance scale; `None` where one evaluation makes a step.
    pub guidance: Option<f32>,
    /// Whether both evaluations of guidance run as one batch.
    pub batched: bool,
}

impl<B: Backend> Conditioning<'_, B> {
    /// Number of images that are made at once.
    fn samples(&self) -> usize {
        self.context.rows() / self.txt / if self.guidance.is_some() { 2 } else { 1 }
    }
}

/// One step: latents [samples * tokens, channels] -> latents; dt is [1, 1]. Enqueues work only; waits for nothing.
pub fn step<B: Backend>(
    transformer: &Transformer<B>,
    latents: Tensor<B>,
    conditioning: &Conditioning<'_, B>,
    modulation: &StepModulation<B>,
    dt: &Tensor<B>,
) -> Result<Tensor<B>> {
    let velocity = velocity(transformer, &latents, conditioning, modulation)?;
    latents.euler_step(&velocity, dt)
}

fn velocity<B: Backend>(
    transformer: &Transformer<B>,
    latents: &Tensor<B>,
    conditioning: &Conditioning<'_, B>,
    modulation: &StepModulation<B>,
) -> Result<Tensor<B>> {
    let Conditioning { context, rope, txt, guidance, batched } = *conditioning;
    let samples = conditioning.samples();
    let img = latents.rows() / samples;
    let forward = |latents: &Tensor<B>, context: &Tensor<B>, batch| {
        transformer.forward(latents, context, modulation, rope, Joint { batch, txt, img })
    };
    let Some(guidance) = guidance else {
        return forward(latents, context, samples);
    };
    let (positive, negative) = if batched {
        let both = forward(&Tensor::concat_rows(&[latents, latents])?, context, 2 * samples)?;
        both.split_rows(latents.rows())
    } else {
        let (prompt, empty) = (context.row_view(0..samples * txt), context.row_view(samples * txt..context.rows()));
        (forward(latents, &prompt, samples)?, forward(latents, &empty, samples)?)
    };
    positive.guide(&negative, guidance)
}
