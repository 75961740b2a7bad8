//! Launches cuda/leaky_relu.cu.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops::Activation;

impl Cuda {
    pub(crate) fn leaky_relu_op(&self, x: Tensor<Cuda>, slope: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, slope, out]);
        let launch = self.launch("leaky_relu", if wide { "leaky_relu" } else { "leaky_relu_any" })?;
        let launch = launch.matrix(&x).vector(slope).matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `leaky_relu` and `leaky_relu_any` in cuda/leaky_relu.cu.
        // `Tensor::leaky_relu` and `Conv2d` checked slope [1, cols]; `out` is x, or new and of its shape. A thread
        // reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
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
