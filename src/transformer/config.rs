//! `transformer/config.json`.

use serde::Deserialize;

use crate::error::Result;
use crate::files::ModelFiles;

const FILE: &str = "transformer/config.json";
/// The most features of a token; klein 9B has 4096, and three times as many in its MLP.
const MAX_DIM: usize = 1 << 17;
const MAX_MLP: usize = 1 << 20;

/// Sizes of a FLUX.2 transformer, named as in the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TransformerConfig {
    /// Channels of a packed latent.
    pub in_channels: usize,
    /// Channels of the velocity; `in_channels` when absent.
    pub out_channels: Option<usize>,
    /// Double blocks.
    pub num_layers: usize,
    /// Single blocks.
    pub num_single_layers: usize,
    /// Features of a head.
    pub attention_head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Features of a text token.
    pub joint_attention_dim: usize,
    /// Length of the sinusoidal timestep embedding.
    pub timestep_guidance_channels: usize,
    /// MLP width over dim.
    pub mlp_ratio: f64,
    /// Number of features of a head that each position axis (t, h, w, l) rotates.
    pub axes_dims_rope: Vec<usize>,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the variance in every norm.
    pub eps: f32,
    /// Whether the model reads a guidance value: FLUX.2-dev, not klein.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Patches inside the model; klein packs outside it.
    #[serde(default = "one")]
    pub patch_size: usize,
}

fn one() -> usize {
    1
}

impl TransformerConfig {
    /// Reads and checks the config.
    ///
    /// Errors when it is missing, no JSON, or describes a model of another kind.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        let config: Self = dir.json(FILE)?;
        let error = |what: String| Err(dir.wrong_config(FILE, what));
        let head_dim = config.attention_head_dim;
        let heads = config.num_attention_heads;
        // Within these bounds no number of weights or bytes overflows.
        let sizes = [
            ("in_channels", config.in_channels, 1..=MAX_MLP),
            ("out_channels", config.out_channels(), 1..=MAX_MLP),
            ("num_attention_heads", heads, 1..=MAX_DIM),
            ("attention_head_dim", head_dim, 1..=MAX_DIM / heads.clamp(1, MAX_DIM)),
            ("joint_attention_dim", config.joint_attention_dim, 1..=MAX_MLP),
            ("timestep_guidance_channels", config.timestep_guidance_channels, 1..=MAX_MLP),
            ("num_layers", config.num_layers, 0..=1 << 12),
            ("num_single_layers", config.num_single_layers, 0..=1 << 12),
        ];
        dir.check_sizes(FILE, &sizes)?;
        if !(0.0..1e3).contains(&config.mlp_ratio) || !(1..=MAX_MLP).contains(&config.mlp()) {
            return error(format!("mlp_ratio {} gives an MLP of {} features", config.mlp_ratio, config.mlp()));
        }
        if !(config.rope_theta > 0.0 && config.rope_theta.is_finite() && (0.0..1.0).contains(&config.eps)) {
            return error(format!("rope_theta {} must be above 0, eps {} in 0..1", config.rope_theta, config.eps));
        }
        if config.guidance_embeds || config.patch_size != 1 {
            return error("a model with guidance_embeds or patch_size other than 1 is no klein model".to_string());
        }
        if config.axes_dims_rope.len() != 4
            || config.axes_dims_rope.iter().any(|d| d % 2 == 1)
            || config.axes_dims_rope.iter().try_fold(0usize, |sum, d| sum.checked_add(*d)) != Some(head_dim)
        {
            return error(format!(
                "axes_dims_rope must be four even numbers that add up to attention_head_dim {head_dim}"
            ));
        }
        if !config.in_channels.is_multiple_of(4) || config.out_channels() != config.in_channels {
            return error(format!(
                "in_channels {} and out_channels {} must be equal and a multiple of 4",
                config.in_channels,
                config.out_channels()
            ));
        }
        if !config.timestep_guidance_channels.is_multiple_of(2) {
            return error(format!("timestep_guidance_channels {} must be even", config.timestep_guidance_channels));
        }
        Ok(config)
    }

    /// Features of a token.
    pub fn dim(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Features inside the MLP.
    pub fn mlp(&self) -> usize {
        (self.dim() as f64 * self.mlp_ratio) as usize
    }

    /// Channels of the velocity.
    pub fn out_channels(&self) -> usize {
        self.out_channels.unwrap_or(self.in_channels)
    }

    /// Number of weights of each block: double blocks, which have those of two streams, then single blocks.
    pub fn elements_of_blocks(&self) -> Vec<u64> {
        let (dim, mlp) = (self.dim() as u64, self.mlp() as u64);
        let single = 4 * dim * dim + 3 * dim * mlp;
        let mut blocks = vec![2 * single; self.num_layers];
        blocks.resize(self.num_layers + self.num_single_layers, single);
        blocks
    }

    /// Number of weights in the blocks.
    pub fn block_elements(&self) -> u64 {
        self.elements_of_blocks().iter().sum()
    }

    /// Number of weights.
    pub fn elements(&self) -> u64 {
        self.block_elements() + self.other_elements()
    }

    /// Number of weights around the blocks.
    pub fn other_elements(&self) -> u64 {
        let dim = self.dim() as u64;
        let channels =
            (self.timestep_guidance_channels + self.in_channels + self.joint_attention_dim + self.out_channels())
                as u64;
        channels * dim + 18 * dim * dim
    }
}
