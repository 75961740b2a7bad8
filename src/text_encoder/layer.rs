//! One decoder layer of Qwen3.

use super::TextEncoderConfig;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::{Mask, QkNorm, Rope, TokenLayout};
use crate::tensor::Tensor;

/// Grouped-query attention and a gated MLP, each after a norm and added to the stream.
pub struct Layer<B: Backend> {
    heads_dim: usize,    // heads * head_dim
    kv_heads_dim: usize, // kv_heads * head_dim
    head_dim: usize,
    mlp: usize,
    eps: f32,
    input_layernorm: Tensor<B>,          // [1, hidden]
    qkv_proj: Linear<B>,                 // q, k and v stacked [heads_dim + 2 * kv_heads_dim, hidden]
    qk_norm: QkNorm<B>,                  // 2 x [1, head_dim]
    o_proj: Linear<B>,                   // [hidden, heads_dim]
    post_attention_layernorm: Tensor<B>, // [1, hidden]
    gate_up_proj: Linear<B>,             // gate and up stacked [2 * mlp, hidden]
    down_proj: Linear<B>,                // [hidden, mlp]
}

impl<B: Backend> Layer<B> {
    /// Loads one layer.
    pub fn load(weights: &Weights<'_, B>, config: &TextEncoderConfig) -> Result<Self> {
        let (hidden, head_dim, mlp) = (config.hidden_size, config.head_dim, config.intermediate_size);
        let (heads_dim, kv_heads_dim) = (config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim);
        let attn = weights.at("self_attn");
        let rows = |name: &str, rows: usize| attn.part(&format!("{name}.weight"), &[rows, hidden]);
        let qkv = [rows("q_proj", heads_dim)?, rows("k_proj", kv_heads_dim)?, rows("v_proj", kv_heads_dim)?];
        Ok(Self {
            heads_dim,
            kv_heads_dim,
            head_dim,
            mlp,
            eps: config.rms_norm_eps,
            input_layernorm: weights.vector("input_layernorm.weight", hidden)?,
            qkv_proj: attn.linear_of("qkv_proj", &qkv)?,
            qk_norm: QkNorm {
                q: attn.vector("q_norm.weight", head_dim)?,
                k: attn.vector("k_norm.weight", head_dim)?,
                eps: config.rms_norm_eps,
            },
            o_proj: attn.linear("o_proj", hidden, heads_dim)?,
            post_attention_layernorm: weights.vector("post_attention_layernorm.weight", hidden)?,
            gate_up_proj: weights.at("mlp").stacked_linear("gate_up_proj", &["gate_proj", "up_proj"], mlp, hidden)?,
            down_proj: weights.at("mlp").linear("down_proj", hidden, mlp)?,
        })
    }

    /// Runs the layer on hidden_states [tokens, hidden] -> [tokens, hidden].
    pub fn forward(
        &self,
        hidden_states: Tensor<B>,
        rope: &Rope<B>,
        layout: TokenLayout,
        mask: Mask,
    ) -> Result<Tensor<B>> {
        let h = hidden_states.rms_norm(&self.input_layernorm, self.eps)?;
        let [q, k, v] =
            h.linear(&self.qkv_proj, None)?.split_cols([self.heads_dim, self.kv_heads_dim, self.kv_heads_dim]);
        let (q, k) = q.qk_norm_rope(k, [&self.qk_norm, &self.qk_norm], rope, layout)?;
        let attn = q.attention(&k, &v, self.head_dim, layout, mask)?;
        let hidden_states = attn.linear_add(&self.o_proj, hidden_states)?;

        let h = hidden_states.rms_norm(&self.post_attention_layernorm, self.eps)?;
        let [gate, up] = h.linear(&self.gate_up_proj, None)?.split_cols([self.mlp, self.mlp]);
        gate.swiglu(&up)?.linear_add(&self.down_proj, hidden_states)
    }
}
