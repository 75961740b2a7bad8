//! `transformer/config.json`, or the shapes of a single file and what it says.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Result;
use crate::files::{Component, ConfigPlace, FileConfig, ModelFiles, Role, TensorFiles};

/// What no shape tells.
const UNTOLD: [&str; 3] = ["axes_dims_rope", "rope_theta", "eps"];
/// What the published models have there.
const ROPE_THETA: f64 = 2000.0;
const EPS: f32 = 1e-6;
/// The published models: features of a token, of a head and of a text token, and channels. All have four axes of a
/// quarter of a head. Numbers of blocks and widths of MLPs may be others, as in models that were pruned.
const PUBLISHED: [[usize; 4]; 3] = [[3072, 128, 7680, 128], [4096, 128, 12288, 128], [6144, 128, 15360, 128]];
/// The most features of a token; klein 9B has 4096, and three times as many in its MLP.
const MAX_DIM: usize = 1 << 17;
const MAX_MLP: usize = 1 << 20;

/// Sizes of a FLUX.2 transformer, named as in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Reads and checks the config; without one, the shapes of the file tell the sizes, and the file what they do not.
    ///
    /// Errors when it is missing, no JSON, or describes a model of another kind.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        let component = dir.component(Role::Transformer);
        let config = Self::of(component)?;
        if config.guidance_embeds || config.patch_size != 1 {
            let what = "a model with guidance_embeds or patch_size other than 1 is no klein model";
            return Err(component.place().wrong(what));
        }
        Ok(config)
    }

    /// [`TransformerConfig::read`] of a component, which may also be one that reads a guidance value.
    ///
    /// Errors as it does.
    pub fn of(component: &Component) -> Result<Self> {
        let (config, place) = match component.config()? {
            Some(config) => (config, component.place()),
            None => {
                let (config, said) = Self::of_file(component)?;
                (config, said.place())
            }
        };
        config.check(&place)?;
        Ok(config)
    }

    /// Where the values are told that no shape tells, for display.
    ///
    /// Errors as [`TransformerConfig::read`].
    pub fn source(component: &Component) -> Result<String> {
        match component.single_file() {
            Some(_) => Ok(Self::of_file(component)?.1.source()),
            None => Ok(component.place().path().to_string()),
        }
    }

    /// The sizes of a single file, and what it says.
    ///
    /// Errors when it cannot be opened, lacks one of the layers that tell them, or says too little.
    fn of_file(component: &Component) -> Result<(Self, FileConfig)> {
        let files = component.tensors()?;
        let mut config = Self::of_shapes(component, &files)?;
        let told = [
            ("in_channels", json!(config.in_channels)),
            ("out_channels", json!(config.out_channels)),
            ("num_layers", json!(config.num_layers)),
            ("num_single_layers", json!(config.num_single_layers)),
            ("attention_head_dim", json!(config.attention_head_dim)),
            ("num_attention_heads", json!(config.num_attention_heads)),
            ("joint_attention_dim", json!(config.joint_attention_dim)),
            ("timestep_guidance_channels", json!(config.timestep_guidance_channels)),
            ("guidance_embeds", json!(config.guidance_embeds)),
            ("patch_size", json!(config.patch_size)),
        ];
        let said = FileConfig::read(component, &files, &UNTOLD, &told)?;
        if let Some(mlp_ratio) = said.get("mlp_ratio", "a number")? {
            let mlp = config.mlp();
            config.mlp_ratio = mlp_ratio;
            if config.mlp() != mlp {
                let what = format!("mlp_ratio is {mlp_ratio}, but the MLPs have {mlp} features of {}", config.dim());
                return Err(said.place().wrong(what));
            }
        }
        let sizes = [config.dim(), config.attention_head_dim, config.joint_attention_dim, config.in_channels];
        said.check_complete(PUBLISHED.contains(&sizes))?;
        config.axes_dims_rope = said.get("axes_dims_rope", "four numbers")?.unwrap_or(config.axes_dims_rope);
        config.rope_theta = said.get("rope_theta", "a number")?.unwrap_or(config.rope_theta);
        config.eps = said.get("eps", "a number")?.unwrap_or(config.eps);
        Ok((config, said))
    }

    /// The sizes of a single file, beside the values of published models.
    ///
    /// Errors as [`TransformerConfig::of_file`].
    fn of_shapes(component: &Component, files: &TensorFiles) -> Result<Self> {
        let place = component.place();
        let axis = |name: &str, axis: usize| files.axis(name, axis);
        let blocks = [files.blocks("transformer_blocks."), files.blocks("single_transformer_blocks.")];
        let dim = axis("x_embedder.weight", 0)?;
        let (norm, mlp) = if blocks[0] > 0 {
            ("transformer_blocks.0.attn.norm_q.weight", axis("transformer_blocks.0.ff.linear_in.weight", 0)? / 2)
        } else {
            let qkv_mlp = axis("single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight", 0)?;
            ("single_transformer_blocks.0.attn.norm_q.weight", qkv_mlp.saturating_sub(dim.saturating_mul(3)) / 2)
        };
        let head_dim = axis(norm, 0)?;
        if head_dim == 0 || dim == 0 || !dim.is_multiple_of(head_dim) {
            return Err(place.wrong(format!("{dim} features are not made of heads of {head_dim}")));
        }
        Ok(Self {
            in_channels: axis("x_embedder.weight", 1)?,
            out_channels: Some(axis("proj_out.weight", 0)?),
            num_layers: blocks[0],
            num_single_layers: blocks[1],
            attention_head_dim: head_dim,
            num_attention_heads: dim / head_dim,
            joint_attention_dim: axis("context_embedder.weight", 1)?,
            timestep_guidance_channels: axis("time_guidance_embed.timestep_embedder.linear_1.weight", 1)?,
            mlp_ratio: ratio(mlp, dim),
            axes_dims_rope: vec![head_dim / 4; 4],
            rope_theta: ROPE_THETA,
            eps: EPS,
            guidance_embeds: files.shape("time_guidance_embed.guidance_embedder.linear_1.weight").is_some(),
            patch_size: 1,
        })
    }

    fn check(&self, place: &ConfigPlace) -> Result<()> {
        let error = |what: String| Err(place.wrong(what));
        let head_dim = self.attention_head_dim;
        let heads = self.num_attention_heads;
        // Within these bounds no number of weights or bytes overflows.
        let sizes = [
            ("in_channels", self.in_channels, 1..=MAX_MLP),
            ("out_channels", self.out_channels(), 1..=MAX_MLP),
            ("num_attention_heads", heads, 1..=MAX_DIM),
            ("attention_head_dim", head_dim, 1..=MAX_DIM / heads.clamp(1, MAX_DIM)),
            ("joint_attention_dim", self.joint_attention_dim, 1..=MAX_MLP),
            ("timestep_guidance_channels", self.timestep_guidance_channels, 1..=MAX_MLP),
            ("num_layers", self.num_layers, 0..=1 << 12),
            ("num_single_layers", self.num_single_layers, 0..=1 << 12),
        ];
        place.check_sizes(&sizes)?;
        if !(0.0..1e3).contains(&self.mlp_ratio) || !(1..=MAX_MLP).contains(&self.mlp()) {
            return error(format!("mlp_ratio {} gives an MLP of {} features", self.mlp_ratio, self.mlp()));
        }
        if !(self.rope_theta > 0.0 && self.rope_theta.is_finite() && (0.0..1.0).contains(&self.eps)) {
            return error(format!("rope_theta {} must be above 0, eps {} in 0..1", self.rope_theta, self.eps));
        }
        if self.axes_dims_rope.len() != 4
            || self.axes_dims_rope.iter().any(|d| d % 2 == 1)
            || self.axes_dims_rope.iter().try_fold(0usize, |sum, d| sum.checked_add(*d)) != Some(head_dim)
        {
            return error(format!(
                "axes_dims_rope must be four even numbers that add up to attention_head_dim {head_dim}"
            ));
        }
        if !self.in_channels.is_multiple_of(4) || self.out_channels() != self.in_channels {
            return error(format!(
                "in_channels {} and out_channels {} must be equal and a multiple of 4",
                self.in_channels,
                self.out_channels()
            ));
        }
        if !self.timestep_guidance_channels.is_multiple_of(2) {
            return error(format!("timestep_guidance_channels {} must be even", self.timestep_guidance_channels));
        }
        Ok(())
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
        let single = self.single_block_elements();
        let mut blocks = vec![2 * single; self.num_layers];
        blocks.resize(self.num_layers + self.num_single_layers, single);
        blocks
    }

    /// Number of weights of a single block. As many multiply each token in a double block, which has others for text.
    fn single_block_elements(&self) -> u64 {
        let (dim, mlp) = (self.dim() as u64, self.mlp() as u64);
        4 * dim * dim + 3 * dim * mlp
    }

    /// Floating-point operations of the blocks in an evaluation of so many tokens; `u64::MAX` where there are more.
    pub fn evaluation_flops(&self, tokens: u64) -> u64 {
        let attention = (4 * self.dim() as u64).saturating_mul(tokens).saturating_mul(tokens);
        let products = 2u64.saturating_mul(self.single_block_elements()).saturating_mul(tokens);
        products.saturating_add(attention).saturating_mul((self.num_layers + self.num_single_layers) as u64)
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

/// The least ratio at or above `mlp / dim` whose product with `dim` is not below `mlp`.
fn ratio(mlp: usize, dim: usize) -> f64 {
    let ratio = mlp as f64 / dim as f64;
    if ((dim as f64 * ratio) as usize) < mlp { ratio.next_up() } else { ratio }
}
