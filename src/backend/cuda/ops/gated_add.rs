//! Launches cuda/gated_add.cu.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn gated_add_op(&self, x: Tensor<Cuda>, gate: &Tensor<Cuda>, y: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, gate, y, out]);
        let launch = self.launch("gated_add", if wide { "gated_add" } else { "gated_add_any" })?;
        let launch = launch.matrix(&x).vector(gate).matrix(y).matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `gated_add` and `gated_add_any` in cuda/gated_add.cu.
        // `Tensor::gated_add` checked x and y [rows, cols] and gate [1, cols]; `out` is x, or new and of its shape. A
        // thread reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }
}
