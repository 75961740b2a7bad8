//! The last projection: normed image tokens to velocity.

use super::TransformerConfig;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand, Weights};
use crate::tensor::Tensor;

/// `proj_out`; the modulated norm before it is made by the last block.
pub struct FinalLayer<B: Backend> {
    proj_out: Linear<B>, // [out_channels, dim]
}

impl<B: Backend> FinalLayer<B> {
    pub(super) fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        Ok(Self { proj_out: weights.linear("proj_out", config.out_channels(), config.dim())? })
    }

    /// The layer that reads the norm in front.
    pub fn reader(&self) -> &Linear<B> {
        &self.proj_out
    }

    /// h [tokens, dim], normed -> [tokens, out_channels].
    pub fn forward(&self, h: &Operand<B>) -> Result<Tensor<B>> {
        h.linear(&self.proj_out)
    }
}
