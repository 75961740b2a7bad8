//! `linear` and its variants: products with weights, by cuBLASLt.

use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::nn::Linear;
use crate::ops;

impl Cuda {
    /// `x weight^T + bias`. A weight whose number of rows does not suit cuBLASLt is zero-padded in memory: the product
    /// then has padding columns, and the result is a view of the others.
    pub(crate) fn linear_op(
        &self,
        x: &Tensor<Cuda>,
        weight: &Linear<Cuda>,
        bias: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let weight = &*self.ready(weight.weight())?;
        if weight.is_e4m3() && bias.is_some() {
            return Err(Error::new("no layer with e4m3 weights has a bias").at("op `linear`"));
        }
        let fresh = self.operand(x, weight)?;
        let x = fresh.as_ref().unwrap_or(x);
        let out = self.linear_output(x.rows(), weight, bias)?;
        let product = self.product(x, weight, Matrix::of(&out), out.cols());
        // SAFETY: `Tensor::linear` checked the shapes; a bias has memory for every column of `out`, see
        // `linear_output`.
        unsafe { self.gemm()?.run(&Product { bias: bias.map(Tensor::address), ..product }) }?;
        Ok(first_cols(out, weight.rows()))
    }

    /// `x weight^T + residual`, in one product.
    pub(crate) fn linear_add_op(
        &self,
        x: &Tensor<Cuda>,
        weight: &Linear<Cuda>,
        residual: Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        if weight.weight().is_e4m3() {
            // No model adds to an fp8 product, so a fused one would serve nobody.
            return ops::linear::compose_add(self, x, weight, residual);
        }
        let fresh = self.unless_writable(&residual)?;
        let out = fresh.as_ref().unwrap_or(&residual);
        let weight = self.ready(weight.weight())?;
        let product = self.product(x, &weight, Matrix::of(out), out.cols());
        // SAFETY: `Tensor::linear_add` checked the shapes; out is the residual or a tensor of its shape.
        unsafe { self.gemm()?.run(&Product { residual: Some(Matrix::of(&residual)), ..product }) }?;
        Ok(fresh.unwrap_or(residual))
    }

    /// An output for `weight`, with columns for its padding rows too if the bias has memory for them.
    pub(crate) fn linear_output(
        &self,
        rows: usize,
        weight: &Weight,
        bias: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let padded = weight.padded_rows();
        let bias_reaches = bias.is_none_or(|bias| (bias.offset() + padded) * 2 <= bias.buffer().bytes());
        self.empty(rows, if bias_reaches { padded } else { weight.rows() })
    }

    /// The product `x weight^T` of `n` columns to `out`; x is as [`Cuda::operand`] makes it.
    pub(crate) fn product(&self, x: &Tensor<Cuda>, weight: &Weight, out: Matrix, n: usize) -> Product {
        Product {
            m: x.rows(),
            n,
            // In e4m3 the padding, which is zeros on both sides, takes part.
            k: if x.is_e4m3() { x.stride() } else { x.cols() },
            x: Matrix::of(x),
            weight: Matrix { address: weight.address(), stride: weight.stride() },
            scales: weight.is_e4m3().then(|| [weight.scales(), x.scales()]),
            weight_is_kn: false,
            bias: None,
            residual: None,
            out,
            out_f32: false,
        }
    }

    /// `linear` of each pair, the results one under the other.
    pub(crate) fn linear_rows_op(&self, parts: &[(&Tensor<Cuda>, &Linear<Cuda>)]) -> Result<Tensor<Cuda>> {
        let ready = parts.iter().map(|(_, weight)| self.ready(weight.weight())).collect::<Result<Vec<_>>>()?;
        let parts: Vec<_> = parts.iter().zip(&ready).map(|((x, _), weight)| (*x, &**weight)).collect();
        let cols = parts[0].1.rows();
        let e4m3 = parts.iter().any(|(_, weight)| weight.is_e4m3());
        let padded =
            if e4m3 { parts.iter().map(|(_, weight)| weight.padded_rows()).max().unwrap_or(cols) } else { cols };
        let out = self.empty(parts.iter().map(|(x, _)| x.rows()).sum(), padded)?;
        let mut row = 0;
        for ((x, weight), fresh) in parts.iter().zip(self.operands(&parts)?) {
            let n = if weight.is_e4m3() { padded } else { cols };
            let product = self.product(fresh.as_ref().unwrap_or(x), weight, Matrix::of(&out).row(row, 2), n);
            // SAFETY: `Tensor::linear_rows` checked the shapes; `out` was made of all rows, and of columns for every
            // weight.
            unsafe { self.gemm()?.run(&product) }?;
            row += x.rows();
        }
        Ok(first_cols(out, cols))
    }

    /// `linear` of columns side by side: of the tensors as they are if they lie so in memory, otherwise of a copy.
    pub(crate) fn linear_concat_op(&self, parts: &[&Tensor<Cuda>], weight: &Linear<Cuda>) -> Result<Tensor<Cuda>> {
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
