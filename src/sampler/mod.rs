//! The sampler: from noise to latents in Euler steps over a shifted schedule.

pub mod noise;
mod portable;
pub mod schedule;

pub use noise::{Noise, Rng, noise};
pub use schedule::{Schedule, ScheduleKind};

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Rope, TokenLayout};
use crate::tensor::Tensor;
use crate::transformer::{ReferenceCache, Sequence, StepModulation, Transformer};

/// What the transformer reads beside the latents.
pub struct Conditioning<'a, B: Backend> {
    /// What [`Transformer::forward`] takes: the projected text [samples * txt, dim] of the prompt, once for each sample,
    /// and the references [references, dim]; with guidance, the same of the negative prompt follows in as many rows.
    pub context: &'a Tensor<B>,
    /// Positions of one sample.
    pub rope: &'a Rope<B>,
    /// The tokens of one evaluation of all samples.
    pub layout: TokenLayout,
    /// Keys and values of references that are not in the context; see [`Transformer::forward`].
    pub cached: Option<&'a ReferenceCache<B>>,
    /// Guidance scale; `None` where one evaluation makes a step.
    pub guidance: Option<f32>,
    /// Whether both evaluations of guidance run as one batch; without references only.
    pub batched: bool,
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
    let Conditioning { context, rope, layout, cached, guidance, batched } = *conditioning;
    let forward = |latents: &Tensor<B>, context: &Tensor<B>, layout| {
        transformer.forward(latents, context, modulation, &Sequence { layout, rope }, cached)
    };
    let Some(guidance) = guidance else {
        return forward(latents, context, layout);
    };
    let (positive, negative) = if batched {
        let both = TokenLayout { batch: 2 * layout.batch, ..layout };
        forward(&Tensor::concat_rows(&[latents, latents])?, context, both)?.split_rows(latents.rows())
    } else {
        let rows = layout.context_rows();
        let (positive, negative) = (context.row_view(0..rows), context.row_view(rows..context.rows()));
        (forward(latents, &positive, layout)?, forward(latents, &negative, layout)?)
    };
    positive.guide(&negative, guidance)
}
