//! Single blocks: parallel attention and MLP over text and image as one stream.

use super::references::attend;
use super::{Keys, Modulated, Sequence, Stream, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, TensorSlice, Weights};
use crate::ops::{Attended, Heads, QkNorm};
use crate::tensor::Tensor;

/// A single-stream block; one projection feeds attention and MLP.
pub struct SingleBlock<B: Backend> {
    dim: usize,
    last: bool,
    to_kvq_mlp_proj: Linear<B>, // [3 * dim + 2 * mlp, dim]: k, v, q, gate, up
    qk_norm: QkNorm<B>,         // norm_q, norm_k: [1, head_dim]
    output: Output<B>,
}

/// The output projection of attention and MLP.
enum Output<B: Backend> {
    /// One matrix multiplication with both concatenated: [dim, dim + mlp].
    Joined(Linear<B>),
    /// The sum of separate matrix multiplications: [dim, dim] and [dim, mlp].
    Apart(Vec<Linear<B>>),
}

impl<B: Backend> Output<B> {
    /// Projects attn [rows, dim] and mlp [rows, mlp] -> [rows, dim].
    fn forward(&self, attn: &Tensor<B>, mlp: &Tensor<B>) -> Result<Tensor<B>> {
        match self {
            Self::Joined(to_out) => Tensor::linear_concat(&[attn, mlp], to_out),
            Self::Apart(of_each) => Tensor::linear_sum(&[(attn, &of_each[0]), (mlp, &of_each[1])]),
        }
    }
}

impl<B: Backend> SingleBlock<B> {
    /// Loads one block. `last` is `true` for the last block, whose text rows are not read.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig, last: bool) -> Result<Self> {
        let (dim, mlp) = (config.dim(), config.mlp());
        let attn = weights.at("attn");
        // The file has q first. With k and v first, attention may write over q, and the activated MLP is adjacent to
        // it for `to_out`.
        let proj = attn.part("to_qkv_mlp_proj.weight", &[3 * dim + 2 * mlp, dim])?;
        let parts = [proj.row_range(dim..3 * dim), proj.row_range(0..dim), proj.row_range(3 * dim..3 * dim + 2 * mlp)];
        let output = || attn.linear("to_out", dim, dim + mlp).map(Output::Joined);
        Self::from_parts(weights, config, last, &parts, output)
    }

    /// As `load`, for files that store attention and MLP separately.
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
        Self::from_parts(weights, config, last, &parts.concat(), output)
    }

    fn from_parts(
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

    /// Runs the block on the stream [rows of this device, dim], text rows first, with a modulation for each part -> the
    /// same shape. The last block returns image rows only.
    ///
    /// Source: FLUX.2 reference `Flux2SingleTransformerBlock.forward` and `Flux2ParallelSelfAttention`.
    pub fn forward<'a>(
        &self,
        stream: Stream<'a, B>,
        modulations: &[Modulated<'a, B>],
        sequence: &Sequence<'_, B>,
        keys: Keys<'_, B>,
    ) -> Result<Stream<'a, B>> {
        let split = if self.last { sequence.split.image_queries() } else { sequence.split };
        let layout = split.own();
        let heads = Heads { dim: self.dim, norm: [&self.qk_norm; 2], rope: sequence.rope, layout };

        let (residual, h) = stream.norm(modulations, &self.to_kvq_mlp_proj)?;
        let Attended { attn, mlp } = attend(h, &heads, (&split, sequence), keys)?;
        let out = self.output.forward(&attn, &mlp)?;
        let residual = if self.last { residual.image_rows(layout.img_rows()) } else { residual };
        Ok(residual.add(out))
    }
}
