//! Launches cuda/swiglu.cu.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn swiglu_op(&self, gate: Tensor<Cuda>, up: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&gate)?;
        let out = fresh.as_ref().unwrap_or(&gate);
        let wide = all_aligned(&[&gate, up, out]);
        let launch = self.launch("swiglu", if wide { "swiglu" } else { "swiglu_any" })?;
        let launch = launch.matrix(&gate).matrix(up).matrix(out).int(gate.rows()).int(gate.cols());
        // SAFETY: argument types and order match `swiglu` and `swiglu_any` in cuda/swiglu.cu.
        // `Tensor::swiglu` checked gate and up of one shape; `out` is gate, or new and of its shape. A thread reads a
        // run before it writes it.
        unsafe { launch.run_rows(gate.rows(), gate.cols(), wide) }?;
        Ok(fresh.unwrap_or(gate))
    }
}
