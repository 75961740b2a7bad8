//! Elementwise ops.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect};

// `add` and `mul` return a Result, so the operator traits do not fit.
#[allow(clippy::should_implement_trait)]
impl<B: Backend> Tensor<B> {
    /// `x / (1 + exp(-x))`.
    pub fn silu(self) -> Result<Self> {
        let b = self.backend().clone();
        b.silu(self)
    }

    /// `self + y`. Errors when the shapes differ.
    pub fn add(self, y: &Self) -> Result<Self> {
        self.expect_same("add", "y", y)?;
        let b = self.backend().clone();
        b.add(self, y)
    }

    /// `self * y`, y of the same shape or one row that serves all. Errors otherwise.
    pub fn mul(self, y: &Self) -> Result<Self> {
        expect(y.cols() == self.cols() && (y.rows() == self.rows() || y.rows() == 1), "mul", || {
            format!("x is [{}, {}] but y is [{}, {}]", self.rows(), self.cols(), y.rows(), y.cols())
        })?;
        let b = self.backend().clone();
        b.mul(self, y)
    }

    /// `(1 + scale) * self + shift`; scale and shift [1, cols]. Errors otherwise.
    pub fn scale_shift(self, scale: &Self, shift: &Self) -> Result<Self> {
        self.expect_vec("scale_shift", "scale", scale)?;
        self.expect_vec("scale_shift", "shift", shift)?;
        let b = self.backend().clone();
        b.scale_shift(self, scale, shift)
    }
}
