//! The layer norm without learned weights.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;

impl<B: Backend> Tensor<B> {
    /// `(x - mean) / sqrt(variance + eps)` of each row, without learned weights; statistics in float32.
    pub fn layer_norm(&self, eps: f32) -> Result<Self> {
        self.backend().layer_norm(self, eps)
    }
}
