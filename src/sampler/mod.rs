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
    /// Projected text [samples * txt, dim] of the prompt, once for each sample; with guidance, that of the negative
    /// prompt follows.
    pub context: &'a Tensor<B>,
    /// Positions of one sample.
    pub rope: &'a Rope<B>,
    /// Text tokens of one sample.
    pub txt: usize,
    /// Positions and text tokens of the negative prompt where they are others; then the evaluations of guidance are no
    /// batch.
    pub negative: Option<(&'a Rope<B>, usize)>,
    /// Guidance scale; `None` where one evaluation makes a step.
    pub guidance: Option<f32>,
    /// Whether both evaluations of guidance run as one batch.
    pub batched: bool,
}

impl<B: Backend> Conditioning<'_, B> {
    /// Number of images that are made at once.
    fn samples(&self) -> usize {
        let negative = self.negative.map_or(self.txt, |(_, txt)| txt);
        self.context.rows() / (self.txt + if self.guidance.is_some() { negative } else { 0 })
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
    let Conditioning { context, rope, txt, negative, guidance, batched } = *conditioning;
    let samples = conditioning.samples();
    let img = latents.rows() / samples;
    let forward = |latents: &Tensor<B>, context: &Tensor<B>, batch, (rope, txt): (&Rope<B>, usize)| {
        transformer.forward(latents, context, modulation, rope, Joint { batch, txt, img })
    };
    let Some(guidance) = guidance else {
        return forward(latents, context, samples, (rope, txt));
    };
    let (positive, negative) = if batched && negative.is_none() {
        let both = forward(&Tensor::concat_rows(&[latents, latents])?, context, 2 * samples, (rope, txt))?;
        both.split_rows(latents.rows())
    } else {
        let (prompt, other) = (context.row_view(0..samples * txt), context.row_view(samples * txt..context.rows()));
        let positive = forward(latents, &prompt, samples, (rope, txt))?;
        (positive, forward(latents, &other, samples, negative.unwrap_or((rope, txt)))?)
    };
    positive.guide(&negative, guidance)
}
