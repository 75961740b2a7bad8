//! Launches cuda/leaky_relu.cu.

use super::elementwise::Operand;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::Activation;

impl Cuda {
    pub(crate) fn leaky_relu_op(&self, x: Tensor<Cuda>, slope: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.elementwise(["leaky_relu", "leaky_relu_any"], x, &[Operand::Vector(slope)], None)
    }
}

/// Returns the arguments of kernels for an activation: a flag, and the address of the slopes of negative values, which
/// is 0 for slopes of 0.
pub(super) fn activation_arguments(activation: Option<Activation<'_, Cuda>>) -> (i32, u64) {
    match activation {
        None => (0, 0),
        Some(Activation::Relu) => (1, 0),
        Some(Activation::LeakyRelu(slope)) => (1, slope.address()),
    }
}
