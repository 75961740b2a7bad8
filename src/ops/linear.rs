//! Matrix products with weights.

use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// `self weight^T + bias`, summed in float32.
    ///
    /// self [rows, in], weight [out, in], bias [1, out] -> [rows, out].
    ///
    /// Errors when the shapes do not fit.
    pub fn linear(&self, weight: &Linear<B>, bias: Option<&Self>) -> Result<Self> {
        expect_linear("linear", self, weight)?;
        if let Some(bias) = bias {
            expect_activations("linear", &[self, bias])?;
            expect(bias.rows() == 1 && bias.cols() == weight.rows(), "linear", || {
                format!("bias is [{}, {}], expected [1, {}]", bias.rows(), bias.cols(), weight.rows())
            })?;
        }
        self.backend().linear(self, weight, bias)
    }

    /// `linear(self) + residual`, rounded once. The result overwrites `residual` where that is writable.
    ///
    /// self [rows, in], weight [out, in], residual [rows, out] -> [rows, out].
    ///
    /// Errors when the shapes do not fit.
    pub fn linear_add(&self, weight: &Linear<B>, residual: Self) -> Result<Self> {
        expect_linear("linear_add", self, weight)?;
        expect_activations("linear_add", &[self, &residual])?;
        expect(residual.rows() == self.rows() && residual.cols() == weight.rows(), "linear_add", || {
            format!(
                "residual is [{}, {}], expected [{}, {}]",
                residual.rows(),
                residual.cols(),
                self.rows(),
                weight.rows()
            )
        })?;
        self.backend().linear_add(self, weight, residual)
    }

    /// `linear` of each (x, weight), the results one under the other.
    ///
    /// x_i [rows_i, in_i], weight_i [out, in_i] -> [sum rows_i, out].
    ///
    /// Errors when the shapes do not fit. Panics when `parts` is empty.
    pub fn linear_rows(parts: &[(&Self, &Linear<B>)]) -> Result<Self> {
        let (first, first_weight) = parts[0];
        for (x, weight) in parts {
            expect_linear("linear_rows", x, weight)?;
            expect_activations("linear_rows", &[first, x])?;
            expect(weight.rows() == first_weight.rows(), "linear_rows", || {
                format!("weights have {} and {} rows", first_weight.rows(), weight.rows())
            })?;
        }
        first.backend().linear_rows(parts)
    }

    /// `linear` of the parts' columns side by side.
    ///
    /// x_i [rows, in_i], weight [out, sum in_i] -> [rows, out].
    ///
    /// Errors when the shapes do not fit. Panics when `parts` is empty.
    pub fn linear_concat(parts: &[&Self], weight: &Linear<B>) -> Result<Self> {
        expect_activations("linear_concat", parts)?;
        expect_weight("linear_concat", parts[0].backend(), parts.iter().map(|x| x.cols()).sum(), weight)?;
        let rows = parts[0].rows();
        expect(parts.iter().all(|x| x.rows() == rows), "linear_concat", || "the parts differ in rows".to_string())?;
        parts[0].backend().linear_concat(parts, weight)
    }
}

impl<B: Backend> Operand<B> {
    /// `self weight^T`; shapes and errors as [`Tensor::linear`].
    pub fn linear(&self, weight: &Linear<B>) -> Result<Tensor<B>> {
        expect_weight("linear", self.tensor().backend(), self.cols(), weight)?;
        self.tensor().backend().linear(self.tensor(), weight, None)
    }
}

fn expect_linear<B: Backend>(op: &str, x: &Tensor<B>, weight: &Linear<B>) -> Result<()> {
    expect_activations(op, &[x])?;
    expect_weight(op, x.backend(), x.cols(), weight)
}

/// Errors unless `weight` is on the device of `on` and takes an operand of `cols` columns.
pub(super) fn expect_weight<B: Backend>(op: &str, on: &B, cols: usize, weight: &Linear<B>) -> Result<()> {
    expect(on.is_same_device(weight.backend()), op, || format!("`{}` is on another device", weight.name()))?;
    expect(cols == weight.cols(), op, || {
        format!("x has {cols} columns but `{}` is [{}, {}]", weight.name(), weight.rows(), weight.cols())
    })
}

/// What `linear_add` means.
pub fn compose_add<B: Backend>(b: &B, x: &Tensor<B>, weight: &Linear<B>, residual: Tensor<B>) -> Result<Tensor<B>> {
    let out = b.linear(x, weight, None)?;
    b.add(residual, &out)
}
