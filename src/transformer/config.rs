//! The transformer's config: `transformer/config.json`, or the shapes and metadata of a single file.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Result;
use crate::files::own_models::Architecture;
use crate::files::{Component, ConfigPlace, FileConfig, ModelFiles, Role, Variant};

/// The values that no shape determines.
const NOT_IMPLIED: [&str; 3] = ["axes_dims_rope", "rope_theta", "eps"];
/// `eps` of the published models.
const EPS: f32 = 1e-6;
/// The published models: features of a token, of a head and of a text token, and channels. All have four position axes
/// of a quarter of a head each. Numbers of blocks and MLP widths may differ, as in pruned models.
const PUBLISHED: [[usize; 4]; 4] =
    [[3072, 128, 7680, 128], [4096, 128, 12288, 128], [6144, 128, 15360, 128], [3072, 128, 20480, 128]];
/// Maximum features of a token; klein 9B has 4096, and three times as many in its MLP.
const MAX_DIM: usize = 1 << 17;
const MAX_MLP: usize = 1 << 20;

/// Sizes of a transformer, named as in the config of FLUX.2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformerConfig {
    /// Channels of a packed latent.
    pub in_channels: usize,
    /// Channels of the velocity; `in_channels` if absent.
    pub out_channels: Option<usize>,
    /// Double blocks; for FLUX.3, the blocks of each stream before the streams are joined.
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
    #[serde(alias = "timestep_channels")]
    pub timestep_guidance_channels: usize,
    /// Features inside the MLP, as a multiple of the features of a token.
    pub mlp_ratio: f64,
    /// Number of features of a head that each position axis (t, h, w, l) rotates.
    pub axes_dims_rope: Vec<usize>,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the variance in every norm.
    pub eps: f32,
    /// `true` if the model reads a guidance value: FLUX.2-dev, not klein.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Patch size inside the model; klein packs latents outside it.
    #[serde(default = "one")]
    pub patch_size: usize,
    /// `true` if the model reads the time that a step leads to. Only configs of FLUX.3 have this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_map: Option<bool>,
    /// Channels of a packed latent of references. FLUX.2 has no separate embedder for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cond_in_channels: Option<usize>,
}

fn one() -> usize {
    1
}

