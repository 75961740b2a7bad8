//! Launches cuda/upsample.cu.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn upsample_op(&self, x: &Tensor<Cuda>, height: usize, width: usize) -> Result<Tensor<Cuda>> {
        let out = self.empty(4 * x.rows(), x.cols())?;
        let wide = all_aligned(&[x, &out]);
        let launch = self.launch("upsample", if wide { "upsample" } else { "upsample_any" })?;
        let launch = launch.matrix(x).vector(&out).int(height).int(width).int(x.cols());
        // SAFETY: argument types and order match cuda/upsample.cu; `Tensor::upsample` checked x to have height * width
        // rows; `out` was made dense with four times as many above.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(out)
    }
}
