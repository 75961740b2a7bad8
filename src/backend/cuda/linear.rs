//! Matrix products with weights, through cuBLASLt.

use super::gemm::{Matrix, Product};
use super::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    /// `x weight^T + bias`. A weight of a ragged number of rows is zero-padded in memory: the product then has as many columns as
    /// cuBLASLt likes, and the result is a view of the first.
    pub(super) fn linear_op(&self, x: &Tensor<Cuda>, weight: &Tensor<Cuda>, bias: Option<&Tensor<Cuda>>) -> Result<Tensor<Cuda>> {
        let out = self.linear_output(x.rows(), weight, bias)?;
        let product = self.product(x, weight, Matrix::of(&out), out.cols());
        self.gemm()?.run(&Product { bias: bias.map(Tensor::address), ..product })?;
        let [out, _] = {
            let rest = out.cols() - weight.rows();
            out.split_cols([weight.rows(), rest])
        };
        Ok(out)
    }

    /// `x weight^T + residual`, in one product.
    pub(super) fn linear_add_op(&self, x: &Tensor<Cuda>, weight: &Tensor<Cuda>, residual: Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&residual)?;
        let out = fresh.as_ref().unwrap_or(&residual);
        let product = self.product(x, weight, Matrix::of(out), out.cols());
        self.gemm()?.run(&Product { residual: Some(Matrix::of(&residual)), ..product })?;
        Ok(fresh.unwrap_or(residual))
    }

    /// An output for `weight`, with the padding columns that its padding rows make.
    pub(super) fn linear_output(&self, rows: usize, weight: &Tensor<Cuda>, bias: Option<&Tensor<Cuda>>) -> Result<Tensor<Cuda>> {
        let padded = weight.rows().next_multiple_of(8);
        let weight_reaches = weight.buffer().zero_padded() && weight.offset() == 0 && padded * weight.stride() * 2 == weight.buffer().bytes();
        let bias_reaches = bias.is_none_or(|bias| (bias.offset() + padded) * 2 <= bias.buffer().bytes());
        self.empty(rows, if weight_reaches && bias_reaches { padded } else { weight.rows() })
    }

    /// `x weight^T` of `n` columns to `out`.
    pub(super) fn product(&self, x: &Tensor<Cuda>, weight: &Tensor<Cuda>, out: Matrix, n: usize) -> Product {
        Product {
            m: x.rows(),
            n,
            k: x.cols(),
            x: Matrix::of(x),
            weight: Matrix::of(weight),
            weight_is_kn: false,
            bias: None,
            residual: None,
            out,
            out_f32: false,
        }
    }

    /// `linear` of each pair, the results one under the other.
    pub(super) fn linear_rows_op(&self, parts: &[(&Tensor<Cuda>, &Tensor<Cuda>)]) -> Result<Tensor<Cuda>> {
        let cols = parts[0].1.rows();
        let out = self.empty(parts.iter().map(|(x, _)| x.rows()).sum(), cols)?;
        let mut row = 0;
        for (x, weight) in parts {
            let to = Matrix::of(&out).row(row, 2);
            self.gemm()?.run(&self.product(x, weight, to, cols))?;
            row += x.rows();
        }
        Ok(out)
    }

    /// `linear` of columns side by side: one product where they lie so in memory, else after a copy.
    pub(super) fn linear_concat_op(&self, parts: &[&Tensor<Cuda>], weight: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        if let Some(joined) = Tensor::adjacent_cols(parts) {
            return self.linear_op(&joined, weight, None);
        }
        let joined = self.concat_cols_op(parts)?;
        self.linear_op(&joined, weight, None)
    }
}
