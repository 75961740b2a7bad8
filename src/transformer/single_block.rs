//! A single block: attention and MLP side by side over text and image as one stream.

use super::references::attend;
use super::{Keys, Modulation, Residual, Sequence, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, TensorSlice, Weights};
use crate::ops::{Attended, Heads, QkNorm};
use crate::tensor::Tensor;

/// One single-stream block; attention and MLP come from one projection.
pub struct SingleBlock<B: Backend> {
    dim: usize,
    last: bool,
    to_kvq_mlp_proj: Linear<B>, // [3 * dim + 2 * mlp, dim]: k, v, q, gate, up
    qk_norm: QkNorm<B>,         // norm_q, norm_k: [1, head_dim]
    output: Output<B>,
}

/// What makes of attention and MLP what is added to the stream.
enum Output<B: Backend> {
    /// One product with both side by side: [dim, dim + mlp].
    Joined(Linear<B>),
    /// The sum of a product with each: [dim, dim] and [dim, mlp].
    Apart(Vec<Linear<B>>),
}

impl<B: Backend> Output<B> {
    /// attn [rows, dim], mlp [rows, mlp] -> [rows, dim].
    fn forward(&self, attn: &Tensor<B>, mlp: &Tensor<B>) -> Result<Tensor<B>> {
        match self {
            Self::Joined(to_out) => Tensor::linear_concat(&[attn, mlp], to_out),
            Self::Apart(of_each) => Tensor::linear_sum(&[(attn, &of_each[0]), (mlp, &of_each[1])]),
        }
    }
}

impl<B: Backend> SingleBlock<B> {
    /// Loads one block; `last` says whether it is the last one, whose text rows nothing reads.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig, last: bool) -> Result<Self> {
        let (dim, mlp) = (config.dim(), config.mlp());
        let attn = weights.at("attn");
        // The file has q first. With k and v first, attention may write over q, and the activated MLP lies beside it
        // for `to_out`.
        let proj = attn.part("to_qkv_mlp_proj.weight", &[3 * dim + 2 * mlp, dim])?;
        let parts = [proj.row_range(dim..3 * dim), proj.row_range(0..dim), proj.row_range(3 * dim..3 * dim + 2 * mlp)];
        let output = || attn.linear("to_out", dim, dim + mlp).map(Output::Joined);
        Self::of_parts(weights, config, last, &parts, output)
    }

    /// The same where attention and MLP have weights of their own in the file.
    pub fn load_apart(weights: &Weights<'_, B>, config: &TransformerConfig, last: bool) -> Result<Self> {
        let (dim, mlp) = (config.dim(), config.mlp());
        let (attn, ff) = (weights.at("attn"), weights.at("ff"));
        let parts = [
            attn.parts("to_k.weight", &[dim, dim])?,
            attn.parts("to_v.weight", &[dim, dim])?,
            attn.parts("to_q.weight", &[dim, dim])?,
            ff.parts("linear_in.weight", &[2 * mlp, dim])?,
        ];
        let output =
            || weights.summed_linears(&[("attn.to_out.0", dim), ("ff.linear_out", mlp)], dim).map(Output::Apart);
        Self::of_parts(weights, config, last, &parts.concat(), output)
    }

    fn of_parts(
        weights: &Weights<'_, B>,
        config: &TransformerConfig,
        last: bool,
        kvq_mlp: &[TensorSlice],
        output: impl FnOnce() -> Result<Output<B>>,
    ) -> Result<Self> {
        let (attn, head_dim) = (weights.at("attn"), config.attention_head_dim);
        Ok(Self {
            dim: config.dim(),
            last,
            to_kvq_mlp_proj: attn.linear_of("to_kvq_mlp_proj", kvq_mlp)?,
            qk_norm: QkNorm {
                q: attn.vector("norm_q.weight", head_dim)?,
                k: attn.vector("norm_k.weight", head_dim)?,
                eps: config.eps,
            },
            output: output()?,
        })
    }

    /// The stream [rows of this device, dim], text rows first, in parts that lie one under the other -> the same;
    /// behind the last block it has image rows only, which are rows of the last part. Each part has a modulation for
    /// its text rows and one for the others; where both are one, none of its rows are text from here on.
    ///
    /// Source: FLUX.2 reference `Flux2SingleTransformerBlock.forward` and `Flux2ParallelSelfAttention`.
    pub fn forward<'a>(
        &self,
        stream: Vec<Residual<'a, B>>,
        modulations: &[[&'a Modulation<B>; 2]],
        sequence: &Sequence<'_, B>,
        keys: Keys<'_, B>,
    ) -> Result<Vec<Residual<'a, B>>> {
        let split = sequence.split;
        let split = if self.last { split.image_queries() } else { split };
        let layout = split.own();

        let (mut residuals, mut h) = (Vec::new(), Vec::new());
        for (residual, modulation) in stream.into_iter().zip(modulations) {
            let (residual, normed) = residual.norm(modulation.map(|of_rows| of_rows.norm(&self.to_kvq_mlp_proj)))?;
            residuals.push(residual);
            h.push(normed);
        }
        let heads = Heads { dim: self.dim, norm: [&self.qk_norm; 2], rope: sequence.rope, layout };
        let parts = h.into_iter().map(|normed| (normed, &self.to_kvq_mlp_proj)).collect();
        let Attended { attn, mlp } = attend(parts, &heads, &split, keys)?;
        let mut out = self.output.forward(&attn, &mlp)?;
        let (mut without_query, mut next) = (layout.rows_without_query(), Vec::new());
        for (residual, [txt, img]) in residuals.into_iter().zip(modulations) {
            let rows = residual.x().rows();
            let dropped = without_query.min(rows);
            without_query -= dropped;
            let (own, rest) = out.split_rows(rows - dropped);
            out = rest;
            let residual = residual.without_rows(dropped);
            next.push(if self.last || std::ptr::eq(*txt, *img) {
                residual.gated_add_joined(&img.gate, own)
            } else {
                residual.gated_add([&txt.gate, &img.gate], own)
            });
        }
        Ok(if self.last { next.split_off(next.len() - 1) } else { next })
    }
}
