//! Launches cuda/layer_norm.cu.

use crate::backend::cuda::launch::row_block;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn layer_norm_op(&self, x: &Tensor<Cuda>, eps: f32) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        let block = row_block(x.cols() / 8).filter(|_| all_aligned(&[x, &out]));
        let kernel = if block.is_some() { "layer_norm" } else { "layer_norm_any" };
        let launch = self.launch("layer_norm", kernel)?.matrix(x).matrix(&out).int(x.cols()).float(eps);
        // SAFETY: argument types and order match `layer_norm` and `layer_norm_any` in cuda/layer_norm.cu; `out` was
        // made of the shape of x above. A block writes only one row of `out`.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }
}
