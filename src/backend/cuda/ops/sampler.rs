//! Launches cuda/sampler.cu: `euler_step` and `guide`.

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
        let launch = self.launch("sampler", "euler_step_bf16")?.matrix(&latents).matrix(velocity).matrix(out);
        let launch = launch.int(latents.rows()).int(latents.cols()).vector(dt);
        // SAFETY: argument types and order match `euler_step_bf16` in cuda/sampler.cu; `Tensor::euler_step` checked
        // latents and velocity to be of one shape, dt to be one value, and all to be bf16; `out` is latents, or new and
        // of its shape. A thread reads a value of latents before it writes it; nobody writes dt.
        unsafe { launch.run_rows(latents.rows(), latents.cols(), false) }?;
        Ok(fresh.unwrap_or(latents))
    }

    pub(crate) fn guide_op(
        &self,
        positive: &Tensor<Cuda>,
        negative: &Tensor<Cuda>,
        guidance: f32,
    ) -> Result<Tensor<Cuda>> {
        let out = self.empty(positive.rows(), positive.cols())?;
        let launch = self.launch("sampler", "guide_bf16")?.matrix(positive).matrix(negative).matrix(&out);
        let launch = launch.int(positive.rows()).int(positive.cols()).float(guidance);
        // SAFETY: argument types and order match `guide_bf16` in cuda/sampler.cu; `Tensor::guide` checked the shapes to
        // be one; `out` was made of it above.
        unsafe { launch.run_rows(positive.rows(), positive.cols(), false) }?;
        Ok(out)
    }
}
