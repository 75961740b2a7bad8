//! The sampler: denoises latents in Euler steps over a shifted schedule.
//!
//! It knows no prompts and no devices; a step enqueues ops on a backend. Start with [`step`]; [`schedule`] has the
//! noise levels and [`noise`](mod@noise) the initial latents.

pub mod noise;
mod portable;
pub mod schedule;
mod seed;
mod stream;
mod tiles;
pub mod times;
mod variation;
mod variety;

pub use noise::{Drawing, Noise, Rng, Start, noise};
pub use schedule::{Schedule, ScheduleKind, Shift, empirical_shift};
pub use seed::random_seed;
pub use stream::RandomStream;
pub use tiles::{Tiles, tile_runs};
pub use variation::Variation;
pub use variety::Variety;

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Sequence, StepModulation, Transformer};

/// The transformer's inputs in addition to the latents.
pub struct Conditioning<'a, B: Backend> {
    /// The context of [`Transformer::forward`]: the projected text [samples * txt, dim] of the prompt, once for each
    /// sample, and the references [references, dim]. With guidance, the context of the negative prompt follows. If
    /// halves of the devices have sequences of their own, the first half has only the prompt's context, and the second
    /// half only the negative prompt's.
    pub context: &'a Tensor<B>,
    /// The tokens of one evaluation of all samples, on all devices, and the positions of one sample.
    pub sequence: Sequence<'a, B>,
    /// The sequence of the negative prompt, if its number of tokens differs. The evaluations of guidance are not
    /// batched then.
    pub negative: Option<Sequence<'a, B>>,
    /// Keys and values of references that are not in the context; see [`Transformer::forward`].
    pub cached: Option<&'a KeyCache<B>>,
    /// Guidance scale; `None` if a step is one evaluation.
    pub guidance: Option<f32>,
    /// The order of both evaluations of guidance.
    pub evaluations: Evaluations,
    /// The tiles of an image that is evaluated in tiles. The sequence is that of each tile. There is one sample, of
    /// which each device has all latents.
    pub tiles: Option<&'a Tiles<B>>,
}

/// The order of both evaluations of guidance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evaluations {
    /// One after the other.
    InTurn,
    /// As one batch; without references only.
    Batched,
    /// Each on one half of the devices.
    Halved {
        /// `true` on the half that has the prompt.
        has_prompt: bool,
    },
}

/// Runs one step: latents [samples * tokens of this device, channels] -> latents; dt is [1, 1]. Only enqueues work,
/// without waiting.
pub fn step<B: Backend>(
    transformer: &Transformer<B>,
    latents: Tensor<B>,
    conditioning: &Conditioning<'_, B>,
    modulation: &StepModulation<B>,
    dt: &Tensor<B>,
) -> Result<Tensor<B>> {
    let evaluate = |latents: &Tensor<B>, conditioning: &Conditioning<'_, B>| {
        velocity(transformer, latents, conditioning, modulation)
    };
    let velocity = match conditioning.tiles {
        Some(tiles) => tiles.velocity(&latents, conditioning, evaluate)?,
        None => evaluate(&latents, conditioning)?,
    };
    latents.euler_step(&velocity, dt)
}

fn velocity<B: Backend>(
    transformer: &Transformer<B>,
    latents: &Tensor<B>,
    conditioning: &Conditioning<'_, B>,
    modulation: &StepModulation<B>,
) -> Result<Tensor<B>> {
    let Conditioning { context, sequence, negative, cached, guidance, evaluations, .. } = *conditioning;
    let forward = |latents: &Tensor<B>, context: &Tensor<B>, sequence: Sequence<'_, B>| {
        transformer.forward(latents, context, modulation, &sequence, cached)
    };
    let Some(guidance) = guidance else {
        return forward(latents, context, sequence);
    };
    // The early blocks of the image give the same result in both evaluations.
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
