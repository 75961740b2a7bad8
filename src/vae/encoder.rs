//! The VAE's encoder: pixels to latents.

use super::grid::{Band, Grid};
use super::layers::{ConvLayer, GroupNorm};
use super::{DownBlock, LatentStatistics, MidBlock, VaeConfig};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::Weights;
use crate::tensor::Tensor;

/// The encoder: pixels to latents.
pub struct Encoder<B: Backend> {
    conv_in: ConvLayer<B>,
    down_blocks: Vec<DownBlock<B>>,
    mid_block: MidBlock<B>,
    conv_norm_out: GroupNorm<B>,
    conv_out: ConvLayer<B>,
    quant_conv: Option<ConvLayer<B>>,
    statistics: LatentStatistics<B>,
    patch_pixels: usize,
}

impl<B: Backend> Encoder<B> {
    /// Loads the encoder and the latent statistics.
    ///
    /// Errors if a tensor is missing or its shape does not fit the config.
    pub fn load(weights: &Weights<'_, B>, config: &VaeConfig) -> Result<Self> {
        let (encoder, groups) = (weights.at("encoder"), config.norm_num_groups);
        let channels = config.block_out_channels.as_slice();
        let (first, last) = (channels[0], channels[channels.len() - 1]);
        let down_block = |i: usize| {
            let sizes = [channels[i.saturating_sub(1)], channels[i]];
            let weights = encoder.at("down_blocks").at(i);
            DownBlock::load(&weights, sizes, config.layers_per_block, groups, i + 1 < channels.len())
        };
        // The last convolution makes means, then log variances. Only the means are read: the latents of an image are
        // those of maximum density.
        let latent = config.latent_channels;
        let (conv_out, quant_conv) = if config.use_quant_conv {
            let quant_conv = ConvLayer::load_first(weights, "quant_conv", 2 * latent, [latent, 2 * latent], 1)?;
            (ConvLayer::load(&encoder, "conv_out", last, 2 * latent, 3)?, Some(quant_conv))
        } else {
            (ConvLayer::load_first(&encoder, "conv_out", last, [latent, 2 * latent], 3)?, None)
        };
        Ok(Self {
            conv_in: ConvLayer::load(&encoder, "conv_in", 3, first, 3)?,
            down_blocks: (0..channels.len()).map(down_block).collect::<Result<_>>()?,
            mid_block: MidBlock::load(&encoder.at("mid_block"), last, groups, config.mid_block_add_attention)?,
            conv_norm_out: GroupNorm::load(&encoder, "conv_norm_out", last, groups)?,
            conv_out,
            quant_conv,
            statistics: LatentStatistics::load(weights, config)?,
            patch_pixels: config.patch_pixels(),
        })
    }

    /// Encodes pixels [height * width, 3] in -1..1 -> packed latents [height / patch * width / patch, 4 *
    /// latent_channels], of mean 0 and variance 1 as in the sampler, with [`VaeConfig::patch_pixels`] as patch. Calls
    /// `done(stages so far)` after each stage, whose error ends the work. With a `band`, this device computes only its
    /// band.
    ///
    /// Errors if height or width is 0 or no multiple of the patch.
    /// Source: diffusers `AutoencoderKLFlux2.encode`, `Encoder.forward` and `Flux2KleinPipeline._encode_vae_image`.
    pub fn forward(
        &self,
        pixels: Grid<B>,
        band: Option<Band>,
        mut done: impl FnMut(usize) -> Result<()>,
    ) -> Result<Tensor<B>> {
        let patch = self.patch_pixels;
        let [height, width] = [pixels.height, pixels.width];
        if [height, width].iter().any(|&side| side == 0 || !side.is_multiple_of(patch)) {
            return Err(Error::new(format!(
                "an image of {width} x {height} pixels cannot be divided into patches of {patch} x {patch}"
            ))
            .hint(format!("crop its sides to multiples of {patch}")));
        }
        let pixels = pixels.into_band(band);
        let mut x = self.conv_in.forward(&pixels)?;
        drop(pixels);
        for (i, block) in self.down_blocks.iter().enumerate() {
            x = block.forward(x)?;
            done(1 + i)?;
        }
        let x = self.mid_block.forward(x)?;
        done(self.stages() - 1)?;
        let mut latents = self.conv_out.forward_normed(&x, &self.conv_norm_out)?;
        if let Some(conv) = &self.quant_conv {
            latents = conv.forward(&latents)?;
        }
        let LatentStatistics { mean, std } = &self.statistics;
        let packed = latents.pixels.patchify(mean, std, latents.height / 2, width / patch)?;
        let packed = match latents.band() {
            Some(band) => packed.all_gather_rows(&band.rows(width / patch))?,
            None => packed,
        };
        done(self.stages())?;
        Ok(packed)
    }

    /// Returns the number of stages that [`Encoder::forward`] reports.
    pub fn stages(&self) -> usize {
        self.down_blocks.len() + 2
    }
}
