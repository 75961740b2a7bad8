//! Elementwise multiplication.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

// It returns a Result, so the operator trait does not fit.
#[allow(clippy::should_implement_trait)]
impl<B: Backend> Tensor<B> {
    /// Computes `self * y`; y has the shape of self, or is one row for all rows of self. Errors otherwise.
    pub fn mul(self, y: &Self) -> Result<Self> {
        expect_activations("mul", &[&self, y])?;
        expect(y.cols() == self.cols() && (y.rows() == self.rows() || y.rows() == 1), "mul", || {
            format!("x has shape [{}, {}], but y has shape [{}, {}]", self.rows(), self.cols(), y.rows(), y.cols())
        })?;
        let b = self.backend().clone();
        b.mul(self, y)
    }
}
