//! Steps that compute some tokens of a sequence: the keys and values of the others are those of an earlier step, or of
//! the same step of an earlier frame.

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

/// The steps of an image of which some tokens are kept, or keep what they are for another image.
pub(super) struct PartialSteps<B: Backend> {
    whole: TokenLayout,
    kind: Kind<B>,
    /// The next one.
    step: usize,
}

enum Kind<B: Backend> {
    /// The first step computes all tokens, and the others some of them, with the keys and values of the first.
    Sparse { some: SomeTokens<B>, kept: Option<KeyCache<B>> },
    /// All tokens are computed, and kept.
    Recorded(Vec<KeyCache<B>>),
    /// Some tokens are computed, and the others are those of an earlier frame.
    Reused { some: SomeTokens<B>, before: Arc<StoredFrame<B>> },
}

/// Tokens that are computed among others.
struct SomeTokens<B: Backend> {
    tokens: ActiveTokens,
    rope: Rope<B>,
}

impl<B: Backend> PartialSteps<B> {
    /// Those that compute `tokens`, of references and an image of these sizes, [height, width] in tokens; those of a
    /// frame `before` keep the others.
    ///
    /// Errors when memory runs out.
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

    /// Those that compute all tokens, and keep them.
    pub(super) fn recorded(steps: &Steps<B>) -> Self {
        Self { whole: steps.split.whole(), kind: Kind::Recorded(Vec::new()), step: 0 }
    }

    /// Whether the next step makes the keys and values which all later ones read.
    pub(super) fn makes_keys(&self) -> bool {
        matches!(self.kind, Kind::Sparse { kept: None, .. })
    }

    /// Whether there are latents of all tokens between steps.
    pub(super) fn has_all_latents(&self) -> bool {
        !matches!(self.kind, Kind::Reused { .. })
    }

    /// How many tokens the next step computes.
    pub(super) fn count(&self) -> TokenCount {
        let all = self.whole.rows() as u64;
        let computed = match &self.kind {
            Kind::Sparse { kept: None, .. } | Kind::Recorded(_) => all,
            Kind::Sparse { some, .. } | Kind::Reused { some, .. } => some.count() as u64,
        };
        TokenCount { computed, all }
    }

    /// [`Steps::step`]. What it makes of image tokens that are not computed has no meaning.
    ///
    /// Errors when memory runs out.
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
                let kept = before.made.steps[step].of_rows(some.tokens.kept())?;
                some.step(steps, &kept, inputs)
            }
        }
    }

    /// The final latents of all tokens.
    ///
    /// Errors when memory runs out.
    pub(super) fn finish(&self, latents: &Tensor<B>) -> Result<Tensor<B>> {
        match &self.kind {
            Kind::Sparse { .. } | Kind::Recorded(_) => Ok(latents.row_view(0..latents.rows())),
            Kind::Reused { some, before } => {
                let image = some.tokens.image();
                before.made.latents.with_runs(&image, &latents.copy_runs(&image)?)
            }
        }
    }

    /// What became of the tokens of a frame that keeps them, with its final latents.
    pub(super) fn into_frame(self, latents: &Tensor<B>) -> Option<FrameKeys<B>> {
        let latents = latents.row_view(0..latents.rows());
        match self.kind {
            Kind::Recorded(steps) => Some(FrameKeys { steps, latents }),
            Kind::Sparse { .. } | Kind::Reused { .. } => None,
        }
    }
}

impl<B: Backend> SomeTokens<B> {
    /// How many there are; none where none is of the image, since nothing else is asked for.
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
            sequence: Sequence { split: TokenSplit::alone(tokens.layout()), rope },
            negative: None,
            cached: Some(kept),
            guidance: None,
            evaluations: Evaluations::InTurn,
        };
        let own = latents.copy_runs(&image)?;
        let stepped = sampler::step(transformer, own, &conditioning, &transformer.modulation(modulation)?, dt)?;
        latents.with_runs(&image, &stepped)
    }
}
