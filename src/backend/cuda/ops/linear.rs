//! `linear` and its variants: matrix multiplications with weights, by cuBLASLt, or in 8 bits also by our own kernels.

use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::nn::Linear;
use crate::ops::{self, LinearArgs, Products};

impl Cuda {
    pub(crate) fn linear_op(&self, args: LinearArgs<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let LinearArgs { products, bias, residual } = args;
        match (products, residual) {
            (Products::Columns(&[x], weight), Some(residual)) if self.takes_residual(weight.weight(), &residual)? => {
                self.linear_add(x, weight, bias, residual)
            }
            (_, residual @ Some(_)) => ops::linear::compose(self, LinearArgs { products, bias, residual }),
            (Products::Columns(&[x], weight), None) => self.linear_of(x, weight, bias),
            // Use the tensors in place if they are adjacent columns in memory, otherwise a copy.
            (Products::Columns(parts, weight), None) => match Tensor::adjacent_cols(parts) {
                Some(joined) => self.linear_of(&joined, weight, bias),
                None => self.linear_of(&self.concat_cols_op(parts)?, weight, bias),
            },
            (Products::Rows(parts), None) => self.linear_rows(parts, bias),
        }
    }

    /// Runs one matrix multiplication if weights and tensors are adjacent columns.
    pub(crate) fn linear_sum_op(&self, parts: &[(&Tensor<Cuda>, &Linear<Cuda>)]) -> Result<Tensor<Cuda>> {
        let (x, weights): (Vec<_>, Vec<_>) = parts.iter().map(|(x, weight)| (*x, weight.weight())).unzip();
        match (Tensor::adjacent_cols(&x), Weight::adjacent_cols(&weights)) {
            (Some(x), Some(weight)) => {
                let out = self.linear_output(x.rows(), &weight, None)?;
                // SAFETY: `Tensor::linear_sum` checked the shapes of all parts.
                unsafe { self.multiply(&x, &weight, None, Matrix::new(&out), out.cols()) }?;
                Ok(out)
            }
            _ => ops::linear::compose_sum(self, parts),
        }
    }

    /// Computes `x weight^T + bias`. A weight with a number of rows that cuBLASLt doesn't support is zero-padded in
    /// memory: the output then has padding columns, and the result is a view without them.
    pub(super) fn linear_of(
        &self,
        x: &Tensor<Cuda>,
        weight: &Linear<Cuda>,
        bias: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let weight = &*self.ready(weight.weight())?;
        expect_no_bias(weight, bias)?;
        let fresh = self.operand(x, weight)?;
        let x = fresh.as_ref().unwrap_or(x);
        let out = self.linear_output(x.rows(), weight, bias)?;
        // SAFETY: `Tensor::linear` checked the shapes; a bias has memory for every column of `out`, see
        // `linear_output`.
        unsafe { self.multiply(x, weight, bias, Matrix::new(&out), out.cols()) }?;
        Ok(first_cols(out, weight.rows()))
    }

    /// Computes `x weight^T + bias + residual`, in one matrix multiplication.
    fn linear_add(
        &self,
        x: &Tensor<Cuda>,
        weight: &Linear<Cuda>,
        bias: Option<&Tensor<Cuda>>,
        residual: Tensor<Cuda>,
    ) -> Result<Tensor<Cuda>> {
        let weight = &*self.ready(weight.weight())?;
        expect_no_bias(weight, bias)?;
        let quantized = self.operand(x, weight)?;
        let fresh = self.unless_writable(&residual)?;
        let out = fresh.as_ref().unwrap_or(&residual);
        let product = self.product(quantized.as_ref().unwrap_or(x), weight, Matrix::new(out), out.cols());
        let (bias, from_residual) = (bias.map(Tensor::address), Some(Matrix::new(&residual)));
        // SAFETY: `Tensor::linear_add` checked the shapes; out is the residual or a tensor of its shape.
        unsafe { self.gemm()?.run(&Product { bias, residual: from_residual, ..product }) }?;
        Ok(fresh.unwrap_or(residual))
    }

    /// Allocates an output for `weight`, of [`output_columns`].
    fn linear_output(&self, rows: usize, weight: &Weight, bias: Option<&Tensor<Cuda>>) -> Result<Tensor<Cuda>> {
        self.empty(rows, output_columns(weight, bias))
    }

    /// Computes `x weight^T + bias` of `n` columns into `out`; x is as [`Cuda::operand`] returns it.
    ///
    /// # Safety
    /// x has the weight's columns. `out` is memory for the rows of x and `n` columns, at most the padded rows of the
    /// weight, and `bias` has memory for as many values.
    unsafe fn multiply(
        &self,
        x: &Tensor<Cuda>,
        weight: &Weight,
        bias: Option<&Tensor<Cuda>>,
        out: Matrix,
        n: usize,
    ) -> Result<()> {
        if self.multiplies_by_mma(weight)? {
            // SAFETY: as the caller promises; padding rows of the weight are zeros, and have scales.
            return unsafe { self.linear_quantized(x, weight, bias, out, [n, 0]) };
        }
        let product = self.product(x, weight, out, n);
        // SAFETY: as above.
        unsafe { self.gemm()?.run(&Product { bias: bias.map(Tensor::address), ..product }) }
    }

