//! The sampler's arithmetic.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// `self + dt * velocity`; dt is [1, 1].
    ///
    /// Where activations are bfloat16, dt and the product are rounded to it, the sum is in float32 and then rounded.
    ///
    /// Errors when the shapes differ, or an operand is no activation.
    /// Source: diffusers `FlowMatchEulerDiscreteScheduler.step` and its type promotion.
    pub fn euler_step(self, velocity: &Self, dt: &Self) -> Result<Self> {
        self.expect_same("euler_step", "velocity", velocity)?;
        expect((dt.rows(), dt.cols()) == (1, 1), "euler_step", || {
            format!("dt is [{}, {}], expected [1, 1]", dt.rows(), dt.cols())
        })?;
        expect_activations("euler_step", &[&self, velocity, dt])?;
        let b = self.backend().clone();
        b.euler_step(self, velocity, dt)
    }

    /// Classifier-free guidance: `negative + guidance * (self - negative)`, each of the three ops rounded as
    /// activations are.
    ///
    /// Errors when the shapes differ.
    pub fn guide(&self, negative: &Self, guidance: f32) -> Result<Self> {
        self.expect_same("guide", "negative", negative)?;
        self.backend().guide(self, negative, guidance)
    }
}
