//! Launches cuda/add.cu.

use super::elementwise::Operand;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn add_op(&self, x: Tensor<Cuda>, y: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.elementwise(["add", "add_any"], x, &[Operand::rows(y)], None)
    }
}
