//! Matrix products with weights, through cuBLASLt.

use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::ops;

impl Cuda {
    /// `x weight^T + bias`. A weight of a ragged number of rows is zero-padded in memory: the product then has as many
    /// columns as cuBLASLt likes, and the result is a view of the first.
    pub(crate) fn linear_op(
        &self,
        x: &Tensor<Cuda>,
        weight: &Tensor<Cuda>,
        bias: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        if weight.is_e4m3() && bias.is_some() {
            return Err(Error::new("no layer with e4m3 weights has a bias").at("op `linear`"));
        }
        let fresh = self.operand(x, weight)?;
        let x = fresh.as_ref().unwrap_or(x);
        let out = self.linear_output(x.rows(), weight, bias)?;
        let product = self.product(x, weight, Matrix::of(&out), out.cols());
        self.gemm()?.run(&Product { bias: bias.map(Tensor::address), ..product })?;
        Ok(first_cols(out, weight.rows()))
    }

    /// `x weight^T + residual`, in one product.
    pub(crate) fn linear_add_op(
        &self,
        x: &Tensor<Cuda>,
        weight: &Tensor<Cuda>,
        residual: Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        if weight.is_e4m3() {
            // Nothing here adds to an fp8 product, so that no epilogue is worth its place.
            return ops::linear::compose_add(self, x, weight, residual);
        }
        let fresh = self.unless_writable(&residual)?;
        let out = fresh.as_ref().unwrap_or(&residual);
        let product = self.product(x, weight, Matrix::of(out), out.cols());
        self.gemm()?.run(&Product { residual: Some(Matrix::of(&residual)), ..product })?;
        Ok(fresh.unwrap_or(residual))
    }

    /// An output for `weight`, with the padding columns that its padding rows make.
    pub(crate) fn linear_output(
        &self,
        rows: usize,
        weight: &Tensor<Cuda>,
        bias: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        if weight.is_e4m3() {
            return self.empty(rows, weight.rows().next_multiple_of(MULTIPLE));
        }
        let padded = weight.rows().next_multiple_of(8);
        let weight_reaches = weight.buffer().zero_padded()
            && weight.offset() == 0
            && padded * weight.stride() * 2 == weight.buffer().bytes();
        let bias_reaches = bias.is_none_or(|bias| (bias.offset() + padded) * 2 <= bias.buffer().bytes());
        self.empty(rows, if weight_reaches && bias_reaches { padded } else { weight.rows() })
    }

    /// `x weight^T` of `n` columns to `out`; x is as [`Cuda::operand`] makes it.
    pub(crate) fn product(&self, x: &Tensor<Cuda>, weight: &Tensor<Cuda>, out: Matrix, n: usize) -> Product {
        Product {
            m: x.rows(),
            n,
            // Of e4m3 with the padding, which is zeros on both sides.
            k: if x.is_e4m3() { x.stride() } else { x.cols() },
            x: Matrix::of(x),
            weight: Matrix::of(weight),
            scales: weight.is_e4m3().then(|| [weight.scales(), x.scales()]),
            weight_is_kn: false,
            bias: None,
            residual: None,
            out,
            out_f32: false,
        }
    }

    /// `linear` of each pair, the results one under the other.
    pub(crate) fn linear_rows_op(&self, parts: &[(&Tensor<Cuda>, &Tensor<Cuda>)]) -> Result<Tensor<Cuda>> {
        let cols = parts[0].1.rows();
        let padded =
            if parts.iter().any(|(_, weight)| weight.is_e4m3()) { cols.next_multiple_of(MULTIPLE) } else { cols };
        let out = self.empty(parts.iter().map(|(x, _)| x.rows()).sum(), padded)?;
        let mut row = 0;
        for ((x, weight), fresh) in parts.iter().zip(self.operands(parts)?) {
            let n = if weight.is_e4m3() { padded } else { cols };
            self.gemm()?.run(&self.product(fresh.as_ref().unwrap_or(x), weight, Matrix::of(&out).row(row, 2), n))?;
            row += x.rows();
        }
        Ok(first_cols(out, cols))
    }

    /// `linear` of columns side by side: one product where they lie so in memory, else after a copy.
    pub(crate) fn linear_concat_op(&self, parts: &[&Tensor<Cuda>], weight: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
        if let Some(joined) = Tensor::adjacent_cols(parts) {
            return self.linear_op(&joined, weight, None);
        }
        let joined = self.concat_cols_op(parts)?;
        self.linear_op(&joined, weight, None)
    }
}

/// The first columns of `x`, as writable as `x` was.
fn first_cols(x: Tensor<Cuda>, cols: usize) -> Tensor<Cuda> {
    let rest = x.cols() - cols;
    let [first, _] = x.split_cols([cols, rest]);
    first
}
