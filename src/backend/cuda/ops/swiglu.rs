//! Launches cuda/swiglu.cu.

use super::quantise::{e4m3_block, split_e4m3};
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops;

impl Cuda {
    pub(crate) fn swiglu_op(&self, gate: Tensor<Cuda>, up: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&gate)?;
        let out = fresh.as_ref().unwrap_or(&gate);
        let wide = all_aligned(&[&gate, up, out]);
        let launch = self.launch("swiglu", if wide { "swiglu_bf16" } else { "swiglu_bf16_any" })?;
        let launch = launch.matrix(&gate).matrix(up).matrix(out).int(gate.rows()).int(gate.cols());
        // SAFETY: argument types and order match `swiglu_bf16` and `swiglu_bf16_any` in cuda/swiglu.cu.
        // `Tensor::swiglu` checked gate and up of one shape; `out` is gate, or new and of its shape. A thread reads a
        // run before it writes it.
        unsafe { launch.run_rows(gate.rows(), gate.cols(), wide) }?;
        Ok(fresh.unwrap_or(gate))
    }

    /// `[beside | silu(gate) * up]` in e4m3.
    fn swiglu_e4m3(
        &self,
        gate: &Tensor<Cuda>,
        up: &Tensor<Cuda>,
        beside: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let side = beside.map_or(0, Tensor::cols);
        let out = self.empty_e4m3(gate.rows(), side + gate.cols())?;
        let aligned = all_aligned(&[gate, up]) && beside.is_none_or(Tensor::aligned);
        let block = e4m3_block(out.cols()).filter(|_| aligned);
        let launch = self.launch("swiglu", if block.is_some() { "swiglu_e4m3" } else { "swiglu_e4m3_any" })?;
        // Without columns beside, the gate stands for what is never read.
        let launch =
            launch.matrix(beside.unwrap_or(gate)).matrix(gate).matrix(up).e4m3(&out).int(side).int(gate.cols());
        // SAFETY: argument types and order match `swiglu_e4m3` and `swiglu_e4m3_any` in cuda/swiglu.cu.
        // `Tensor::swiglu_linear` and `Tensor::swiglu_linear_rows` checked gate and up of one shape and as many rows
        // beside; `out` was made above, its rows padded. A block writes one row of `out` and its scale.
        unsafe { launch.run([gate.rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(out)
    }

    /// The activation in the form in which its product reads it, then the product.
    pub(crate) fn swiglu_linear_op(
        &self,
        gate: Tensor<Cuda>,
        up: &Tensor<Cuda>,
        beside: Option<&Tensor<Cuda>>,
        weight: &Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        if !weight.is_e4m3() {
            return ops::swiglu::compose_linear(self, gate, up, beside, weight);
        }
        let h = self.swiglu_e4m3(&gate, up, beside)?;
        self.linear_op(&h, weight, None)
    }

    /// The same, of rows with two weights.
    pub(crate) fn swiglu_linear_rows_op(
        &self,
        gate: Tensor<Cuda>,
        up: &Tensor<Cuda>,
        weights: [&Tensor<Cuda>; 2],
        first: usize,
    ) -> Result<Tensor<Cuda>> {
        if !weights.iter().all(|weight| weight.is_e4m3()) {
            return ops::swiglu::compose_linear_rows(self, gate, up, weights, first);
        }
        let (top, bottom) = split_e4m3(gate.rows(), first, |rows| {
            self.swiglu_e4m3(&gate.row_view(rows.clone()), &up.row_view(rows), None)
        })?;
        self.linear_rows_op(&[(&top, weights[0]), (&bottom, weights[1])])
    }
}
