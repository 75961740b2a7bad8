//! A double block: text and image apart, except for one joint attention.

use super::references::attend;
use super::{Keys, Modulation, Residual, Sequence, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::{Heads, QkNorm};
use crate::tensor::Tensor;

/// Joint attention and an MLP for each stream.
pub struct DoubleBlock<B: Backend> {
    dim: usize,
    txt: Stream<B>,
    img: Stream<B>,
}

/// The weights of one stream.
struct Stream<B: Backend> {
    to_kvq: Linear<B>,     // to_k, to_v and to_q stacked [3 * dim, dim]
    norm: QkNorm<B>,       // 2 x [1, head_dim]
    to_out: Linear<B>,     // [dim, dim]
    linear_in: Linear<B>,  // gate, then up [2 * mlp, dim]
    linear_out: Linear<B>, // [dim, mlp]
}

impl<B: Backend> Stream<B> {
    fn load(
        weights: &Weights<'_, B>,
        config: &TransformerConfig,
        (stacked, kvq): (&str, [&str; 3]),
        norms: [&str; 2],
        to_out: &str,
        ff: &str,
    ) -> Result<Self> {
        let (dim, mlp, head_dim) = (config.dim(), config.mlp(), config.attention_head_dim);
        let (attn, ff) = (weights.at("attn"), weights.at(ff));
        let [norm_q, norm_k] = norms.map(|name| attn.vector(&format!("{name}.weight"), head_dim));
        Ok(Self {
            to_kvq: attn.stacked_linear(stacked, &kvq, dim, dim)?,
            norm: QkNorm { q: norm_q?, k: norm_k?, eps: config.eps },
            to_out: attn.linear(to_out, dim, dim)?,
            linear_in: ff.linear("linear_in", 2 * mlp, dim)?,
            linear_out: ff.linear("linear_out", dim, mlp)?,
        })
    }
}

impl<B: Backend> DoubleBlock<B> {
    /// Loads one block.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        Ok(Self {
            dim: config.dim(),
            txt: Stream::load(
                weights,
                config,
                ("add_kvq_proj", ["add_k_proj", "add_v_proj", "add_q_proj"]),
                ["norm_added_q", "norm_added_k"],
                "to_add_out",
                "ff_context",
            )?,
            img: Stream::load(
                weights,
                config,
                ("to_kvq", ["to_k", "to_v", "to_q"]),
                ["norm_q", "norm_k"],
                "to_out.0",
                "ff",
            )?,
        })
    }

    /// The stream [rows of this device, dim], text rows first -> the same. The pairs are (text, image); the two
    /// modulations of a stream are those of attention and MLP.
    ///
    /// Source: FLUX.2 reference `Flux2TransformerBlock.forward`; text goes first in the joint attention.
    pub fn forward<'a>(
        &self,
        residual: Residual<'a, B>,
        modulation: [&'a [Modulation<B>; 2]; 2],
        sequence: &Sequence<'_, B>,
        keys: Keys<'_, B>,
    ) -> Result<Residual<'a, B>> {
        let split = sequence.split;
        let (txt, img, layout) = (&self.txt, &self.img, split.own());
        let txt_rows = layout.txt_rows();
        let [[txt_msa, txt_mlp], [img_msa, img_mlp]] = modulation;

        let (residual, h) = residual.norm([txt_msa.norm(&txt.to_kvq), img_msa.norm(&img.to_kvq)])?;
        let attn = {
            let (h_txt, h_img) = h.split_rows(txt_rows);
            let heads = Heads { dim: self.dim, norm: [&txt.norm, &img.norm], rope: sequence.rope, layout };
            let attn = attend(vec![(h_txt, &txt.to_kvq), (h_img, &img.to_kvq)], &heads, &split, keys)?.attn;
            linear(attn, [&txt.to_out, &img.to_out], txt_rows)?
        };
        let residual = residual.gated_add([&txt_msa.gate, &img_msa.gate], attn);

        let (residual, h) = residual.norm([txt_mlp.norm(&txt.linear_in), img_mlp.norm(&img.linear_in)])?;
        let mlp = {
            let (h_txt, h_img) = h.split_rows(txt_rows);
            let mlp = Tensor::project(&[(&h_txt, &txt.linear_in), (&h_img, &img.linear_in)], None)?.mlp;
            linear(mlp, [&txt.linear_out, &img.linear_out], txt_rows)?
        };
        Ok(residual.gated_add([&txt_mlp.gate, &img_mlp.gate], mlp))
    }
}

/// Text rows times the first weight, image rows times the second.
fn linear<B: Backend>(x: Tensor<B>, [txt_weight, img_weight]: [&Linear<B>; 2], txt_rows: usize) -> Result<Tensor<B>> {
    let (txt, img) = x.split_rows(txt_rows);
    Tensor::linear_rows(&[(&txt, txt_weight), (&img, img_weight)])
}
