//! A single block: attention and MLP side by side over text and image as one stream.

use super::references::attend;
use super::{Keys, Sequence, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand, Weights};
use crate::ops::{Adaln, Heads, Norm, Projection, QkNorm};
use crate::tensor::Tensor;

/// One single-stream block; attention and MLP come from one projection.
pub struct SingleBlock<B: Backend> {
    dim: usize,
    head_dim: usize,
    eps: f32,
    last: bool,
    to_kvq_mlp_proj: Linear<B>, // [3 * dim + 2 * mlp, dim]: k, v, q, gate, up
    qk_norm: QkNorm<B>,         // norm_q, norm_k: [1, head_dim]
    to_out: Linear<B>,          // [dim, dim + mlp]
}

impl<B: Backend> SingleBlock<B> {
    /// Loads one block; `last` says whether it is the last one, whose text rows nothing reads.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig, last: bool) -> Result<Self> {
        let (dim, mlp, head_dim) = (config.dim(), config.mlp(), config.attention_head_dim);
        let attn = weights.at("attn");
        // The file has q first. With k and v first, attention may write over q, and the activated MLP lies beside it
        // for `to_out`.
        let proj = attn.part("to_qkv_mlp_proj.weight", &[3 * dim + 2 * mlp, dim])?;
        let parts = [proj.row_range(dim..3 * dim), proj.row_range(0..dim), proj.row_range(3 * dim..3 * dim + 2 * mlp)];
        Ok(Self {
            dim,
            head_dim,
            eps: config.eps,
            last,
            to_kvq_mlp_proj: attn.linear_of("to_kvq_mlp_proj", &parts)?,
            qk_norm: QkNorm {
                q: attn.vector("norm_q.weight", head_dim)?,
                k: attn.vector("norm_k.weight", head_dim)?,
                eps: config.eps,
            },
            to_out: attn.linear("to_out", dim, dim + mlp)?,
        })
    }

    /// The layer that reads the norm in front of this block.
    pub fn reader(&self) -> &Linear<B> {
        &self.to_kvq_mlp_proj
    }

    /// The stream x and its norm h -> the new stream and its norm by `next`, which the next block reads; each
    /// [rows of this device, dim], text rows first. The results of the last block have image rows only. The gate is
    /// [1, dim].
    ///
    /// Source: FLUX.2 reference `Flux2SingleTransformerBlock.forward` and `Flux2ParallelSelfAttention`.
    pub fn forward(
        &self,
        x: Tensor<B>,
        h: Operand<B>,
        gate: &Tensor<B>,
        next: Norm<'_, B>,
        sequence: &Sequence<'_, B>,
        keys: Keys<'_, B>,
    ) -> Result<(Tensor<B>, Operand<B>)> {
        let split = sequence.split(x.backend());
        let split = if self.last { split.image_queries() } else { split };
        let layout = split.own();
        let heads = Heads { dim: self.dim, norm: [&self.qk_norm; 2], rope: sequence.rope, layout };
        let Projection { kvq, mlp } = Tensor::project(&[(&h, &self.to_kvq_mlp_proj)], Some(&heads))?;
        drop(h); // makes room for the next

        let attn = attend(kvq, self.head_dim, &split, keys)?;
        let out = Tensor::linear_concat(&[&attn, &mlp], &self.to_out)?;
        let adaln = Adaln { txt_rows: 0, eps: self.eps };
        let (_, x) = x.split_rows(layout.rows_without_query());
        x.gated_add_adaln([gate; 2], &out, [next; 2], adaln)
    }
}
