//! Steps that compute only some tokens of a sequence. The keys and values of the other tokens come from an earlier
//! step, or from the same step of an earlier frame.

use std::iter;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{ActiveTokens, Rope, TokenLayout, TokenSplit};
use crate::pipeline::residency::frame_store::{FrameKeys, StoredFrame};
use crate::pipeline::residency::steps::Steps;
use crate::pipeline::residency::timings::TokenCount;
use crate::sampler::{self, Conditioning, Evaluations};
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Sequence};

/// The steps of an image that read cached tokens, or cache tokens for another image.
pub(super) struct PartialSteps<B: Backend> {
    whole: TokenLayout,
    kind: Kind<B>,
    /// Index of the next step.
    step: usize,
}

enum Kind<B: Backend> {
    /// The first step computes all tokens, and later steps compute some, with the keys and values of the first step.
    Sparse { some: SomeTokens<B>, kept: Option<KeyCache<B>> },
    /// All tokens are computed and cached.
    Recorded(Vec<KeyCache<B>>),
    /// Some tokens are computed; the others come from an earlier frame.
    Reused { some: SomeTokens<B>, before: Arc<StoredFrame<B>> },
}

/// The tokens that are computed.
struct SomeTokens<B: Backend> {
    tokens: ActiveTokens,
    rope: Rope<B>,
}

impl<B: Backend> PartialSteps<B> {
    /// Creates steps that compute only `tokens`, with references and an image of these sizes, [height, width] in
    /// tokens. The other tokens come from the frame `before`, or without one from the first step.
    ///
    /// Errors if memory runs out.
    pub(super) fn new(
        steps: &Steps<B>,
        tokens: ActiveTokens,
        (references, image): (&[[usize; 2]], [usize; 2]),
        before: Option<Arc<StoredFrame<B>>>,
    ) -> Result<Self> {
        let (rope, whole) = (steps.transformer.rope_of(&tokens, references, image)?, tokens.whole());
        let some = SomeTokens { tokens, rope };
        let kind = match before {
            Some(before) => Kind::Reused { some, before },
            None => Kind::Sparse { some, kept: None },
        };
        Ok(Self { whole, kind, step: 0 })
    }

    /// Creates steps that compute and cache all tokens.
    pub(super) fn recorded(steps: &Steps<B>) -> Self {
        Self { whole: steps.split.whole(), kind: Kind::Recorded(Vec::new()), step: 0 }
    }

    /// Returns `true` if the next step computes the keys and values for all later steps.
    pub(super) fn makes_keys(&self) -> bool {
        matches!(self.kind, Kind::Sparse { kept: None, .. })
    }

    /// Returns `true` if the latents between steps cover all tokens.
    pub(super) fn has_all_latents(&self) -> bool {
        !matches!(self.kind, Kind::Reused { .. })
    }

    /// Returns the number of tokens that the next step computes.
    pub(super) fn count(&self) -> TokenCount {
        let all = self.whole.rows() as u64;
        let computed = match &self.kind {
            Kind::Sparse { kept: None, .. } | Kind::Recorded(_) => all,
            Kind::Sparse { some, .. } | Kind::Reused { some, .. } => some.count() as u64,
        };
        TokenCount { computed, all }
    }

    /// Runs [`Steps::step`]. The resulting image tokens that are not computed are meaningless.
    ///
    /// Errors if memory runs out.
    pub(super) fn step(&mut self, steps: &Steps<B>, inputs: [&Tensor<B>; 4]) -> Result<Tensor<B>> {
        let step = self.step;
        self.step += 1;
        match &mut self.kind {
            Kind::Sparse { some, kept: Some(kept) } => some.step(steps, kept, inputs),
            Kind::Sparse { some, kept } => {
                let (stepped, keys) = steps.step_recorded(inputs, some.tokens.kept().to_vec())?;
                *kept = Some(keys);
                Ok(stepped)
            }
            Kind::Recorded(made) => {
                let (stepped, keys) = steps.step_recorded(inputs, iter::once(0..self.whole.rows()).collect())?;
                made.push(keys);
                Ok(stepped)
            }
            Kind::Reused { some, before } => {
                let kept = before.made.steps[step].copy_rows(some.tokens.kept())?;
                some.step(steps, &kept, inputs)
            }
        }
    }

    /// Returns the final latents of all tokens.
    ///
    /// Errors if memory runs out.
    pub(super) fn finish(&self, latents: &Tensor<B>) -> Result<Tensor<B>> {
        match &self.kind {
            Kind::Sparse { .. } | Kind::Recorded(_) => Ok(latents.row_view(0..latents.rows())),
            Kind::Reused { some, before } => {
                let image = some.tokens.image();
                before.made.latents.with_runs(&image, &latents.copy_runs(&image)?)
            }
        }
    }

    /// Returns the keys of a frame that caches its tokens, with its final latents.
    pub(super) fn into_frame(self, latents: &Tensor<B>) -> Option<FrameKeys<B>> {
        let latents = latents.row_view(0..latents.rows());
        match self.kind {
            Kind::Recorded(steps) => Some(FrameKeys { steps, latents }),
            Kind::Sparse { .. } | Kind::Reused { .. } => None,
        }
    }
}

impl<B: Backend> SomeTokens<B> {
    /// Returns the number of tokens; 0 without image tokens, because then nothing is computed.
    fn count(&self) -> usize {
        let layout = self.tokens.layout();
        if layout.img == 0 { 0 } else { layout.rows() }
    }

    fn step(
        &self,
        steps: &Steps<B>,
        kept: &KeyCache<B>,
        [latents, context, modulation, dt]: [&Tensor<B>; 4],
    ) -> Result<Tensor<B>> {
        let Self { tokens, rope } = self;
        let (image, transformer) = (tokens.image(), &steps.transformer);
        if image.is_empty() {
            return Tensor::concat_rows(&[latents]);
        }
        let conditioning = Conditioning {
            context: &context.copy_runs(&tokens.context())?,
            sequence: Sequence::new(TokenSplit::alone(tokens.layout()), rope),
            negative: None,
            cached: Some(kept),
            guidance: None,
            evaluations: Evaluations::InTurn,
            tiles: None,
        };
        let own = latents.copy_runs(&image)?;
        let stepped = sampler::step(transformer, own, &conditioning, &transformer.modulation(modulation)?, dt)?;
        latents.with_runs(&image, &stepped)
    }
}
