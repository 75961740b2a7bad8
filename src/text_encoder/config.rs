//! The text encoder's config: `text_encoder/config.json` with old or new keys, or the shapes and metadata of a single
//! file.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Result;
use crate::files::own_models::{FLUX2_KLEIN, FLUX3_KLEIN, is_class};
use crate::files::{Component, ConfigPlace, FileConfig, ModelFiles, Role, TensorFiles};

/// The values that no shape determines.
const NOT_IMPLIED: [&str; 2] = ["rope_theta", "rms_norm_eps"];
/// The published models of Qwen3, from 0.6B to 32B: features of a token and of the MLP, heads, and key heads. All have
/// heads of [`PUBLISHED_HEAD`] features.
const PUBLISHED: [[usize; 4]; 6] = [
    [1024, 3072, 16, 8],
    [2048, 6144, 16, 8],
    [2560, 9728, 32, 8],
    [4096, 12288, 32, 8],
    [5120, 17408, 40, 8],
    [5120, 25600, 64, 8],
];
const PUBLISHED_HEAD: usize = 128;
/// Maximum prompt length of Qwen3.
const MAX_POSITIONS: usize = 40960;
/// Maximum features of a token; Qwen3-8B has 12288 in its MLP.
const MAX_WIDTH: usize = 1 << 20;

/// The config of a vision-language encoder, which contains the config of the text model.
#[derive(Deserialize)]
struct Nested {
    text_config: Option<Raw>,
}

#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
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
    rope_scaling: Option<RopeParameters>,
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
    /// The key in older configs.
    r#type: Option<String>,
}

fn default_eps() -> f32 {
    1e-6
}

fn default_act() -> String {
    "silu".to_string()
}

/// Sizes of a Qwen3 encoder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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
    /// Maximum tokens of a prompt, if the model has a limit.
    pub max_position_embeddings: Option<usize>,
}

