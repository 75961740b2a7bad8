//! Launches cuda/scale_shift.cu.

use super::elementwise::Operand;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn scale_shift_op(
        &self,
        x: Tensor<Cuda>,
        scale: &Tensor<Cuda>,
        shift: &Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        self.elementwise(["scale_shift", "scale_shift_any"], x, &[scale, shift].map(Operand::Vector), None)
    }
}
