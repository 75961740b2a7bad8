//! The last norm and projection: picture tokens to velocity.

use super::TransformerConfig;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::weights::Weights;

/// `proj_out` behind a modulated norm.
pub struct FinalLayer<B: Backend> {
    eps: f32,
    proj_out: Tensor<B>, // [out_channels, dim]
}

impl<B: Backend> FinalLayer<B> {
    pub(super) fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        Ok(Self { eps: config.eps, proj_out: weights.matrix("proj_out", config.out_channels(), config.dim())? })
    }

    /// img [tokens, dim], (shift, scale) [1, dim] -> [tokens, out_channels].
    pub fn forward(&self, img: &Tensor<B>, (shift, scale): &(Tensor<B>, Tensor<B>)) -> Result<Tensor<B>> {
        img.adaln(shift, scale, self.eps)?.linear(&self.proj_out, None)
    }
}
