//! Layer norm without learned weights.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `(x - mean) / sqrt(variance + eps)` of each row, without learned weights; statistics in float32.
    pub fn layer_norm(&self, eps: f32) -> Result<Self> {
        expect_activations("layer_norm", &[self])?;
        self.backend().layer_norm(self, eps)
    }
}
