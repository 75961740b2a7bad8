//! Launches cuda/adaln.cu.

use crate::backend::cuda::launch::row_block;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops::Adaln;

impl Cuda {
    /// Normalizes with one shift and scale for the first `txt_rows` rows, and others for the remaining rows.
    pub(crate) fn adaln_op(
        &self,
        x: &Tensor<Cuda>,
        vectors: [[&Tensor<Cuda>; 2]; 2],
        Adaln { txt_rows, eps }: Adaln,
    ) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        let aligned = all_aligned(&[x, &out]) && vectors.iter().all(|vectors| all_aligned(vectors));
        let block = row_block(x.cols() / 8).filter(|_| aligned);
        let launch = self.launch("adaln", if block.is_some() { "adaln" } else { "adaln_any" })?.matrix(x);
        let launch = vectors.as_flattened().iter().fold(launch, |launch, vector| launch.vector(vector));
        let launch = launch.matrix(&out).int(txt_rows).int(x.cols()).float(eps);
        // SAFETY: argument types and order match `adaln` and `adaln_any` in cuda/adaln.cu. `Tensor::adaln` and
        // `Tensor::adaln_rows` checked x [rows, cols], shifts and scales [1, cols]; `out` was made [rows, cols] above.
        // A block writes only one row of `out`.
        unsafe { launch.run([x.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }
}
