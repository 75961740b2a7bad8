//! Launches cuda/mul.cu.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn mul_op(&self, x: Tensor<Cuda>, y: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.combine("mul", x, y, ["mul", "mul_any"])
    }
}
