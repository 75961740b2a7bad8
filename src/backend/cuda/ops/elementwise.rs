//! Shared code of the launchers of `add` and `mul`.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    /// Runs a kernel of cuda/add.cu or cuda/mul.cu; y has the shape of x, or is one row for all of its rows.
    pub(super) fn combine(
        &self,
        file: &'static str,
        x: Tensor<Cuda>,
        y: &Tensor<Cuda>,
        [wide_kernel, any_kernel]: [&'static str; 2],
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, y, out]);
        let launch = self.launch(file, if wide { wide_kernel } else { any_kernel })?.matrix(&x);
        let launch = if y.rows() == 1 { launch.repeated(y) } else { launch.matrix(y) };
        let launch = launch.matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match the four kernels of cuda/add.cu and cuda/mul.cu. `Tensor::add` and
        // `Tensor::mul` checked y to be [rows, cols] or, with the row stride 0, [1, cols]; `out` is x, or new and of
        // its shape. A thread reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }
}
