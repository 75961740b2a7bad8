//! A matrix product, and what the choice of an algorithm for it depends on.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::backend::cuda::{Cuda, Tensor};

/// Products of more floating-point operations are worth the time of choosing; for others the first suggestion serves.
const WORTH_TIMING: usize = 1_000_000_000;

/// Where a matrix is: address of the first cell, elements from row to row.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub address: u64,
    pub stride: usize,
}

impl Matrix {
    pub fn of(x: &Tensor<Cuda>) -> Self {
        Self { address: x.address(), stride: x.stride() }
    }

    /// The same matrix from row `row` on, of values of `size` bytes.
    pub fn row(self, row: usize, size: usize) -> Self {
        Self { address: self.address + (row * self.stride * size) as u64, ..self }
    }

    pub(super) fn alignment(self) -> u32 {
        1 << self.address.trailing_zeros().min(8)
    }
}

/// `out = x weight^T + bias + residual`: x [m, k], weight [n, k] (or [k, n] where `weight_is_kn`), bias \[n\],
/// residual and out [m, n].
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub x: Matrix,
    pub weight: Matrix,
    /// Addresses of the float32 scales of the weight's rows and of those of x, which both are e4m3 then; they are of
    /// 16 bits otherwise.
    pub scales: Option<[u64; 2]>,
    pub weight_is_kn: bool,
    /// Address of values of 16 bits.
    pub bias: Option<u64>,
    /// Of 16 bits; may be `out`.
    pub residual: Option<Matrix>,
    pub out: Matrix,
    /// Whether out is float32 instead of 16 bits.
    pub out_f32: bool,
}

impl Product {
    /// `out = x x^T` of a matrix of 16-bit values, of `side` rows and columns.
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

    /// The same product for some rows of x, residual and out, which are of 16 bits.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let from = |matrix: Matrix| matrix.row(rows.start, 2);
        Self { m: rows.len(), x: from(self.x), residual: self.residual.map(from), out: from(self.out), ..*self }
    }
}

/// Everything that a choice of algorithm depends on, but for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// m, n and k.
    pub(super) sizes: [usize; 3],
    /// Of weight, x, residual and out.
    pub(super) strides: [usize; 4],
    pub(super) alignments: [u32; 4],
    pub(super) fp8: bool,
    /// Of fp8 products, which other kernels compute then.
    pub(super) fast_accumulation: bool,
    pub(super) weight_is_kn: bool,
    bias: bool,
    residual: bool,
    pub(super) out_f32: bool,
}

impl Key {
    pub fn of(product: &Product, fast_accumulation: bool) -> Self {
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

    /// Whether choosing its algorithm by timing is worth the time.
    pub(super) fn is_worth_timing(&self) -> bool {
        self.sizes.iter().fold(2usize, |flops, size| flops.saturating_mul(*size)) > WORTH_TIMING
    }
}

/// A product of `m` rows with a weight [64, 64].
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
        let key = |address| Key::of(&product(address), true);
        assert_eq!(key(256), key(4096));
        assert_ne!(key(256), key(256 + 16));
        let fp8 = |scales| Product { scales: Some(scales), ..product(256) };
        assert_eq!(Key::of(&fp8([1, 2]), true), Key::of(&fp8([3, 4]), true));
        assert_ne!(Key::of(&fp8([1, 2]), true), key(256));
        assert_ne!(Key::of(&fp8([1, 2]), true), Key::of(&fp8([1, 2]), false), "other kernels");
        assert_eq!(Key::of(&product(256), true), Key::of(&product(256), false), "bf16 has no such choice");
        let matrix = |address| Matrix { address, stride: 64 };
        assert_eq!(matrix(6).alignment(), 2);
        assert_eq!(matrix(1 << 20).row(1, 2).alignment(), 128);
    }
}
