//! Double blocks: text and image have separate weights, but share one joint attention.

use super::references::attend;
use super::{DoubleModulation, Keys, Sequence, Stream, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::project::borrowed;
use crate::ops::{Heads, QkNorm};
use crate::tensor::Tensor;

/// Joint attention, with an MLP for text and one for the image.
pub struct DoubleBlock<B: Backend> {
    dim: usize,
    txt: Half<B>,
    img: Half<B>,
}

/// The weights of text, or of the image.
struct Half<B: Backend> {
    to_kvq: Linear<B>,     // to_k, to_v and to_q stacked [3 * dim, dim]
    qk_norm: QkNorm<B>,    // 2 x [1, head_dim]
    to_out: Linear<B>,     // [dim, dim]
    linear_in: Linear<B>,  // gate, then up [2 * mlp, dim]
    linear_out: Linear<B>, // [dim, mlp]
}

/// The names of a half's layers.
struct Names {
    to_kvq: &'static str,
    kvq: [&'static str; 3],
    norm_q: &'static str,
    norm_k: &'static str,
    to_out: &'static str,
    ff: &'static str,
}

const TXT: Names = Names {
    to_kvq: "add_kvq_proj",
    kvq: ["add_k_proj", "add_v_proj", "add_q_proj"],
    norm_q: "norm_added_q.weight",
    norm_k: "norm_added_k.weight",
    to_out: "to_add_out",
    ff: "ff_context",
};
const IMG: Names = Names {
    to_kvq: "to_kvq",
    kvq: ["to_k", "to_v", "to_q"],
    norm_q: "norm_q.weight",
    norm_k: "norm_k.weight",
    to_out: "to_out.0",
    ff: "ff",
};

impl<B: Backend> Half<B> {
    fn load(weights: &Weights<'_, B>, config: &TransformerConfig, names: &Names) -> Result<Self> {
        let (dim, mlp, head_dim) = (config.dim(), config.mlp(), config.attention_head_dim);
        let (attn, ff) = (weights.at("attn"), weights.at(names.ff));
        let [q, k] = [names.norm_q, names.norm_k].map(|name| attn.vector(name, head_dim));
        Ok(Self {
            to_kvq: attn.stacked_linear(names.to_kvq, &names.kvq, dim, dim)?,
            qk_norm: QkNorm { q: q?, k: k?, eps: config.eps },
            to_out: attn.linear(names.to_out, dim, dim)?,
            linear_in: ff.linear("linear_in", 2 * mlp, dim)?,
            linear_out: ff.linear("linear_out", dim, mlp)?,
        })
    }
}

impl<B: Backend> DoubleBlock<B> {
    /// Loads one block.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let (txt, img) = (Half::load(weights, config, &TXT)?, Half::load(weights, config, &IMG)?);
        Ok(Self { dim: config.dim(), txt, img })
    }

    /// Runs the block on the stream [rows of this device, dim] of one part, text rows first -> the same shape.
    ///
    /// Source: FLUX.2 reference `Flux2TransformerBlock.forward`; text goes first in the joint attention.
    pub fn forward<'a>(
        &self,
        stream: Stream<'a, B>,
        modulation: &'a DoubleModulation<B>,
        sequence: &Sequence<'_, B>,
        keys: Keys<'_, B>,
    ) -> Result<Stream<'a, B>> {
        let (txt, img, split) = (&self.txt, &self.img, sequence.split);
        let layout = split.own();
        let heads = Heads { dim: self.dim, norm: [&txt.qk_norm, &img.qk_norm], rope: sequence.rope, layout };

        let (residual, h) = stream.norm_apart(&modulation.attn, [&txt.to_kvq, &img.to_kvq])?;
        let attn = attend(h, &heads, (&split, sequence), keys)?.attn;
        let stream = residual.add(linear_apart(attn, layout.txt_rows(), [&txt.to_out, &img.to_out])?);

        let (residual, h) = stream.norm_apart(&modulation.mlp, [&txt.linear_in, &img.linear_in])?;
        let mlp = Tensor::project(&borrowed(&h), None)?.mlp;
        Ok(residual.add(linear_apart(mlp, layout.txt_rows(), [&txt.linear_out, &img.linear_out])?))
    }
}

/// Multiplies text rows by the first weight, and image rows by the second.
fn linear_apart<B: Backend>(x: Tensor<B>, txt_rows: usize, [of_txt, of_img]: [&Linear<B>; 2]) -> Result<Tensor<B>> {
    let (txt, img) = x.split_rows(txt_rows);
    Tensor::linear_rows(&[(&txt, of_txt), (&img, of_img)])
}
