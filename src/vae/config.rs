//! The VAE's config: `vae/config.json`, or the shapes and metadata of a single file.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Result;
use crate::files::{Component, ConfigPlace, FileConfig, ModelFiles, Role, TensorFiles};

/// The values that no shape determines.
const NOT_IMPLIED: [&str; 2] = ["norm_num_groups", "batch_norm_eps"];
/// `norm_num_groups` of the published VAEs of FLUX.2.
const NORM_GROUPS: usize = 32;
/// Latent channels and block channels of the published VAEs. The small decoder has other channels.
const PUBLISHED_LATENTS: usize = 32;
const PUBLISHED: [[usize; 4]; 2] = [[128, 256, 512, 512], [96, 192, 384, 384]];
/// Maximum number of blocks of encoder or decoder; klein models have 4.
const MAX_BLOCKS: usize = 8;

/// Sizes of the VAE, named as in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VaeConfig {
    /// Channels of a latent pixel; four pixels form a packed latent.
    pub latent_channels: usize,
    /// Channels of the encoder's blocks.
    pub block_out_channels: Vec<usize>,
    /// Channels of the decoder's blocks, if they differ.
    pub decoder_block_out_channels: Option<Vec<usize>>,
    /// Residual blocks of a down block; up blocks have one more.
    pub layers_per_block: usize,
    /// Groups of every group norm.
    pub norm_num_groups: usize,
    /// Added to the latent variance.
    #[serde(default = "default_eps")]
    pub batch_norm_eps: f32,
    /// `true` if a 1 x 1 convolution follows the encoder.
    #[serde(default = "yes")]
    pub use_quant_conv: bool,
    /// `true` if a 1 x 1 convolution precedes the decoder.
    #[serde(default = "yes")]
    pub use_post_quant_conv: bool,
    /// `true` if the middle block has attention.
    #[serde(default = "yes")]
    pub mid_block_add_attention: bool,
    /// Side of the images that the model was made for.
    pub sample_size: Option<usize>,
    /// Activation; silu.
    #[serde(default = "silu")]
    pub act_fn: String,
}

fn default_eps() -> f32 {
    1e-4
}

fn yes() -> bool {
    true
}

fn silu() -> String {
    "silu".to_string()
}

