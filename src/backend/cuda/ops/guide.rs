//! Launches cuda/guide.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn guide_op(
        &self,
        positive: &Tensor<Cuda>,
        negative: &Tensor<Cuda>,
        guidance: f32,
    ) -> Result<Tensor<Cuda>> {
        let out = self.empty(positive.rows(), positive.cols())?;
        let launch = self.launch("guide", "guide")?.matrix(positive).matrix(negative).matrix(&out);
        let launch = launch.int(positive.rows()).int(positive.cols()).float(guidance);
        // SAFETY: argument types and order match cuda/guide.cu; `Tensor::guide` checked both shapes to be equal; `out`
        // was made of that shape above.
        unsafe { launch.run_rows(positive.rows(), positive.cols(), false) }?;
        Ok(out)
    }
}
