//! Adaptive layer norm.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// `(1 + scale) * layer_norm(self) + shift`, the layer norm without learned weights.
    ///
    /// self [tokens, dim], shift [1, dim], scale [1, dim] -> [tokens, dim]. Statistics in float32.
    ///
    /// Errors when `shift` or `scale` is not [1, dim].
    /// Source: FLUX.2 reference, `norm1` and modulation of `Flux2TransformerBlock.forward`.
    pub fn adaln(&self, shift: &Self, scale: &Self, eps: f32) -> Result<Self> {
        expect_activations("adaln", &[self, shift, scale])?;
        self.expect_vec("adaln", "shift", shift)?;
        self.expect_vec("adaln", "scale", scale)?;
        self.backend().adaln(self, shift, scale, eps)
    }
}

/// What `adaln` means. The CPU runs this; a kernel must match it.
pub fn compose<B: Backend>(b: &B, x: &Tensor<B>, shift: &Tensor<B>, scale: &Tensor<B>, eps: f32) -> Result<Tensor<B>> {
    let normed = b.layer_norm(x, eps)?;
    b.scale_shift(normed, scale, shift)
}
