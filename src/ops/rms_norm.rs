//! RMS norm.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `x / sqrt(mean(x^2) + eps) * weight` over each run of `n` columns; statistics in float32.
    ///
    /// self [rows, m * n], weight [1, n] -> [rows, m * n]: n is the whole row, or one head.
    ///
    /// Errors if n does not divide the columns.
    pub fn rms_norm(&self, weight: &Self, eps: f32) -> Result<Self> {
        expect_activations("rms_norm", &[self, weight])?;
        expect(weight.rows() == 1 && self.cols().is_multiple_of(weight.cols()), "rms_norm", || {
            format!(
                "x has {} columns, which is not a multiple of a weight with shape [{}, {}]",
                self.cols(),
                weight.rows(),
                weight.cols()
            )
        })?;
        self.backend().rms_norm(self, weight, eps)
    }
}
