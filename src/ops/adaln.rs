//! Adaptive layer norm.

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Adaln, Norm};
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `(1 + scale) * layer_norm(self) + shift`; the layer norm has no learned weights.
    ///
    /// self [tokens, dim], shift [1, dim], scale [1, dim] -> [tokens, dim]. Statistics in float32.
    ///
    /// Errors if `shift` or `scale` is not [1, dim].
    /// Source: FLUX.2 reference, `norm1` and modulation of `Flux2TransformerBlock.forward`.
    pub fn adaln(&self, shift: &Self, scale: &Self, eps: f32) -> Result<Self> {
        expect_activations("adaln", &[self, shift, scale])?;
        self.expect_vec("adaln", "shift", shift)?;
        self.expect_vec("adaln", "scale", scale)?;
        self.backend().adaln(self, shift, scale, eps)
    }

    /// `adaln` with the first norm for the first `txt_rows` rows, which may be none, and the second for the rows after
    /// them.
    ///
    /// self [tokens, dim] -> [tokens, dim].
    ///
    /// Errors if a shift or scale is not [1, dim], or `txt_rows` exceeds the rows.
    pub fn adaln_rows(&self, norms: [Norm<'_, B>; 2], adaln: Adaln) -> Result<Self> {
        const OP: &str = "adaln_rows";
        for norm in norms {
            for (name, vector) in [("shift", norm.shift), ("scale", norm.scale)] {
                expect_activations(OP, &[self, vector])?;
                self.expect_vec(OP, name, vector)?;
            }
        }
        adaln.expect_rows(OP, self)?;
        self.backend().adaln_rows(self, norms, adaln)
    }
}

/// Defines `adaln_rows` by simpler ops.
pub fn compose_rows<B: Backend>(b: &B, x: &Tensor<B>, norms: [Norm<'_, B>; 2], adaln: Adaln) -> Result<Tensor<B>> {
    let of = |rows, norm: Norm<'_, B>| b.adaln(&x.row_view(rows), norm.shift, norm.scale, adaln.eps);
    let [txt, img] = norms;
    match adaln.txt_rows {
        0 => of(0..x.rows(), img),
        all if all == x.rows() => of(0..all, txt),
        txt_rows => b.concat_rows(&[&of(0..txt_rows, txt)?, &of(txt_rows..x.rows(), img)?]),
    }
}

/// Defines `adaln` by simpler ops. The CPU runs this; a kernel must match it.
pub fn compose<B: Backend>(b: &B, x: &Tensor<B>, shift: &Tensor<B>, scale: &Tensor<B>, eps: f32) -> Result<Tensor<B>> {
    let normed = b.layer_norm(x, eps)?;
    b.scale_shift(normed, scale, shift)
}
