//! Launches cuda/silu.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn silu_op(&self, x: Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.elementwise(["silu", "silu_any"], x, &[], None)
    }
}
