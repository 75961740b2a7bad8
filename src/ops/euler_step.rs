//! The step of the sampler along the velocity.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// `self + dt * velocity`.
    ///
    /// Where activations are bfloat16, dt and the product are rounded to it, the sum is in float32 and then rounded.
    ///
    /// Errors when the shapes differ.
    /// Source: diffusers `FlowMatchEulerDiscreteScheduler.step` and its type promotion.
    pub fn euler_step(self, velocity: &Self, dt: f32) -> Result<Self> {
        expect_activations("euler_step", &[&self, velocity])?;
        self.expect_same("euler_step", "velocity", velocity)?;
        let b = self.backend().clone();
        b.euler_step(self, velocity, dt)
    }
}
