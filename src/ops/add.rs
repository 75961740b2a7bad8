//! The sum of two matrices.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

// It returns a Result, so the operator trait does not fit.
#[allow(clippy::should_implement_trait)]
impl<B: Backend> Tensor<B> {
    /// Computes `self + y`. Errors if the shapes differ.
    pub fn add(self, y: &Self) -> Result<Self> {
        expect_activations("add", &[&self, y])?;
        self.expect_same("add", "y", y)?;
        let b = self.backend().clone();
        b.add(self, y)
    }
}
