//! Launches cuda/gated_add.cu.

use super::elementwise::Operand;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn gated_add_op(&self, x: Tensor<Cuda>, gate: &Tensor<Cuda>, y: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.elementwise(["gated_add", "gated_add_any"], x, &[Operand::Vector(gate), Operand::Matrix(y)], None)
    }
}
