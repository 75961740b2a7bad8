//! The gated residual.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `self + gate * y`.
    ///
    /// self [tokens, dim], gate [1, dim], y [tokens, dim] -> [tokens, dim].
    ///
    /// Errors if `gate` is not [1, dim] or `y` differs from self in shape.
    pub fn gated_add(self, gate: &Self, y: &Self) -> Result<Self> {
        expect_activations("gated_add", &[&self, gate, y])?;
        self.expect_vec("gated_add", "gate", gate)?;
        self.expect_same("gated_add", "y", y)?;
        let b = self.backend().clone();
        b.gated_add(self, gate, y)
    }
}

/// Defines `gated_add` by simpler ops.
pub fn compose<B: Backend>(b: &B, x: Tensor<B>, gate: &Tensor<B>, y: &Tensor<B>) -> Result<Tensor<B>> {
    let gated = b.mul(y.row_view(0..y.rows()), gate)?;
    b.add(x, &gated)
}
