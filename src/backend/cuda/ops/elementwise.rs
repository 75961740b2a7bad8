//! Shared code of the launchers of elementwise ops.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

/// An operand besides x.
pub(super) enum Operand<'a> {
    /// A row [1, cols], without a stride.
    Vector(&'a Tensor<Cuda>),
    /// A matrix of the shape of x.
    Matrix(&'a Tensor<Cuda>),
    /// A row that serves as a matrix, with a stride of 0.
    Repeated(&'a Tensor<Cuda>),
}

impl<'a> Operand<'a> {
    /// Creates the operand y, which has the shape of x, or is one row for all of its rows.
    pub fn rows(y: &'a Tensor<Cuda>) -> Self {
        if y.rows() == 1 { Self::Repeated(y) } else { Self::Matrix(y) }
    }

    fn tensor(&self) -> &'a Tensor<Cuda> {
        let (Self::Vector(y) | Self::Matrix(y) | Self::Repeated(y)) = self;
        y
    }
}

impl Cuda {
    /// Runs a kernel of cuda/OP.cu: `OP`, the first of `kernels`, or `OP_any`, the second, if not all tensors are
    /// aligned. The kernel takes x, the operands, the result, its size, and the value.
    pub(super) fn elementwise(
        &self,
        kernels: [&'static str; 2],
        x: Tensor<Cuda>,
        operands: &[Operand<'_>],
        value: Option<f32>,
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, out]) && operands.iter().all(|operand| all_aligned(&[operand.tensor()]));
        let launch = self.launch(kernels[0], if wide { kernels[0] } else { kernels[1] })?.matrix(&x);
        let launch = operands.iter().fold(launch, |launch, operand| match operand {
            Operand::Vector(y) => launch.vector(y),
            Operand::Matrix(y) => launch.matrix(y),
            Operand::Repeated(y) => launch.repeated(y),
        });
        let launch = launch.matrix(out).int(x.rows()).int(x.cols());
        let launch = value.into_iter().fold(launch, |launch, value| launch.float(value));
        // SAFETY: argument types and order match the kernels of the ops that call this. The methods of `Tensor` checked
        // the operands: [rows, cols] for a matrix, and [1, cols] for a vector or a repeated row. `out` is x, or new and
        // of its shape. A thread reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }
}
