//! The activation of gates and convolutions.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;

impl<B: Backend> Tensor<B> {
    /// `x / (1 + exp(-x))`.
    pub fn silu(self) -> Result<Self> {
        let b = self.backend().clone();
        b.silu(self)
    }
}
