//! Scaled dot-product attention over text and image tokens.

use super::TokenLayout;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

/// The keys that a query can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// All keys of its sample.
    None,
    /// Keys up to its own position that are among the first `keys`: causal with right padding.
    Causal {
        /// Number of keys that are no padding; at least 1.
        keys: usize,
    },
}

/// Keys and values of tokens that an earlier pass computed. They have no rows in the sequence.
pub struct KeyValues<B: Backend> {
    /// [tokens, kv_heads * head_dim]
    pub k: Tensor<B>,
    /// [tokens, kv_heads * head_dim]
    pub v: Tensor<B>,
}

/// The operands of attention.
pub struct Attention<'a, B: Backend> {
    /// [layout.query_rows(), heads * head_dim]. The result may overwrite it.
    pub q: Tensor<B>,
    /// [layout.rows(), kv_heads * head_dim]
    pub k: &'a Tensor<B>,
    /// [layout.rows(), kv_heads * head_dim]
    pub v: &'a Tensor<B>,
    /// Keys and values to read before those of k and v; for one sample, without a mask.
    pub cached: Option<&'a KeyValues<B>>,
    /// Columns of a head.
    pub head_dim: usize,
    /// The samples of the rows, and the rows that have queries.
    pub layout: TokenLayout,
    /// The keys that a query can see.
    pub mask: Mask,
}

impl<B: Backend> Tensor<B> {
    /// Computes `softmax(q k^T / sqrt(head_dim) + mask) v` of each head; self is q.
    ///
    /// self [layout.query_rows(), heads * head_dim], k and v [layout.rows(), kv_heads * head_dim] -> as self. Query
    /// head `h` reads key head `h / (heads / kv_heads)`. The result overwrites q if it is writable. Softmax and sums
    /// are in float32; no backend holds the whole score matrix.
    ///
    /// Errors if shapes do not fit `layout` and `head_dim`, or kv_heads does not divide heads.
    pub fn attention(self, k: &Self, v: &Self, head_dim: usize, layout: TokenLayout, mask: Mask) -> Result<Self> {
        expect_operands("attention", &self, k, v, head_dim, layout)?;
        if let Mask::Causal { keys } = mask {
            expect((1..=layout.tokens()).contains(&keys), "attention", || {
                format!("{keys} keys do not fit {} tokens", layout.tokens())
            })?;
        }
        let b = self.backend().clone();
        b.attention(Attention { q: self, k, v, cached: None, head_dim, layout, mask })
    }

    /// [`Tensor::attention`] of one sample, without a mask, over the keys and values of `cached` followed by k and v.
    ///
    /// Errors as [`Tensor::attention`], and if there are several samples or `cached` differs from k in columns.
    pub fn attention_cached(
        self,
        k: &Self,
        v: &Self,
        cached: &KeyValues<B>,
        head_dim: usize,
        layout: TokenLayout,
    ) -> Result<Self> {
        const OP: &str = "attention_cached";
        expect_operands(OP, &self, k, v, head_dim, layout)?;
        expect_activations(OP, &[&self, &cached.k, &cached.v])?;
        cached.k.expect_same(OP, "v", &cached.v)?;
        expect(layout.batch == 1 && cached.k.cols() == k.cols(), OP, || {
            format!(
                "cached keys have {} columns, but k has {}, with {} samples",
                cached.k.cols(),
                k.cols(),
                layout.batch
            )
        })?;
        let b = self.backend().clone();
        b.attention(Attention { q: self, k, v, cached: Some(cached), head_dim, layout, mask: Mask::None })
    }
}

/// Errors unless q, k and v are activations whose shapes fit `layout` and `head_dim`.
fn expect_operands<B: Backend>(
    op: &str,
    q: &Tensor<B>,
    k: &Tensor<B>,
    v: &Tensor<B>,
    head_dim: usize,
    layout: TokenLayout,
) -> Result<()> {
    expect_activations(op, &[q, k, v])?;
    layout.check(op)?;
    k.expect_same(op, "v", v)?;
    for (x, rows) in [(q, layout.query_rows()), (k, layout.rows())] {
        expect(x.rows() == rows && x.cols().is_multiple_of(head_dim) && x.cols() > 0, op, || {
            format!(
                "x has shape [{}, {}], expected {rows} rows for {layout:?} and heads of {head_dim}",
                x.rows(),
                x.cols()
            )
        })?;
    }
    expect(q.cols().is_multiple_of(k.cols()), op, || {
        format!("{} key heads do not divide {} heads", k.cols() / head_dim, q.cols() / head_dim)
    })
}

/// Defines attention over cached keys: cached tokens precede all others and have no query.
pub fn compose<B: Backend>(b: &B, attention: Attention<'_, B>) -> Result<Tensor<B>> {
    let Attention { k, v, cached, layout, .. } = attention;
    let Some(cached) = cached else { return b.attention(attention) };
    let (k, v) = (b.concat_rows(&[&cached.k, k])?, b.concat_rows(&[&cached.v, v])?);
    let references = cached.k.rows() + layout.rows_without_query();
    let layout = TokenLayout { references, ..TokenLayout::single(layout.query_rows()) }.image_queries();
    b.attention(Attention { k: &k, v: &v, cached: None, layout, ..attention })
}
