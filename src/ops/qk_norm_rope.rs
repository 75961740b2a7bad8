//! Rotary positions, and the norm of queries and keys that goes before them.

use super::Joint;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activation, expect_activations, expect_f32};

/// Which two columns of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Columns `2 i` and `2 i + 1`: the transformer.
    Interleaved,
    /// Columns `i` and `i + head_dim / 2`: Qwen3.
    Halves,
}

/// Cosines and sines of every position.
pub struct Rope<B: Backend> {
    /// [positions, head_dim / 2], float32 on every backend.
    pub cos: Tensor<B>,
    /// [positions, head_dim / 2], float32 on every backend.
    pub sin: Tensor<B>,
    /// Which columns form a pair.
    pub pairs: Pairs,
}

/// The learned weights of the norm of queries and keys.
pub struct QkNorm<B: Backend> {
    /// [1, head_dim]
    pub q: Tensor<B>,
    /// [1, head_dim]
    pub k: Tensor<B>,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Backend> Tensor<B> {
    /// Rotates the pairs of each head by the token's position in its sample.
    ///
    /// self [joint.rows(), heads * head_dim] -> the same shape; `head_dim = 2 * rope.cos.cols()`. A pair (a, b)
    /// becomes `(a cos - b sin, b cos + a sin)`, in float32 before the one rounding.
    ///
    /// Errors when the columns are no multiple of head_dim or the table has not one row per token of a sample.
    pub fn rope(self, rope: &Rope<B>, joint: Joint) -> Result<Self> {
        expect_activations("rope", &[&self])?;
        expect_rope("rope", self.backend(), self.rows(), self.cols(), rope, joint)?;
        let b = self.backend().clone();
        b.rope(self, rope, joint)
    }

    /// `rope(rms_norm(q))` and `rope(rms_norm(k))`, the norm per head; self is q.
    ///
    /// q [joint.rows(), heads * head_dim], k [joint.rows(), kv_heads * head_dim] -> the same shapes. `norm[0]` serves
    /// the text rows, `norm[1]` the image rows. Results go over q and k where these are writable.
    ///
    /// Errors as [`Tensor::rope`], and when a norm weight is not [1, head_dim].
    /// Source: FLUX.2 reference `Flux2AttnProcessor` (`norm_q`, `norm_added_q`); Qwen3 `q_norm`.
    pub fn qk_norm_rope(self, k: Self, norm: [&QkNorm<B>; 2], rope: &Rope<B>, joint: Joint) -> Result<(Self, Self)> {
        expect_activations("qk_norm_rope", &[&self, &k])?;
        for x in [&self, &k] {
            expect_rope("qk_norm_rope", x.backend(), x.rows(), x.cols(), rope, joint)?;
        }
        expect_norm("qk_norm_rope", self.backend(), norm, rope)?;
        let b = self.backend().clone();
        b.qk_norm_rope(self, k, norm, rope, joint)
    }
}

pub(super) fn expect_rope<B: Backend>(
    op: &str,
    on: &B,
    rows: usize,
    cols: usize,
    rope: &Rope<B>,
    joint: Joint,
) -> Result<()> {
    let (cos, sin) = (&rope.cos, &rope.sin);
    expect_f32(op, on, &[cos, sin])?;
    expect(rows == joint.rows(), op, || format!("x has {rows} rows, expected {} for {joint:?}", joint.rows()))?;
    expect(cols.is_multiple_of(2 * cos.cols()), op, || {
        format!("x has {cols} columns, which heads of {} do not divide", 2 * cos.cols())
    })?;
    expect(cos.rows() == joint.tokens() && sin.rows() == cos.rows() && sin.cols() == cos.cols(), op, || {
        format!("the table is [{}, {}], expected one row for each of {} tokens", cos.rows(), cos.cols(), joint.tokens())
    })
}

pub(super) fn expect_norm<B: Backend>(op: &str, on: &B, norm: [&QkNorm<B>; 2], rope: &Rope<B>) -> Result<()> {
    let head_dim = 2 * rope.cos.cols();
    for weight in norm.iter().flat_map(|norm| [&norm.q, &norm.k]) {
        expect_activation(op, on, weight)?;
        expect(weight.rows() == 1 && weight.cols() == head_dim, op, || {
            format!("norm weight is [{}, {}], expected [1, {head_dim}]", weight.rows(), weight.cols())
        })?;
    }
    Ok(())
}

/// What `qk_norm_rope` means.
pub fn compose<B: Backend>(
    b: &B,
    q: Tensor<B>,
    k: Tensor<B>,
    norm: [&QkNorm<B>; 2],
    rope: &Rope<B>,
    joint: Joint,
) -> Result<(Tensor<B>, Tensor<B>)> {
    let normed = |x: Tensor<B>, weights: [&Tensor<B>; 2]| -> Result<Tensor<B>> {
        let (txt, img) = x.split_rows(joint.txt_rows());
        let txt = b.rms_norm(&txt, weights[0], norm[0].eps)?;
        let img = b.rms_norm(&img, weights[1], norm[1].eps)?;
        let x = b.concat_rows(&[&txt, &img])?;
        b.rope(x, rope, joint)
    };
    let q = normed(q, [&norm[0].q, &norm[1].q])?;
    let k = normed(k, [&norm[0].k, &norm[1].k])?;
    Ok((q, k))
}
