//! Scales and shifts each column.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `(1 + scale) * self + shift`; scale and shift are [1, cols]. Errors otherwise.
    pub fn scale_shift(self, scale: &Self, shift: &Self) -> Result<Self> {
        expect_activations("scale_shift", &[&self, scale, shift])?;
        self.expect_vec("scale_shift", "scale", scale)?;
        self.expect_vec("scale_shift", "shift", shift)?;
        let b = self.backend().clone();
        b.scale_shift(self, scale, shift)
    }
}
