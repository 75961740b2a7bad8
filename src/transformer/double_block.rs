//! A double block: text and picture apart, but for one attention.

use super::{Modulation, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{AdalnLinear, Joint, Mask, QkNorm, Rope};
use crate::tensor::Tensor;
use crate::weights::Weights;

/// Joint attention and an MLP for each stream.
pub struct DoubleBlock<B: Backend> {
    head_dim: usize,
    eps: f32,
    txt: Stream<B>,
    img: Stream<B>,
}

/// The weights of one stream.
struct Stream<B: Backend> {
    dim: usize,
    mlp: usize,
    to_kvq: Tensor<B>,     // to_k, to_v and to_q stacked [3 * dim, dim]
    norm: QkNorm<B>,       // 2 x [1, head_dim]
    to_out: Tensor<B>,     // [dim, dim]
    linear_in: Tensor<B>,  // gate, then up [2 * mlp, dim]
    linear_out: Tensor<B>, // [dim, mlp]
}

impl<B: Backend> Stream<B> {
    fn load(weights: &Weights<'_, B>, config: &TransformerConfig, kvq: [&str; 3], norms: [&str; 2], to_out: &str, ff: &str) -> Result<Self> {
        let (dim, mlp, head_dim) = (config.dim(), config.mlp(), config.attention_head_dim);
        let (attn, ff) = (weights.at("attn"), weights.at(ff));
        let [norm_q, norm_k] = norms.map(|name| attn.vector(&format!("{name}.weight"), head_dim));
        Ok(Self {
            dim,
            mlp,
            to_kvq: attn.stacked(&kvq, dim, dim)?,
            norm: QkNorm { q: norm_q?, k: norm_k?, eps: config.eps },
            to_out: attn.matrix(to_out, dim, dim)?,
            linear_in: ff.matrix("linear_in", 2 * mlp, dim)?,
            linear_out: ff.matrix("linear_out", dim, mlp)?,
        })
    }

    /// What follows the attention: x [tokens, dim], attn [tokens, dim] -> [tokens, dim].
    fn finish(&self, x: Tensor<B>, attn: &Tensor<B>, modulation: &[Modulation<B>; 2], eps: f32) -> Result<Tensor<B>> {
        let [msa, mlp] = modulation;
        let x = x.gated_add(&msa.gate, &attn.linear(&self.to_out, None)?)?;
        let h = x.adaln_linear(&mlp.shift, &mlp.scale, eps, &self.linear_in)?;
        let [gate, up] = h.split_cols([self.mlp, self.mlp]);
        let h = gate.swiglu_linear(&up, None, &self.linear_out)?;
        x.gated_add(&mlp.gate, &h)
    }
}

impl<B: Backend> DoubleBlock<B> {
    /// Loads one block.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        Ok(Self {
            head_dim: config.attention_head_dim,
            eps: config.eps,
            txt: Stream::load(
                weights,
                config,
                ["add_k_proj", "add_v_proj", "add_q_proj"],
                ["norm_added_q", "norm_added_k"],
                "to_add_out",
                "ff_context",
            )?,
            img: Stream::load(weights, config, ["to_k", "to_v", "to_q"], ["norm_q", "norm_k"], "to_out.0", "ff")?,
        })
    }

    /// txt [batch * txt, dim], img [batch * img, dim] -> the same shapes.
    ///
    /// Source: FLUX.2 reference `Flux2TransformerBlock.forward`; text goes first in the joint attention.
    pub fn forward(
        &self,
        txt: Tensor<B>,
        img: Tensor<B>,
        txt_modulation: &[Modulation<B>; 2],
        img_modulation: &[Modulation<B>; 2],
        rope: &Rope<B>,
        joint: Joint,
    ) -> Result<(Tensor<B>, Tensor<B>)> {
        let parts = [(&txt, &txt_modulation[0], &self.txt.to_kvq), (&img, &img_modulation[0], &self.img.to_kvq)];
        let parts = parts.map(|(x, Modulation { shift, scale, .. }, weight)| AdalnLinear { x, shift, scale, weight });
        let [k, v, q] = Tensor::adaln_linear_rows(&parts, self.eps)?.split_cols([self.img.dim; 3]);
        let (q, k) = q.qk_norm_rope(k, [&self.txt.norm, &self.img.norm], rope, joint)?;
        let (txt_attn, img_attn) = q.attention(&k, &v, self.head_dim, joint, Mask::None)?.split_rows(joint.txt_rows());

        let txt = self.txt.finish(txt, &txt_attn, txt_modulation, self.eps)?;
        let img = self.img.finish(img, &img_attn, img_modulation, self.eps)?;
        Ok((txt, img))
    }
}