impl TextEncoderConfig {
    /// Reads and checks the config. Without a config, sizes come from the shapes in the file, and the rest from its
    /// metadata.
    ///
    /// Errors if the config is missing, no JSON, or of another kind of model.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        Self::from_component(dir.component(Role::TextEncoder))
    }

    /// [`TextEncoderConfig::read`] of a component.
    ///
    /// Errors as [`TextEncoderConfig::read`].
    pub fn from_component(component: &Component) -> Result<Self> {
        let nested = component.config::<Nested>()?.and_then(|nested| nested.text_config);
        let (config, place) = match nested.map_or_else(|| component.config(), |raw| Ok(Some(raw)))? {
            Some(raw) => (Self::from_raw(raw, &component.place())?, component.place()),
            None => Self::from_file(component).map(|(config, said)| (config, said.place()))?,
        };
        config.check(&place)?;
        Ok(config)
    }

    fn from_raw(raw: Raw, place: &ConfigPlace) -> Result<Self> {
        let rope = [raw.rope_parameters, raw.rope_scaling];
        let new_theta = rope.iter().flatten().find_map(|rope| rope.rope_theta);
        let mut kinds = rope.into_iter().flatten().flat_map(|rope| [rope.rope_type, rope.r#type]).flatten();
        if let Some(kind) = kinds.find(|kind| kind != "default") {
            return Err(place.wrong(format!("rope_type `{kind}` is not supported, expected `default`")));
        }
        if raw.attention_bias || raw.use_sliding_window || raw.hidden_act != "silu" {
            return Err(place
                .wrong("not a Qwen3 encoder of this family: attention_bias, use_sliding_window or hidden_act differ"));
        }
        let kind = raw.model_type.as_deref();
        if let Some(other) = kind.filter(|kind| !is_class(Role::TextEncoder, kind)) {
            let other: String = other.chars().take(40).collect();
            let known = FLUX2_KLEIN.part(Role::TextEncoder).classes[0];
            return Err(place.wrong(format!("model_type is `{other}`, expected `{known}`")));
        }
        let sees = kind.is_some_and(|kind| FLUX3_KLEIN.part(Role::TextEncoder).classes.contains(&kind));
        let published = if sees { &FLUX3_KLEIN } else { &FLUX2_KLEIN };
        let heads = raw.num_attention_heads;
        Ok(Self {
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            num_hidden_layers: raw.num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: raw.num_key_value_heads.unwrap_or(heads),
            head_dim: raw.head_dim.or(raw.hidden_size.checked_div(heads)).unwrap_or(0),
            rms_norm_eps: raw.rms_norm_eps,
            rope_theta: new_theta.or(raw.rope_theta).unwrap_or(published.text_encoder_theta),
            vocab_size: raw.vocab_size,
            max_position_embeddings: raw.max_position_embeddings,
        })
    }

    /// Reads the sizes of a single file, and its metadata.
    ///
    /// Errors if the file cannot be opened, lacks a layer that determines sizes, or has too little metadata.
    pub(crate) fn from_file(component: &Component) -> Result<(Self, FileConfig)> {
        let files = component.tensors()?;
        let mut config = Self::from_shapes(component, &files)?;
        config.rope_theta = component.text_encoder_of().text_encoder_theta;
        let implied = [
            ("hidden_size", json!(config.hidden_size)),
            ("intermediate_size", json!(config.intermediate_size)),
            ("num_hidden_layers", json!(config.num_hidden_layers)),
            ("num_attention_heads", json!(config.num_attention_heads)),
            ("num_key_value_heads", json!(config.num_key_value_heads)),
            ("head_dim", json!(config.head_dim)),
            ("vocab_size", json!(config.vocab_size)),
            // Keys that differ in other models with these layers.
            ("attention_bias", json!(false)),
            ("use_sliding_window", json!(false)),
            ("has_experts", json!(false)),
            ("hidden_act", json!("silu")),
            ("rope_type", json!("default")),
        ];
        let said = FileConfig::read(component, &files, &NOT_IMPLIED, &implied)?;
        let sizes =
            [config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads];
        said.check_complete(config.head_dim == PUBLISHED_HEAD && PUBLISHED.contains(&sizes))?;
        config.rms_norm_eps = said.get("rms_norm_eps", "a number")?.unwrap_or(config.rms_norm_eps);
        config.rope_theta = said.get("rope_theta", "a number")?.unwrap_or(config.rope_theta);
        let positions = said.get("max_position_embeddings", "a whole number")?;
        config.max_position_embeddings = positions.or(config.max_position_embeddings);
        Ok((config, said))
    }

    /// Returns the sizes by the shapes of a single file, and otherwise the values of published models.
    ///
    /// Errors as [`TextEncoderConfig::from_file`].
    fn from_shapes(component: &Component, files: &TensorFiles) -> Result<Self> {
        let layer = |name: &str| files.axis(&format!("model.layers.0.{name}.weight"), 0);
        let embedding = |axis| files.axis("model.embed_tokens.weight", axis);
        let head_dim = layer("self_attn.q_norm")?;
        let heads = |name: &str| -> Result<usize> {
            let rows = layer(name)?;
            let heads = rows.checked_div(head_dim).filter(|heads| heads * head_dim == rows);
            heads.ok_or_else(|| component.place().wrong(format!("`{name}` has {rows} rows, not heads of {head_dim}")))
        };
        Ok(Self {
            hidden_size: embedding(1)?,
            intermediate_size: layer("mlp.gate_proj")?,
            num_hidden_layers: files.blocks("model.layers."),
            num_attention_heads: heads("self_attn.q_proj")?,
            num_key_value_heads: heads("self_attn.k_proj")?,
            head_dim,
            rms_norm_eps: default_eps(),
            rope_theta: 0.0,
            vocab_size: embedding(0)?,
            max_position_embeddings: Some(MAX_POSITIONS),
        })
    }

    fn check(&self, place: &ConfigPlace) -> Result<()> {
        let heads = self.num_attention_heads;
        // Within these bounds no number of weights or bytes overflows.
        let sizes = [
            ("hidden_size", self.hidden_size, 1..=MAX_WIDTH),
            ("intermediate_size", self.intermediate_size, 1..=MAX_WIDTH),
            ("num_hidden_layers", self.num_hidden_layers, 1..=1 << 12),
            ("num_attention_heads", heads, 1..=MAX_WIDTH),
            ("num_key_value_heads", self.num_key_value_heads, 1..=heads),
            ("head_dim", self.head_dim, 1..=MAX_WIDTH / heads.clamp(1, MAX_WIDTH)),
            ("vocab_size", self.vocab_size, 1..=1 << 24),
        ];
        place.check_sizes(&sizes)?;
        if !(self.rope_theta > 0.0 && self.rope_theta.is_finite() && (0.0..1.0).contains(&self.rms_norm_eps)) {
            return Err(place.wrong(format!(
                "rope_theta {} must be above 0, rms_norm_eps {} in 0..1",
                self.rope_theta, self.rms_norm_eps
            )));
        }
        if !heads.is_multiple_of(self.num_key_value_heads) || !self.head_dim.is_multiple_of(2) {
            return Err(place.wrong(format!(
                "{} key heads of {} do not fit {heads} heads",
                self.num_key_value_heads, self.head_dim
            )));
        }
        Ok(())
    }

    /// Returns the peak number of values for each token when `states` hidden states are read: these and their
    /// concatenation, the stream and its norm, and inside a layer the widest projection with its result.
    pub fn activations(&self, states: usize) -> u64 {
        let attention = self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads);
        ((2 * states + 2) * self.hidden_size + attention.max(3 * self.intermediate_size)) as u64
    }

    /// Returns the number of weights of one layer.
    pub fn layer_elements(&self) -> u64 {
        let attention = 2 * self.head_dim * (self.num_attention_heads + self.num_key_value_heads);
        (self.hidden_size * (attention + 3 * self.intermediate_size + 2) + 2 * self.head_dim) as u64
    }
}
