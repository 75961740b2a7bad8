//! Rotary position embeddings.

use super::TokenLayout;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations, expect_f32};

/// The pairs of a head's columns that rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Columns `2 i` and `2 i + 1`: the transformer.
    Interleaved,
    /// Columns `i` and `i + head_dim / 2`: the text encoder.
    Halves,
}

/// Cosines and sines of every position.
pub struct Rope<B: Backend> {
    /// [positions, head_dim / 2], float32 on every backend.
    pub cos: Tensor<B>,
    /// [positions, head_dim / 2], float32 on every backend.
    pub sin: Tensor<B>,
    /// The pairs of columns.
    pub pairs: Pairs,
}

impl<B: Backend> Tensor<B> {
    /// Rotates the pairs of each head by the token's position in its sample.
    ///
    /// self [layout.rows(), heads * head_dim] -> the same shape; `head_dim = 2 * rope.cos.cols()`. A pair (a, b)
    /// becomes `(a cos - b sin, b cos + a sin)`, in float32, and is rounded once.
    ///
    /// Errors if the columns are no multiple of head_dim, or the table does not have one row for each token of a
    /// sample.
    pub fn rope(self, rope: &Rope<B>, layout: TokenLayout) -> Result<Self> {
        expect_activations("rope", &[&self])?;
        expect_rope("rope", self.backend(), self.rows(), self.cols(), rope, layout)?;
        let b = self.backend().clone();
        b.rope(self, rope, layout)
    }
}

pub(super) fn expect_rope<B: Backend>(
    op: &str,
    on: &B,
    rows: usize,
    cols: usize,
    rope: &Rope<B>,
    layout: TokenLayout,
) -> Result<()> {
    let (cos, sin) = (&rope.cos, &rope.sin);
    layout.check(op)?;
    expect_f32(op, on, &[cos, sin])?;
    expect(rows == layout.rows(), op, || format!("x has {rows} rows, expected {} for {layout:?}", layout.rows()))?;
    expect(cols.is_multiple_of(2 * cos.cols()), op, || {
        format!("x has {cols} columns, which is not a multiple of heads of {}", 2 * cos.cols())
    })?;
    expect(cos.rows() == layout.tokens() && sin.rows() == cos.rows() && sin.cols() == cos.cols(), op, || {
        format!(
            "the table has shape [{}, {}], expected one row for each of {} tokens",
            cos.rows(),
            cos.cols(),
            layout.tokens()
        )
    })
}
