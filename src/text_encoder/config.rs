//! `text_encoder/config.json`, in its old and new key forms.

use serde::Deserialize;

use crate::error::Result;
use crate::files::ModelFiles;

const FILE: &str = "text_encoder/config.json";
/// The most features of a token; Qwen3-8B has 12288 in its MLP.
const MAX_WIDTH: usize = 1 << 20;

#[derive(Deserialize)]
struct Raw {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_parameters: Option<RopeParameters>,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default = "default_act")]
    hidden_act: String,
}

#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

fn default_eps() -> f32 {
    1e-6
}

fn default_act() -> String {
    "silu".to_string()
}

/// Sizes of a Qwen3 encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextEncoderConfig {
    /// Features of a token.
    pub hidden_size: usize,
    /// Features inside the MLP.
    pub intermediate_size: usize,
    /// Layers in the file; not all of them run.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// The most tokens of a prompt, where the model names a number.
    pub max_position_embeddings: Option<usize>,
}

impl TextEncoderConfig {
    /// Reads and checks the config.
    ///
    /// Errors when it is missing, no JSON, or describes a model of another kind.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        let raw: Raw = dir.json(FILE)?;
        let error = |what: String| Err(dir.wrong_config(FILE, what));
        let (new_theta, rope_type) = raw.rope_parameters.map_or((None, None), |p| (p.rope_theta, p.rope_type));
        if let Some(kind) = rope_type.filter(|kind| kind != "default") {
            return error(format!("rope_type `{kind}` is not supported, expected `default`"));
        }
        if raw.attention_bias || raw.use_sliding_window || raw.hidden_act != "silu" {
            return error(
                "not a Qwen3 encoder of this family: attention_bias, use_sliding_window or hidden_act differ"
                    .to_string(),
            );
        }
        let heads = raw.num_attention_heads;
        let config = Self {
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_hidden_layers: raw.num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: raw.num_key_value_heads.unwrap_or(heads),
            head_dim: raw.head_dim.or(raw.hidden_size.checked_div(heads)).unwrap_or(0),
            rms_norm_eps: raw.rms_norm_eps,
            rope_theta: new_theta.or(raw.rope_theta).unwrap_or(1e6),
            vocab_size: raw.vocab_size,
            max_position_embeddings: raw.max_position_embeddings,
        };
        // Within these bounds no number of weights or bytes overflows.
        let sizes = [
            ("hidden_size", config.hidden_size, 1..=MAX_WIDTH),
            ("intermediate_size", config.intermediate_size, 1..=MAX_WIDTH),
            ("num_hidden_layers", config.num_hidden_layers, 1..=1 << 12),
            ("num_attention_heads", heads, 1..=MAX_WIDTH),
            ("num_key_value_heads", config.num_key_value_heads, 1..=heads),
            ("head_dim", config.head_dim, 1..=MAX_WIDTH / heads.clamp(1, MAX_WIDTH)),
            ("vocab_size", config.vocab_size, 1..=1 << 24),
        ];
        dir.check_sizes(FILE, &sizes)?;
        if !(config.rope_theta > 0.0 && config.rope_theta.is_finite() && (0.0..1.0).contains(&config.rms_norm_eps)) {
            return error(format!(
                "rope_theta {} must be above 0, rms_norm_eps {} in 0..1",
                config.rope_theta, config.rms_norm_eps
            ));
        }
        if !heads.is_multiple_of(config.num_key_value_heads) || !config.head_dim.is_multiple_of(2) {
            return error(format!(
                "{} key heads of {} do not fit {heads} heads",
                config.num_key_value_heads, config.head_dim
            ));
        }
        Ok(config)
    }

    /// Values for each token at the peak: hidden states that are read and those laid side by side, the stream and its
    /// norm, and inside a layer the widest projection beside what comes of it.
    pub fn activations(&self) -> u64 {
        let attention = self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads);
        (8 * self.hidden_size + attention.max(3 * self.intermediate_size)) as u64
    }

    /// Weights of one layer.
    pub fn layer_elements(&self) -> u64 {
        let attention = 2 * self.head_dim * (self.num_attention_heads + self.num_key_value_heads);
        (self.hidden_size * (attention + 3 * self.intermediate_size + 2) + 2 * self.head_dim) as u64
    }
}
