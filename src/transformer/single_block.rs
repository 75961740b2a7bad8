//! A single block: attention and MLP side by side over text and image as one stream.

use super::references::attend;
use super::{Keys, Modulation, Residual, Sequence, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::{Heads, Projection, QkNorm};
use crate::tensor::Tensor;

/// One single-stream block; attention and MLP come from one projection.
pub struct SingleBlock<B: Backend> {
    dim: usize,
    head_dim: usize,
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

    /// The stream [rows of this device, dim], text rows first -> the same; behind the last block it has image rows
    /// only.
    ///
    /// Source: FLUX.2 reference `Flux2SingleTransformerBlock.forward` and `Flux2ParallelSelfAttention`.
    pub fn forward<'a>(
        &self,
        residual: Residual<'a, B>,
        modulation: &'a Modulation<B>,
        sequence: &Sequence<'_, B>,
        keys: Keys<'_, B>,
    ) -> Result<Residual<'a, B>> {
        let split = sequence.split;
        let split = if self.last { split.image_queries() } else { split };
        let layout = split.own();

        let (residual, h) = residual.norm([modulation.norm(&self.to_kvq_mlp_proj); 2])?;
        let heads = Heads { dim: self.dim, norm: [&self.qk_norm; 2], rope: sequence.rope, layout };
        let Projection { kvq, mlp } = Tensor::project(&[(&h, &self.to_kvq_mlp_proj)], Some(&heads))?;
        drop(h); // makes room for the next

        let attn = attend(kvq, self.head_dim, &split, keys)?;
        let out = Tensor::linear_concat(&[&attn, &mlp], &self.to_out)?;
        Ok(residual.without_rows(layout.rows_without_query()).gated_add_joined(&modulation.gate, out))
    }
}
