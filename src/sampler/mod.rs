//! The sampler: from noise to latents in Euler steps over a shifted schedule.

pub mod noise;
mod portable;
pub mod schedule;
pub mod times;

pub use noise::{Drawing, Noise, Rng, Start, noise};
pub use schedule::{Schedule, ScheduleKind, Shift, empirical_shift};

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Sequence, StepModulation, Transformer};

/// What the transformer reads beside the latents.
pub struct Conditioning<'a, B: Backend> {
    /// What [`Transformer::forward`] takes: the projected text [samples * txt, dim] of the prompt, once for each
    /// sample, and the references [references, dim]; with guidance, the same of the negative prompt follows. Where
    /// halves of the devices have sequences of their own, the second half has those of the negative prompt alone, and
    /// the first half the others alone.
    pub context: &'a Tensor<B>,
    /// The tokens of one evaluation of all samples, of all devices, and the positions of one sample.
    pub sequence: Sequence<'a, B>,
    /// The same of the negative prompt, where it has another number of tokens; then the evaluations of guidance are no
    /// batch.
    pub negative: Option<Sequence<'a, B>>,
    /// Keys and values of references that are not in the context; see [`Transformer::forward`].
    pub cached: Option<&'a KeyCache<B>>,
    /// Guidance scale; `None` where one evaluation makes a step.
    pub guidance: Option<f32>,
    /// How both evaluations of guidance are made.
    pub evaluations: Evaluations,
}

/// How both evaluations of guidance are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evaluations {
    /// One after the other.
    InTurn,
    /// As one batch; without references only.
    Batched,
    /// Each by one half of the devices, this one by the half that has the prompt or by the other.
    Halved {
        /// Whether it is the half that has the prompt.
        has_prompt: bool,
    },
}

/// One step: latents [samples * tokens of this device, channels] -> latents; dt is [1, 1]. Enqueues work only; waits
/// for nothing.
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
    let Conditioning { context, sequence, negative, cached, guidance, evaluations } = *conditioning;
    let forward = |latents: &Tensor<B>, context: &Tensor<B>, sequence: Sequence<'_, B>| {
        transformer.forward(latents, context, modulation, &sequence, cached)
    };
    let Some(guidance) = guidance else {
        return forward(latents, context, sequence);
    };
    // What the image becomes by itself is the same in both.
    let is_shared = transformer.config().has_early_blocks() && !matches!(evaluations, Evaluations::Halved { .. });
    let img = is_shared.then(|| transformer.early_image(latents, modulation, &sequence)).transpose()?;
    let meet = |img: &Tensor<B>, context: &Tensor<B>, sequence: Sequence<'_, B>| {
        let img = img.row_view(0..img.rows());
        transformer.forward_image(img, context, modulation, &sequence, cached)
    };
    let (positive, negative) = match evaluations {
        Evaluations::Halved { has_prompt } => {
            let own = forward(latents, context, sequence)?;
            let other = own.swap_halves()?;
            if has_prompt { (own, other) } else { (other, own) }
        }
        Evaluations::Batched if negative.is_none() => {
            let split = sequence.split.with_batch(2 * sequence.split.whole().batch);
            let sequence = Sequence { split, ..sequence };
            let both = match &img {
                Some(img) => meet(&Tensor::concat_rows(&[img, img])?, context, sequence)?,
                None => forward(&Tensor::concat_rows(&[latents, latents])?, context, sequence)?,
            };
            both.split_rows(latents.rows())
        }
        Evaluations::Batched | Evaluations::InTurn => {
            let rows = sequence.split.own().context_rows();
            let (prompt, other) = (context.row_view(0..rows), context.row_view(rows..context.rows()));
            let evaluate = |context: &Tensor<B>, sequence: Sequence<'_, B>| match &img {
                Some(img) => meet(img, context, sequence),
                None => forward(latents, context, sequence),
            };
            (evaluate(&prompt, sequence)?, evaluate(&other, negative.unwrap_or(sequence))?)
        }
    };
    positive.guide(&negative, guidance)
}
