//! Classifier-free guidance.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `negative + guidance * (self - negative)`. Each of the three ops rounds as activations do.
    ///
    /// Errors if the shapes differ.
    pub fn guide(&self, negative: &Self, guidance: f32) -> Result<Self> {
        expect_activations("guide", &[self, negative])?;
        self.expect_same("guide", "negative", negative)?;
        self.backend().guide(self, negative, guidance)
    }
}