impl TransformerConfig {
    /// Reads and checks the config. Without a config, sizes come from the shapes in the file, and the rest from its
    /// metadata.
    ///
    /// Errors if the config is missing, no JSON, or of another kind of model.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        let component = dir.component(Role::Transformer);
        let config = Self::from_component(component)?;
        if config.guidance_embeds || config.patch_size != 1 {
            let what = "a model with guidance_embeds or patch_size other than 1 is not a klein model";
            return Err(component.place().wrong(what));
        }
        Ok(config)
    }

    /// [`TransformerConfig::read`] of a component, which may also read a guidance value.
    ///
    /// Errors as [`TransformerConfig::read`].
    pub fn from_component(component: &Component) -> Result<Self> {
        let (config, place) = match component.config()? {
            Some(config) => {
                check_class(component, &config)?;
                (config, component.place())
            }
            None => Self::from_file(component).map(|(config, said)| (config, said.place()))?,
        };
        config.check(&place)?;
        Ok(config)
    }

    /// Reads the sizes of a single file, and its metadata.
    ///
    /// Errors if the file cannot be opened, lacks a layer that determines sizes, or has too little metadata.
    pub(crate) fn from_file(component: &Component) -> Result<(Self, FileConfig)> {
        let files = component.tensors()?;
        let mut config = super::config_from_shapes(component, &files)?;
        let mut implied = vec![
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
        if config.architecture() == Architecture::Flux3 {
            implied
                .extend([("flow_map", json!(config.flow_map)), ("cond_in_channels", json!(config.cond_in_channels))]);
        }
        let said = FileConfig::read(component, &files, &NOT_IMPLIED, &implied)?;
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

    /// Creates a config with these features of a token, of a head and of the MLP; the caller sets the other sizes.
    ///
    /// Errors if heads do not divide the features.
    pub(super) fn new(component: &Component, [dim, head_dim, mlp]: [usize; 3], rope_theta: f64) -> Result<Self> {
        if head_dim == 0 || dim == 0 || !dim.is_multiple_of(head_dim) {
            return Err(component.place().wrong(format!("{dim} features are not a multiple of heads of {head_dim}")));
        }
        Ok(Self {
            in_channels: 0,
            out_channels: None,
            num_layers: 0,
            num_single_layers: 0,
            attention_head_dim: head_dim,
            num_attention_heads: dim / head_dim,
            joint_attention_dim: 0,
            timestep_guidance_channels: 0,
            mlp_ratio: ratio(mlp, dim),
            axes_dims_rope: vec![head_dim / 4; 4],
            rope_theta,
            eps: EPS,
            guidance_embeds: false,
            patch_size: 1,
            flow_map: None,
            cond_in_channels: None,
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
        if let Some(channels) = self.cond_in_channels
            && channels != self.in_channels
        {
            return error(format!(
                "cond_in_channels {channels} and in_channels {} must be equal: one VAE encodes references and images",
                self.in_channels
            ));
        }
        if self.architecture() == Architecture::Flux3 && self.num_single_layers == 0 {
            return error("num_single_layers is 0, so text and image never interact".to_string());
        }
        if !self.timestep_guidance_channels.is_multiple_of(2) {
            return error(format!("timestep_guidance_channels {} must be even", self.timestep_guidance_channels));
        }
        Ok(())
    }

    /// Returns the number of features of a token.
    pub fn dim(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Returns the number of features inside the MLP.
    pub fn mlp(&self) -> usize {
        (self.dim() as f64 * self.mlp_ratio) as usize
    }

    /// Returns the number of channels of the velocity.
    pub fn out_channels(&self) -> usize {
        self.out_channels.unwrap_or(self.in_channels)
    }

    /// Returns the architecture, FLUX.2 or FLUX.3.
    pub fn architecture(&self) -> Architecture {
        if self.flow_map.is_some() { Architecture::Flux3 } else { Architecture::Flux2 }
    }

    /// Returns `true` if the model reads the time that a step leads to. All its modulations then depend on that time.
    pub fn reads_next_time(&self) -> bool {
        self.flow_map == Some(true)
    }

    /// Returns `true` if text, references and image have separate blocks before they are joined.
    pub fn has_early_blocks(&self) -> bool {
        self.architecture() == Architecture::Flux3 && self.num_layers > 0
    }

    /// Returns the number of double blocks.
    pub fn double_blocks(&self) -> usize {
        if self.architecture() == Architecture::Flux2 { self.num_layers } else { 0 }
    }

    /// Returns the variant of the model, if its weights determine it.
    pub fn variant(&self) -> Option<Variant> {
        self.flow_map.map(|reads_next_time| if reads_next_time { Variant::Distilled } else { Variant::Base })
    }

    /// Returns the number of blocks in each list of [`LayerMap::blocks`](crate::files::names::LayerMap::blocks). The
    /// lists are in the order of use.
    pub fn block_counts(&self) -> Vec<usize> {
        match self.architecture() {
            Architecture::Flux2 => vec![self.num_layers, self.num_single_layers],
            Architecture::Flux3 => [vec![self.num_layers; 3], vec![self.num_single_layers]].concat(),
        }
    }

    /// Returns the name prefix of each block's tensors, in the order of use.
    pub fn block_prefixes(&self) -> impl Iterator<Item = String> {
        let lists = self.architecture().model().layers.blocks.iter().zip(self.block_counts());
        lists.flat_map(|((_, own, _), count)| (0..count).map(move |block| format!("{own}.{block}.")))
    }

    /// Returns the number of weights of each block, in the order of use; double blocks have weights for two streams.
    pub fn elements_of_blocks(&self) -> Vec<u64> {
        let single = self.single_block_elements();
        let counts = self.block_counts();
        let double = self.double_blocks();
        let all = counts.iter().sum::<usize>();
        (0..all).map(|block| if block < double { 2 * single } else { single }).collect()
    }

    /// Number of weights of a single block. A double block uses as many for each token, and has separate ones for
    /// text.
    fn single_block_elements(&self) -> u64 {
        let (dim, mlp) = (self.dim() as u64, self.mlp() as u64);
        4 * dim * dim + 3 * dim * mlp
    }

    /// Returns the floating-point operations of the blocks in an evaluation of `tokens` tokens, at most `u64::MAX`.
    pub fn evaluation_flops(&self, tokens: u64) -> u64 {
        let attention = (4 * self.dim() as u64).saturating_mul(tokens).saturating_mul(tokens);
        let products = 2u64.saturating_mul(self.single_block_elements()).saturating_mul(tokens);
        products.saturating_add(attention).saturating_mul((self.num_layers + self.num_single_layers) as u64)
    }

    /// Returns the number of weights in the blocks.
    pub fn block_elements(&self) -> u64 {
        self.elements_of_blocks().iter().sum()
    }

    /// Returns the number of weights.
    pub fn elements(&self) -> u64 {
        self.block_elements() + self.other_elements()
    }

    /// Returns the number of weights outside the blocks.
    pub fn other_elements(&self) -> u64 {
        let dim = self.dim() as u64;
        let channels =
            (self.timestep_guidance_channels + self.in_channels + self.joint_attention_dim + self.out_channels())
                as u64;
        let (vectors, own_channels) = match self.architecture() {
            Architecture::Flux2 => (18, 0),
            // Three for each stream of both kinds of blocks, two for the final norm, and one for the embedder. A model
            // that reads the next time has an embedder for that too.
            Architecture::Flux3 if self.reads_next_time() => (22, self.in_channels + self.timestep_guidance_channels),
            Architecture::Flux3 => (21, self.in_channels),
        };
        (channels + own_channels as u64) * dim + vectors * dim * dim
    }
}

/// Errors if the class needs keys that the config lacks, or contradicts its values.
fn check_class(component: &Component, config: &TransformerConfig) -> Result<()> {
    #[derive(Deserialize)]
    struct Class {
        #[serde(rename = "_class_name")]
        class_name: Option<String>,
    }
    let Some(Class { class_name: Some(class) }) = component.config()? else { return Ok(()) };
    match Architecture::from_class(&class) {
        Some(named) if named != config.architecture() => {
            let what = match named {
                Architecture::Flux3 => "flow_map is missing, which a transformer of this class must have",
                Architecture::Flux2 => "flow_map is set, which a transformer of this class does not have",
            };
            Err(component.place().wrong(format!("the config is for a `{class}`, but {what}")))
        }
        _ => Ok(()),
    }
}

/// Returns the smallest ratio at or above `mlp / dim` whose product with `dim` is not below `mlp`.
fn ratio(mlp: usize, dim: usize) -> f64 {
    let ratio = mlp as f64 / dim as f64;
    if ((dim as f64 * ratio) as usize) < mlp { ratio.next_up() } else { ratio }
}
