//! Matrix multiplications with layers that have low-rank factors.

use super::Products;
use super::linear::{add_low_rank, expect_rows};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Linear;
use crate::tensor::Tensor;

impl<B: Backend> Tensor<B> {
    /// Computes `x weight^T + (x down^T) up^T` of each (x, weight), and stacks the results. A weight without factors
    /// gives `x weight^T`.
    ///
    /// x_i [rows_i, in_i], weight_i [out, in_i], down_i [rank_i, in_i], up_i [out, rank_i] -> [sum rows_i, out].
    ///
    /// Errors if the shapes do not fit. Panics if `parts` is empty.
    pub fn low_rank(parts: &[(&Self, &Linear<B>)]) -> Result<Self> {
        expect_rows("low_rank", parts)?;
        parts[0].0.backend().low_rank(Products::Rows(parts))
    }
}

/// Defines `low_rank` by simpler ops.
pub fn compose<B: Backend>(b: &B, products: Products<'_, B>) -> Result<Tensor<B>> {
    let mut below = b.linear(products.into())?;
    let parts = match products {
        Products::Columns(x, weight) => return add_low_rank(b, x, weight, below),
        Products::Rows(parts) => parts,
    };
    if parts.iter().all(|(_, weight)| weight.low_rank().is_none()) {
        return Ok(below);
    }
    let mut above: Option<Tensor<B>> = None;
    for (x, weight) in parts {
        let (own, rest) = below.split_rows(x.rows());
        let own = add_low_rank(b, &[x], weight, own)?;
        above = Some(match above {
            Some(above) => above.join_rows(own)?,
            None => own,
        });
        below = rest;
    }
    Ok(above.unwrap_or(below))
}
