//! Launches cuda/relu.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn relu_op(&self, x: Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.elementwise(["relu", "relu_any"], x, &[], None)
    }
}
