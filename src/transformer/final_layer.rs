//! The final projection of normed image tokens to the velocity.

use super::TransformerConfig;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand, Weights};
use crate::ops::Norm;
use crate::tensor::Tensor;

/// `norm_out` and `proj_out`.
pub struct FinalLayer<B: Backend> {
    proj_out: Linear<B>, // [out_channels, dim]
}

impl<B: Backend> FinalLayer<B> {
    pub(super) fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        Ok(Self { proj_out: weights.linear("proj_out", config.out_channels(), config.dim())? })
    }

    /// Returns the final norm, with (shift, scale).
    pub(super) fn norm<'a>(&'a self, (shift, scale): &'a (Tensor<B>, Tensor<B>)) -> Norm<'a, B> {
        Norm { shift, scale, reader: &self.proj_out }
    }

    /// Projects h [tokens, dim], which is normed -> [tokens, out_channels].
    pub fn forward(&self, h: &Operand<B>) -> Result<Tensor<B>> {
        h.linear(&self.proj_out)
    }
}
