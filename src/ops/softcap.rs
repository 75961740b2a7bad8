//! The soft cap.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `cap * tanh(x / cap)`.
    pub fn softcap(self, cap: f32) -> Result<Self> {
        expect_activations("softcap", &[&self])?;
        let b = self.backend().clone();
        b.softcap(self, cap)
    }
}