impl VaeConfig {
    /// Reads and checks the config. Without a config, sizes come from the shapes in the file, and the rest from its
    /// metadata.
    ///
    /// Errors if the config is missing, no JSON, or of another kind of model.
    pub fn read(dir: &ModelFiles) -> Result<Self> {
        let component = dir.component(Role::Vae);
        let (config, place) = match component.config()? {
            Some(config) => (config, component.place()),
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
        let mut config = Self::from_shapes(&files)?;
        // Channels are not compared: a file without an encoder determines only some of them.
        let implied = [
            ("latent_channels", json!(config.latent_channels)),
            ("layers_per_block", json!(config.layers_per_block)),
            ("use_quant_conv", json!(config.use_quant_conv)),
            ("use_post_quant_conv", json!(config.use_post_quant_conv)),
            ("mid_block_add_attention", json!(config.mid_block_add_attention)),
            ("act_fn", json!(config.act_fn)),
        ];
        let said = FileConfig::read(component, &files, &NOT_IMPLIED, &implied)?;
        let sides = [config.block_out_channels.as_slice(), config.decoder_channels()];
        let is_published = config.latent_channels == PUBLISHED_LATENTS
            && sides.iter().all(|side| PUBLISHED.iter().any(|published| *published == **side));
        said.check_complete(is_published)?;
        config.norm_num_groups = said.get("norm_num_groups", "a whole number")?.unwrap_or(config.norm_num_groups);
        config.batch_norm_eps = said.get("batch_norm_eps", "a number")?.unwrap_or(config.batch_norm_eps);
        config.sample_size = said.get("sample_size", "a whole number")?;
        Ok((config, said))
    }

    /// Returns the sizes by the shapes of a single file, and otherwise the values of published models.
    ///
    /// Errors as [`VaeConfig::from_file`].
    fn from_shapes(files: &TensorFiles) -> Result<Self> {
        // The output channels of a block are those of its first convolution.
        let channels = |side: &str| -> Result<Vec<usize>> {
            let blocks = files.blocks(side).min(MAX_BLOCKS + 1);
            (0..blocks).map(|block| files.axis(&format!("{side}{block}.resnets.0.conv1.weight"), 0)).collect()
        };
        let mut up = channels("decoder.up_blocks.")?;
        up.reverse();
        let down = channels("encoder.down_blocks.")?;
        // A file without an encoder still generates images from prompts.
        let down = if down.is_empty() { up.clone() } else { down };
        Ok(Self {
            latent_channels: files.axis("decoder.conv_in.weight", 1)?,
            decoder_block_out_channels: (up != down).then_some(up),
            block_out_channels: down,
            layers_per_block: files.blocks("decoder.up_blocks.0.resnets.").saturating_sub(1),
            norm_num_groups: NORM_GROUPS,
            batch_norm_eps: default_eps(),
            use_quant_conv: files.shape("quant_conv.weight").is_some(),
            use_post_quant_conv: files.shape("post_quant_conv.weight").is_some(),
            mid_block_add_attention: files.shape("decoder.mid_block.attentions.0.to_q.weight").is_some(),
            sample_size: None,
            act_fn: silu(),
        })
    }

    fn check(&self, place: &ConfigPlace) -> Result<()> {
        let error = |what: String| Err(place.wrong(what));
        let bounds = || 1..=1 << 16;
        let sizes = [
            ("latent_channels", self.latent_channels, bounds()),
            ("norm_num_groups", self.norm_num_groups, bounds()),
            ("layers_per_block", self.layers_per_block, 1..=1 << 8),
        ];
        place.check_sizes(&sizes)?;
        for (key, channels) in [
            ("block_out_channels", self.block_out_channels.as_slice()),
            ("decoder_block_out_channels", self.decoder_channels()),
        ] {
            let sizes: Vec<_> = channels.iter().map(|channels| (key, *channels, bounds())).collect();
            place.check_sizes(&sizes)?;
        }
        let groups = self.norm_num_groups;
        let all = self.block_out_channels.iter().chain(self.decoder_channels());
        if let Some(channels) = all.into_iter().find(|channels| !channels.is_multiple_of(groups)) {
            return error(format!("norm_num_groups {groups} does not divide {channels} channels"));
        }
        if !(0.0..1.0).contains(&self.batch_norm_eps) {
            return error(format!("batch_norm_eps {} must be in 0..1", self.batch_norm_eps));
        }
        if self.decoder_channels().is_empty() || self.decoder_channels().len() > MAX_BLOCKS || self.act_fn != "silu" {
            return error("not a VAE of this family: block_out_channels or act_fn differ".to_string());
        }
        let blocks = [self.block_out_channels.len(), self.decoder_channels().len()];
        if blocks[0] != blocks[1] {
            let [down, up] = blocks;
            return error(format!("block_out_channels has {down} blocks, but decoder_block_out_channels has {up}"));
        }
        Ok(())
    }

    /// Returns the channels of the decoder's blocks, from the pixels inwards.
    pub fn decoder_channels(&self) -> &[usize] {
        self.decoder_block_out_channels.as_deref().unwrap_or(&self.block_out_channels)
    }

    /// Returns the pixels on a side of a packed latent: 16 for four blocks, which halve three times.
    pub fn patch_pixels(&self) -> usize {
        2 << (self.decoder_channels().len() - 1)
    }

    /// Returns the number of weights of the encoder, within a few percent.
    pub fn encoder_elements(&self) -> u64 {
        let channels = &self.block_out_channels;
        let block = |i: usize| {
            let (cin, cout) = (channels[i.saturating_sub(1)] as u64, channels[i] as u64);
            let shortcut = if cin == cout { 0 } else { cin * cout };
            let downsampler = if i + 1 < channels.len() { 9 * cout * cout } else { 0 };
            9 * cin * cout + shortcut + (2 * self.layers_per_block as u64 - 1) * 9 * cout * cout + downsampler
        };
        let (first, top) = (channels[0] as u64, channels[channels.len() - 1] as u64);
        let outside = 27 * first + 9 * top * 2 * self.latent_channels as u64;
        (0..channels.len()).map(block).sum::<u64>() + middle_elements(top) + outside
    }

    /// Returns the number of weights of the decoder, within a few percent.
    pub fn decoder_elements(&self) -> u64 {
        let channels = self.decoder_channels();
        let mid = middle_elements(channels[channels.len() - 1] as u64);
        let ups =
            channels.iter().map(|&c| (2 * (self.layers_per_block as u64 + 1) + 1) * 9 * (c * c) as u64).sum::<u64>();
        // The first residual block of an up block reads the channels of the previous block.
        mid + ups + channels.windows(2).map(|pair| 9 * (pair[0] * pair[1]) as u64).sum::<u64>()
    }
}

/// Weights of the middle block: four convolutions, and the projections of its attention.
fn middle_elements(channels: u64) -> u64 {
    4 * 9 * channels * channels + 4 * channels * channels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_those_of_the_files_within_a_few_percent() {
        let config = VaeConfig::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
        // Counted in the default model's file.
        for (got, counted) in [(config.encoder_elements(), 1_473_200), (config.decoder_elements(), 2_424_835)] {
            let apart = (got as f64 / counted as f64 - 1.0).abs();
            assert!(apart < 0.1, "{got}, counted {counted}");
        }
    }
}
