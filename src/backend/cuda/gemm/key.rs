//! A matrix multiplication, and the key for its algorithm.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::backend::cuda::{Cuda, Tensor};

/// Matrix multiplications with more floating-point operations are worth timing; others use the first suggestion.
const WORTH_TIMING: usize = 1_000_000_000;

/// The location of a matrix: address of the first cell, row stride in elements.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub address: u64,
    pub stride: usize,
}

impl Matrix {
    pub fn new(x: &Tensor<Cuda>) -> Self {
        Self { address: x.address(), stride: x.stride() }
    }

    /// Returns the matrix from row `row` on, for values of `size` bytes.
    pub fn row(self, row: usize, size: usize) -> Self {
        Self { address: self.address + (row * self.stride * size) as u64, ..self }
    }

    pub(super) fn alignment(self) -> u32 {
        1 << self.address.trailing_zeros().min(8)
    }
}

/// `out = x weight^T + bias + residual`: x [m, k], weight [n, k] (or [k, n] if `weight_is_kn`), bias \[n\], residual
/// and out [m, n].
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub x: Matrix,
    pub weight: Matrix,
    /// Addresses of the float32 scales of the rows of weight and x, both e4m3; `None` if both are in 16 bits.
    pub scales: Option<[u64; 2]>,
    pub weight_is_kn: bool,
    /// Address of 16-bit values.
    pub bias: Option<u64>,
    /// In 16 bits; may be `out`.
    pub residual: Option<Matrix>,
    pub out: Matrix,
    /// `true` if out is float32 instead of 16 bits.
    pub out_f32: bool,
}

impl Product {
    /// Returns `out = x x^T` of a matrix of 16-bit values, of `side` rows and columns.
    pub fn square(x: Matrix, out: Matrix, side: usize) -> Self {
        Self {
            m: side,
            n: side,
            k: side,
            x,
            weight: x,
            scales: None,
            weight_is_kn: false,
            bias: None,
            residual: None,
            out,
            out_f32: false,
        }
    }

    /// Returns the matrix multiplication of some rows of x, residual and out, which are in 16 bits.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let from = |matrix: Matrix| matrix.row(rows.start, 2);
        Self { m: rows.len(), x: from(self.x), residual: self.residual.map(from), out: from(self.out), ..*self }
    }
}

/// All properties that the choice of an algorithm depends on, except the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// m, n and k.
    pub(super) sizes: [usize; 3],
    /// The row strides of weight, x, residual and out.
    pub(super) strides: [usize; 4],
    pub(super) alignments: [u32; 4],
    pub(super) fp8: bool,
    /// Fast accumulation of fp8, which selects other kernels.
    pub(super) fast_accumulation: bool,
    pub(super) weight_is_kn: bool,
    bias: bool,
    residual: bool,
    pub(super) out_f32: bool,
}

impl Key {
    pub fn new(product: &Product, fast_accumulation: bool) -> Self {
        let residual = product.residual.unwrap_or(product.out);
        let operands = [product.weight, product.x, residual, product.out];
        Self {
            sizes: [product.m, product.n, product.k],
            strides: operands.map(|matrix| matrix.stride),
            alignments: operands.map(Matrix::alignment),
            fp8: product.scales.is_some(),
            fast_accumulation: product.scales.is_some() && fast_accumulation,
            weight_is_kn: product.weight_is_kn,
            bias: product.bias.is_some(),
            residual: product.residual.is_some(),
            out_f32: product.out_f32,
        }
    }

    /// Returns `true` if choosing the algorithm by timing is worth the time.
    pub(super) fn is_worth_timing(&self) -> bool {
        self.sizes.iter().fold(2usize, |flops, size| flops.saturating_mul(*size)) > WORTH_TIMING
    }
}

/// Returns a matrix multiplication of `m` rows with a weight [64, 64].
#[cfg(test)]
pub(super) fn small_product(m: usize) -> Product {
    let [x, weight, out] = [256, 512, 1024].map(|address| Matrix { address, stride: 64 });
    Product {
        m,
        n: 64,
        k: 64,
        x,
        weight,
        scales: None,
        weight_is_kn: false,
        bias: None,
        residual: None,
        out,
        out_f32: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_depends_on_alignment_but_not_on_address() {
        let product = |address| Product { x: Matrix { address, stride: 64 }, ..small_product(4) };
        let key = |address| Key::new(&product(address), true);
        assert_eq!(key(256), key(4096));
        assert_ne!(key(256), key(256 + 16));
        let fp8 = |scales| Product { scales: Some(scales), ..product(256) };
        assert_eq!(Key::new(&fp8([1, 2]), true), Key::new(&fp8([3, 4]), true));
        assert_ne!(Key::new(&fp8([1, 2]), true), key(256));
        assert_ne!(Key::new(&fp8([1, 2]), true), Key::new(&fp8([1, 2]), false), "other kernels");
        assert_eq!(Key::new(&product(256), true), Key::new(&product(256), false), "bf16 has no such option");
        let matrix = |address| Matrix { address, stride: 64 };
        assert_eq!(matrix(6).alignment(), 2);
        assert_eq!(matrix(1 << 20).row(1, 2).alignment(), 128);
    }
}
