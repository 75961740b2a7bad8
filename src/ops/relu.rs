//! The activation of the tiny decoder.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `max(x, 0)`; NaN stays NaN.
    pub fn relu(self) -> Result<Self> {
        expect_activations("relu", &[&self])?;
        let b = self.backend().clone();
        b.relu(self)
    }
}
