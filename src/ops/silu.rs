//! The activation of gates and convolutions.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `x / (1 + exp(-x))`.
    pub fn silu(self) -> Result<Self> {
        expect_activations("silu", &[&self])?;
        let b = self.backend().clone();
        b.silu(self)
    }
}
