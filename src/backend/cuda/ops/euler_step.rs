//! Launches cuda/euler_step.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn euler_step_op(
        &self,
        latents: Tensor<Cuda>,
        velocity: &Tensor<Cuda>,
        dt: &Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&latents)?;
        let out = fresh.as_ref().unwrap_or(&latents);
        let launch = self.launch("euler_step", "euler_step")?.matrix(&latents).matrix(velocity).matrix(out);
        let launch = launch.int(latents.rows()).int(latents.cols()).vector(dt);
        // SAFETY: argument types and order match cuda/euler_step.cu; `Tensor::euler_step` checked latents and velocity
        // to be of one shape, dt to be one value, and all to be activations; `out` is latents, or new and of its shape.
        // A thread reads a value of latents before it writes it; dt is not written.
        unsafe { launch.run_rows(latents.rows(), latents.cols(), false) }?;
        Ok(fresh.unwrap_or(latents))
    }
}
