//! Classifier-free guidance.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Classifier-free guidance: `negative + guidance * (self - negative)`, each of the three ops rounded as
    /// activations are.
    ///
    /// Errors when the shapes differ.
    pub fn guide(&self, negative: &Self, guidance: f32) -> Result<Self> {
        expect_activations("guide", &[self, negative])?;
        self.expect_same("guide", "negative", negative)?;
        self.backend().guide(self, negative, guidance)
    }
}
