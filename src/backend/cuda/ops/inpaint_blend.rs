//! Launches cuda/inpaint_blend.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::InpaintBlend;

impl Cuda {
    pub(crate) fn inpaint_blend_op(&self, operands: InpaintBlend<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let InpaintBlend { x, noise, image, mask, sigma } = operands;
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let launch = self.launch("inpaint_blend", "inpaint_blend")?.matrix(&x).matrix(noise).matrix(image);
        let launch = launch.matrix(mask).matrix(out).int(x.rows()).int(x.cols()).vector(sigma);
        // SAFETY: argument types and order match cuda/inpaint_blend.cu; `Tensor::inpaint_blend` checked x, noise and
        // image to be of one shape, the mask to have a value for each row, sigma to be one float32 value, and the
        // others to be activations; `out` is x, or new and of its shape. A thread reads a value of x before it writes
        // it.
        unsafe { launch.run_rows(x.rows(), x.cols(), false) }?;
        Ok(fresh.unwrap_or(x))
    }
}
