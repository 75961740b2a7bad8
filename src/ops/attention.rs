//! Scaled dot-product attention over text and image tokens together.

use super::TokenLayout;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

/// Which keys a query may see.
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

impl<B: Backend> Tensor<B> {
    /// `softmax(q k^T / sqrt(head_dim) + mask) v` of each head; self is q.
    ///
    /// self [layout.query_rows(), heads * head_dim], k and v [layout.rows(), kv_heads * head_dim] -> as self. Query head
    /// `h` reads key head `h / (heads / kv_heads)`. The result overwrites q where that is writable. Softmax and sums are in float32; no backend holds the whole score
    /// matrix.
    ///
    /// Errors when shapes do not fit `layout` and `head_dim`, or kv_heads does not divide heads.
    pub fn attention(self, k: &Self, v: &Self, head_dim: usize, layout: TokenLayout, mask: Mask) -> Result<Self> {
        expect_activations("attention", &[&self, k, v])?;
        k.expect_same("attention", "v", v)?;
        layout.check("attention")?;
        for (x, rows) in [(&self, layout.query_rows()), (k, layout.rows())] {
            expect(x.rows() == rows && x.cols().is_multiple_of(head_dim) && x.cols() > 0, "attention", || {
                format!(
                    "x is [{}, {}], expected {rows} rows for {layout:?} and heads of {head_dim}",
                    x.rows(),
                    x.cols()
                )
            })?;
        }
        expect(self.cols().is_multiple_of(k.cols()), "attention", || {
            format!("{} key heads do not divide {} heads", k.cols() / head_dim, self.cols() / head_dim)
        })?;
        if let Mask::Causal { keys } = mask {
            expect((1..=layout.tokens()).contains(&keys), "attention", || {
                format!("{keys} keys of {} tokens", layout.tokens())
            })?;
        }
        let b = self.backend().clone();
        b.attention(self, k, v, head_dim, layout, mask)
    }
}
