//! The norm and the rotary positions of queries and keys.

use super::TokenLayout;
use super::rope::{Rope, expect_rope};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activation, expect_activations};

/// The learned weights of the norm of queries and keys.
pub struct QkNorm<B: Backend> {
    /// [1, head_dim]
    pub q: Tensor<B>,
    /// [1, head_dim]
    pub k: Tensor<B>,
    /// Added to the mean square.
    pub eps: f32,
}

/// The operands of [`Tensor::qk_norm_rope`].
pub struct QkNormRope<'a, B: Backend> {
    /// [layout.rows(), heads * head_dim]. The result may overwrite it.
    pub q: Tensor<B>,
    /// [layout.rows(), kv_heads * head_dim]. The result may overwrite it.
    pub k: Tensor<B>,
    /// One norm for text rows, one for image rows.
    pub norm: [&'a QkNorm<B>; 2],
    /// The rotation of q and k.
    pub rope: &'a Rope<B>,
    /// The split into text and image rows.
    pub layout: TokenLayout,
}

impl<B: Backend> Tensor<B> {
    /// Computes `rope(rms_norm(q))` and `rope(rms_norm(k))`, with the norm over each head; self is q.
    ///
    /// q [layout.rows(), heads * head_dim], k [layout.rows(), kv_heads * head_dim] -> the same shapes. `norm[0]` is
    /// for the text rows, `norm[1]` for the image rows. The results overwrite q and k if they are writable.
    ///
    /// Errors as [`Tensor::rope`], and if a norm weight is not [1, head_dim].
    /// Source: FLUX.2 reference `Flux2AttnProcessor` (`norm_q`, `norm_added_q`); Qwen3 `q_norm`.
    pub fn qk_norm_rope(
        self,
        k: Self,
        norm: [&QkNorm<B>; 2],
        rope: &Rope<B>,
        layout: TokenLayout,
    ) -> Result<(Self, Self)> {
        expect_activations("qk_norm_rope", &[&self, &k])?;
        for x in [&self, &k] {
            expect_rope("qk_norm_rope", x.backend(), x.rows(), x.cols(), rope, layout)?;
        }
        expect_norm("qk_norm_rope", self.backend(), norm, rope)?;
        let b = self.backend().clone();
        b.qk_norm_rope(QkNormRope { q: self, k, norm, rope, layout })
    }
}

pub(super) fn expect_norm<B: Backend>(op: &str, on: &B, norm: [&QkNorm<B>; 2], rope: &Rope<B>) -> Result<()> {
    let head_dim = 2 * rope.cos.cols();
    for weight in norm.iter().flat_map(|norm| [&norm.q, &norm.k]) {
        expect_activation(op, on, weight)?;
        expect(weight.rows() == 1 && weight.cols() == head_dim, op, || {
            format!("norm weight has shape [{}, {}], expected [1, {head_dim}]", weight.rows(), weight.cols())
        })?;
    }
    Ok(())
}

/// Defines `qk_norm_rope` by simpler ops.
pub fn compose<B: Backend>(b: &B, operands: QkNormRope<'_, B>) -> Result<(Tensor<B>, Tensor<B>)> {
    let QkNormRope { q, k, norm, rope, layout } = operands;
    let normed = |x: Tensor<B>, weights: [&Tensor<B>; 2]| -> Result<Tensor<B>> {
        let (txt, img) = x.split_rows(layout.txt_rows());
        let txt = b.rms_norm(&txt, weights[0], norm[0].eps)?;
        let img = b.rms_norm(&img, weights[1], norm[1].eps)?;
        let x = b.concat_rows(&[&txt, &img])?;
        b.rope(x, rope, layout)
    };
    let q = normed(q, [&norm[0].q, &norm[1].q])?;
    let k = normed(k, [&norm[0].k, &norm[1].k])?;
    Ok((q, k))
}
