//! Adaptive layer norm.

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::linear::expect_linear;
use crate::tensor::{Tensor, expect};

impl<B: Backend> Tensor<B> {
    /// `(1 + scale) * layer_norm(self) + shift`, the layer norm without learned weights.
    ///
    /// self [tokens, dim], shift [1, dim], scale [1, dim] -> [tokens, dim]. Statistics in float32.
    ///
    /// Errors when `shift` or `scale` is not [1, dim].
    /// Source: FLUX.2 reference, `norm1` and modulation of `Flux2TransformerBlock.forward`.
    pub fn adaln(&self, shift: &Self, scale: &Self, eps: f32) -> Result<Self> {
        self.expect_vec("adaln", "shift", shift)?;
        self.expect_vec("adaln", "scale", scale)?;
        self.backend().adaln(self, shift, scale, eps)
    }

    /// `linear(adaln(self))`: one op, because a backend may write the norm in the form in which its product reads it.
    ///
    /// self [tokens, dim], shift [1, dim], scale [1, dim], weight [out, dim] -> [tokens, out].
    ///
    /// Errors when the shapes do not fit.
    pub fn adaln_linear(&self, shift: &Self, scale: &Self, eps: f32, weight: &Self) -> Result<Self> {
        Self::adaln_linear_rows(&[AdalnLinear { x: self, shift, scale, weight }], eps)
    }

    /// `adaln_linear` of each part, the results one under the other.
    ///
    /// Errors when the shapes do not fit. Panics when `parts` is empty.
    pub fn adaln_linear_rows(parts: &[AdalnLinear<B>], eps: f32) -> Result<Self> {
        for AdalnLinear { x, shift, scale, weight } in parts {
            x.expect_vec("adaln_linear", "shift", shift)?;
            x.expect_vec("adaln_linear", "scale", scale)?;
            expect_linear("adaln_linear", x.cols(), weight)?;
            let rows = parts[0].weight.rows();
            expect(weight.rows() == rows, "adaln_linear", || format!("weights have {rows} and {} rows", weight.rows()))?;
        }
        parts[0].x.backend().adaln_linear(parts, eps)
    }
}

/// A part of [`Tensor::adaln_linear_rows`].
pub struct AdalnLinear<'a, B: Backend> {
    /// [tokens, dim]
    pub x: &'a Tensor<B>,
    /// [1, dim]
    pub shift: &'a Tensor<B>,
    /// [1, dim]
    pub scale: &'a Tensor<B>,
    /// [out, dim]
    pub weight: &'a Tensor<B>,
}

/// What `adaln` means. The CPU runs this; a kernel must match it.
pub fn compose<B: Backend>(b: &B, x: &Tensor<B>, shift: &Tensor<B>, scale: &Tensor<B>, eps: f32) -> Result<Tensor<B>> {
    let normed = b.layer_norm(x, eps)?;
    b.scale_shift(normed, scale, shift)
}

/// What `adaln_linear` means.
pub fn compose_linear<B: Backend>(b: &B, parts: &[AdalnLinear<B>], eps: f32) -> Result<Tensor<B>> {
    let normed: Vec<_> = parts.iter().map(|part| b.adaln(part.x, part.shift, part.scale, eps)).collect::<Result<_>>()?;
    b.linear_rows(&normed.iter().zip(parts).map(|(h, part)| (h, part.weight)).collect::<Vec<_>>())
}
