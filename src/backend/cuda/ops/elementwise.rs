//! Launches cuda/elementwise.cu: `silu`, `add`, `mul` and `scale_shift`.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn silu_op(&self, x: Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, out]);
        let launch = self.launch("elementwise", if wide { "silu_bf16" } else { "silu_bf16_any" })?;
        let launch = launch.matrix(&x).matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `silu_bf16` and `silu_bf16_any` in cuda/elementwise.cu; `out` is x, or
        // new and of its shape. A thread reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }

    pub(crate) fn add_op(&self, x: Tensor<Cuda>, y: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.combine(x, y, ["add_bf16", "add_bf16_any"])
    }

    pub(crate) fn mul_op(&self, x: Tensor<Cuda>, y: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        self.combine(x, y, ["mul_bf16", "mul_bf16_any"])
    }

    /// y has the shape of x, or is one row for all.
    fn combine(
        &self,
        x: Tensor<Cuda>,
        y: &Tensor<Cuda>,
        [wide_kernel, any_kernel]: [&'static str; 2],
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, y, out]);
        let launch = self.launch("elementwise", if wide { wide_kernel } else { any_kernel })?.matrix(&x);
        let launch = if y.rows() == 1 { launch.repeated(y) } else { launch.matrix(y) };
        let launch = launch.matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match the four kernels add and mul in cuda/elementwise.cu. `Tensor::add` and
        // `Tensor::mul` checked y to be [rows, cols] or, with the row stride 0, [1, cols]; `out` is x, or new and of
        // its shape. A thread reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }

    pub(crate) fn scale_shift_op(
        &self,
        x: Tensor<Cuda>,
        scale: &Tensor<Cuda>,
        shift: &Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, scale, shift, out]);
        let launch = self.launch("elementwise", if wide { "scale_shift_bf16" } else { "scale_shift_bf16_any" })?;
        let launch = launch.matrix(&x).vector(scale).vector(shift).matrix(out).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `scale_shift_bf16` and `scale_shift_bf16_any` in cuda/elementwise.cu.
        // `Tensor::scale_shift` checked scale and shift [1, cols]; `out` is x, or new and of its shape. A thread reads
        // a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }
}