    /// Returns the matrix multiplication `x weight^T` of `n` columns into `out`, in 16 bits or e4m3; x is as
    /// [`Cuda::operand`] returns it.
    pub(crate) fn product(&self, x: &Tensor<Cuda>, weight: &Weight, out: Matrix, n: usize) -> Product {
        Product {
            m: x.rows(),
            n,
            // In e4m3 the padding, zeros in both operands, takes part.
            k: if x.is_e4m3() { x.stride() } else { x.cols() },
            x: Matrix::new(x),
            weight: Matrix { address: weight.address(), stride: weight.stride() },
            scales: weight.is_e4m3().then(|| [weight.scales(), x.scales()]),
            weight_is_kn: false,
            bias: None,
            residual: None,
            out,
            out_f32: false,
        }
    }

    /// Returns `true` if our own kernels multiply by this weight with tensor cores: 8-bit integers, and e4m3 if
    /// cuBLASLt doesn't support it or is disabled.
    pub(super) fn multiplies_by_mma(&self, weight: &Weight) -> Result<bool> {
        Ok(weight.is_int8() || weight.is_e4m3() && self.gemm()?.leaves_e4m3())
    }

    /// Returns `true` if cuBLASLt adds `residual` to a matrix multiplication with `weight`. In e4m3 it computes padding
    /// rows, for which a residual has no columns, and only with aligned operands. Our 8-bit kernels add none: in the
    /// transformer's blocks there are gates in between, and `gated_add_adaln` adds the gated result.
    fn takes_residual(&self, weight: &Weight, residual: &Tensor<Cuda>) -> Result<bool> {
        Ok(match weight.quantized_kind() {
            None => true,
            Some(_) if self.multiplies_by_mma(weight)? => false,
            Some(_) => weight.padded_rows() == weight.rows() && residual.aligned(),
        })
    }

    /// Computes `linear` of each pair, with concatenated rows.
    fn linear_rows(
        &self,
        parts: &[(&Tensor<Cuda>, &Linear<Cuda>)],
        bias: Option<&Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let ready = parts.iter().map(|(_, weight)| self.ready(weight.weight())).collect::<Result<Vec<_>>>()?;
        let parts: Vec<_> = parts.iter().zip(&ready).map(|((x, _), weight)| (*x, &**weight)).collect();
        let cols = parts[0].1.rows();
        let is_quantized = |weight: &Weight| weight.quantized_kind().is_some();
        let padded = match parts.iter().any(|(_, weight)| is_quantized(weight)) {
            true => parts.iter().map(|(_, weight)| weight.padded_rows()).max().unwrap_or(cols),
            false => cols,
        };
        let out = self.empty(parts.iter().map(|(x, _)| x.rows()).sum(), padded)?;
        let mut row = 0;
        for ((x, weight), fresh) in parts.iter().zip(self.operands(&parts)?) {
            expect_no_bias(weight, bias)?;
            let n = if is_quantized(weight) { weight.padded_rows() } else { cols };
            // SAFETY: `Tensor::linear_rows` checked the shapes; `out` was made for all rows, with columns for every
            // weight.
            unsafe { self.multiply(fresh.as_ref().unwrap_or(x), weight, bias, Matrix::new(&out).row(row, 2), n) }?;
            row += x.rows();
        }
        Ok(first_cols(out, cols))
    }
}

fn expect_no_bias(weight: &Weight, bias: Option<&Tensor<Cuda>>) -> Result<()> {
    if weight.is_e4m3() && bias.is_some() {
        return Err(Error::new("a layer with e4m3 weights cannot have a bias").at("op `linear`"));
    }
    Ok(())
}

/// Returns the first columns of `x`, as writable as `x` was.
fn first_cols(x: Tensor<Cuda>, cols: usize) -> Tensor<Cuda> {
    let rest = x.cols() - cols;
    let [first, _] = x.split_cols([cols, rest]);
    first
}

/// Returns the columns of an output of `weight`: also those of its padding rows, if the bias has memory for them.
pub(super) fn output_columns(weight: &Weight, bias: Option<&Tensor<Cuda>>) -> usize {
    let padded = weight.padded_rows();
    let bias_reaches = bias.is_none_or(|bias| (bias.offset() + padded) * 2 <= bias.buffer().bytes());
    if bias_reaches { padded } else { weight.rows() }
}
