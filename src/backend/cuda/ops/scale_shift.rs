//! Launches cuda/scale_shift.cu.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn scale_shift_op(
        &self,
        x: Tensor<Cuda>,
        scale: &Tensor<Cuda>,
        shift: &Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, scale, shift, out]);
        let launch = self.launch("scale_shift", if wide { "scale_shift" } else { "scale_shift_any" })?;
        let launch = launch.matrix(&x).vector(scale).vector(shift).matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `scale_shift` and `scale_shift_any` in cuda/scale_shift.cu.
        // `Tensor::scale_shift` checked scale and shift [1, cols]; `out` is x, or new and of its shape. A thread reads
        // a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }
}
