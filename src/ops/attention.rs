//! Scaled dot-product attention over text and image tokens together.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

/// How the rows of a joint tensor are ordered: the text of every sample, then the image of every sample.
///
/// The text rows of a whole batch are thus one block of rows, and the image rows another. The tokens of a sample are
/// its text followed by its image, wherever they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joint {
    /// Samples; each attends to itself only.
    pub batch: usize,
    /// Text tokens of one sample.
    pub txt: usize,
    /// Image tokens of one sample.
    pub img: usize,
}

impl Joint {
    /// One sample of `tokens` tokens without text.
    pub fn single(tokens: usize) -> Self {
        Self { batch: 1, txt: 0, img: tokens }
    }

    /// Tokens of one sample.
    pub fn tokens(&self) -> usize {
        self.txt + self.img
    }

    /// Rows of the joint tensor.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens()
    }

    /// Rows of text, which come first.
    pub fn txt_rows(&self) -> usize {
        self.batch * self.txt
    }

    /// Rows of images, which come after the text.
    pub fn img_rows(&self) -> usize {
        self.batch * self.img
    }

    /// The first token of a sample that has a query, for queries of `rows` rows: those of all tokens, or of the images
    /// alone.
    pub fn first_query(&self, rows: usize) -> usize {
        if rows < self.rows() { self.txt } else { 0 }
    }

    /// The row of token `token` of sample `sample`.
    pub fn row(&self, sample: usize, token: usize) -> usize {
        if token < self.txt {
            sample * self.txt + token
        } else {
            self.txt_rows() + sample * self.img + token - self.txt
        }
    }

    /// The token, counted in its own sample, that is in row `row`.
    pub fn token(&self, row: usize) -> usize {
        if row < self.txt_rows() { row % self.txt } else { self.txt + (row - self.txt_rows()) % self.img }
    }
}

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
    /// self [joint.rows(), heads * head_dim], or of the images alone [joint.img_rows(), heads * head_dim]; k and v
    /// [joint.rows(), kv_heads * head_dim] -> as self. Query head `h` reads key head `h / (heads / kv_heads)`. The
    /// result overwrites q where that is writable. Softmax and sums are in float32; no backend holds the whole score
    /// matrix.
    ///
    /// Errors when shapes do not fit `joint` and `head_dim`, or kv_heads does not divide heads.
    pub fn attention(self, k: &Self, v: &Self, head_dim: usize, joint: Joint, mask: Mask) -> Result<Self> {
        expect_activations("attention", &[&self, k, v])?;
        k.expect_same("attention", "v", v)?;
        let rows = if self.rows() == joint.img_rows() { joint.img_rows() } else { joint.rows() };
        for (x, rows) in [(&self, rows), (k, joint.rows())] {
            expect(x.rows() == rows && x.cols().is_multiple_of(head_dim) && x.cols() > 0, "attention", || {
                format!("x is [{}, {}], expected {rows} rows for {joint:?} and heads of {head_dim}", x.rows(), x.cols())
            })?;
        }
        expect(self.cols().is_multiple_of(k.cols()), "attention", || {
            format!("{} key heads do not divide {} heads", k.cols() / head_dim, self.cols() / head_dim)
        })?;
        if let Mask::Causal { keys } = mask {
            expect((1..=joint.tokens()).contains(&keys), "attention", || {
                format!("{keys} keys of {} tokens", joint.tokens())
            })?;
        }
        let b = self.backend().clone();
        b.attention(self, k, v, head_dim, joint, mask)
    }
}
