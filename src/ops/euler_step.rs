//! The Euler step of the sampler along the velocity.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `self + dt * velocity`; dt is [1, 1].
    ///
    /// With bfloat16 activations, dt and the product are rounded to bfloat16, and the sum is computed in float32 and
    /// then rounded.
    ///
    /// Errors if the shapes differ, or an operand is no activation.
    /// Source: diffusers `FlowMatchEulerDiscreteScheduler.step` and its type promotion.
    pub fn euler_step(self, velocity: &Self, dt: &Self) -> Result<Self> {
        expect_activations("euler_step", &[&self, velocity, dt])?;
        self.expect_same("euler_step", "velocity", velocity)?;
        expect((dt.rows(), dt.cols()) == (1, 1), "euler_step", || {
            format!("dt has shape [{}, {}], expected [1, 1]", dt.rows(), dt.cols())
        })?;
        let b = self.backend().clone();
        b.euler_step(self, velocity, dt)
    }
}
