//! Evaluations that reuse keys and values of some tokens from an earlier evaluation.

use std::ops::Range;

use super::references::{AllKeys, Recorder};
use super::{KeyCache, Sequence, StepModulation, Transformer, position_ids, rope_tables};
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{ActiveTokens, Pairs, Rope};
use crate::tensor::Tensor;

impl<B: Backend> Transformer<B> {
    /// [`Transformer::forward`] of one sample without cached references. Also returns the keys and values of some of
    /// its tokens.
    ///
    /// For models without early blocks, whose keys are not recorded.
    pub fn forward_recorded(
        &self,
        latents: &Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        tokens: Vec<Range<usize>>,
    ) -> Result<(Tensor<B>, KeyCache<B>)> {
        let img = self.image_stream(latents, modulation, sequence)?;
        let mut recorder = Recorder::new(tokens);
        let velocity = self.velocity(img, context, modulation, sequence, AllKeys::Recorded(&mut recorder))?;
        Ok((velocity, recorder.into_cache()))
    }

    /// [`Transformer::rope`] of the computed tokens, for images of these sizes, [height, width] in tokens.
    pub fn rope_of(&self, tokens: &ActiveTokens, references: &[[usize; 2]], image: [usize; 2]) -> Result<Rope<B>> {
        let all = position_ids(&self.config, tokens.whole().txt, references, image);
        self.rope_at(&tokens.active().iter().flat_map(|run| all[run.clone()].to_vec()).collect::<Vec<_>>())
    }

    /// Returns the rotary tables of these positions.
    pub(super) fn rope_at(&self, ids: &[[f32; 4]]) -> Result<Rope<B>> {
        let (cos, sin) = rope_tables(&self.config, ids);
        let (rows, cols) = (ids.len(), self.config.attention_head_dim / 2);
        Ok(Rope {
            cos: self.backend.upload_f32(&cos, rows, cols)?,
            sin: self.backend.upload_f32(&sin, rows, cols)?,
            pairs: Pairs::Interleaved,
        })
    }
}
