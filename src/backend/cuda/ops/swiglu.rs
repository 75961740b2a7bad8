//! Launches cuda/swiglu.cu.

use crate::backend::cuda::device::Stream;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn swiglu_op(&self, gate: Tensor<Cuda>, up: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&gate)?;
        self.swiglu_on(self.device().stream, &gate, up, fresh.as_ref().unwrap_or(&gate))?;
        Ok(fresh.unwrap_or(gate))
    }

    /// Computes `swiglu` of gate and up, of one shape, by work on `stream`: the compute stream, or the side stream of
    /// [`Device::on_side_stream`](crate::backend::cuda::device::Device::on_side_stream). `out` is gate, or another
    /// tensor of its shape.
    pub(super) fn swiglu_on(
        &self,
        stream: Stream,
        gate: &Tensor<Cuda>,
        up: &Tensor<Cuda>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let wide = all_aligned(&[gate, up, out]);
        let launch = self.launch("swiglu", if wide { "swiglu" } else { "swiglu_any" })?.on(stream);
        let launch = launch.matrix(gate).matrix(up).matrix(out).int(gate.rows()).int(gate.cols());
        // SAFETY: argument types and order match `swiglu` and `swiglu_any` in cuda/swiglu.cu.
        // Gate, up and `out` are of one shape. A thread reads a run before it writes it.
        unsafe { launch.run_rows(gate.rows(), gate.cols(), wide) }
    }
}
