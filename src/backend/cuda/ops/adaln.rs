//! Launches cuda/adaln.cu.

use crate::backend::cuda::launch::row_block;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn adaln_op(
        &self,
        x: &Tensor<Cuda>,
        shift: &Tensor<Cuda>,
        scale: &Tensor<Cuda>,
        eps: f32,
    ) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        let block = row_block(x.cols() / 8).filter(|_| all_aligned(&[x, shift, scale, &out]));
        let kernel = if block.is_some() { "adaln" } else { "adaln_any" };
        let launch =
            self.launch("adaln", kernel)?.matrix(x).vector(shift).vector(scale).matrix(&out).int(x.cols()).float(eps);
        // SAFETY: argument types and order match `adaln` and `adaln_any` in cuda/adaln.cu. `Tensor::adaln`
        // checked x [rows, cols], shift and scale [1, cols]; `out` was made [rows, cols] above. A block writes one row
        // of `out` only.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }
}
