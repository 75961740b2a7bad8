//! Launches cuda/rms_norm.cu.

use crate::backend::cuda::launch::row_block;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn rms_norm_op(&self, x: &Tensor<Cuda>, weight: &Tensor<Cuda>, eps: f32) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        let n = weight.cols();
        let runs = x.cols() / n;
        let block = row_block(n / 8).filter(|_| n.is_multiple_of(8) && all_aligned(&[x, weight, &out]));
        let kernel = if block.is_some() { "rms_norm" } else { "rms_norm_any" };
        let launch = self.launch("rms_norm", kernel)?.matrix(x).vector(weight).matrix(&out).int(runs).int(n).float(eps);
        // SAFETY: argument types and order match `rms_norm` and `rms_norm_any` in cuda/rms_norm.cu. `Tensor::rms_norm`
        // checked that n divides the columns; `out` was made of the shape of x above. A block writes only one run of
        // one row.
        unsafe { launch.run([x.rows() * runs, 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }
}
