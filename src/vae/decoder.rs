//! The VAE's decoder: latents to pixels.

use super::grid::{Band, Grid};
use super::layers::{ConvLayer, GroupNorm};
use super::{LatentStatistics, MidBlock, ResnetBlock, VaeConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Weights;
use crate::tensor::Tensor;

/// The decoder: latents to pixels.
pub struct Decoder<B: Backend> {
    statistics: LatentStatistics<B>,
    post_quant_conv: Option<ConvLayer<B>>,
    conv_in: ConvLayer<B>,
    mid_block: MidBlock<B>,
    up_blocks: Vec<UpBlock<B>>,
    conv_norm_out: GroupNorm<B>,
    conv_out: ConvLayer<B>,
}

struct UpBlock<B: Backend> {
    resnets: Vec<ResnetBlock<B>>,
    upsampler: Option<ConvLayer<B>>,
}

impl<B: Backend> Decoder<B> {
    /// Loads the decoder and the latent statistics.
    ///
    /// Errors if a tensor is missing or its shape does not fit the config.
    pub fn load(weights: &Weights<'_, B>, config: &VaeConfig) -> Result<Self> {
        let decoder = weights.at("decoder");
        let latent = config.latent_channels;

        // The decoder's channels are in the reverse order of the encoder's.
        let channels: Vec<usize> = config.decoder_channels().iter().rev().copied().collect();
        let (first, last) = (channels[0], channels[channels.len() - 1]);
        let mut up_blocks = Vec::new();
        let mut cin = first;
        for (i, &cout) in channels.iter().enumerate() {
            let block = decoder.at("up_blocks").at(i);
            let resnet = |j: usize| {
                ResnetBlock::load(
                    &block.at("resnets").at(j),
                    if j == 0 { cin } else { cout },
                    cout,
                    config.norm_num_groups,
                )
            };
            let resnets = (0..config.layers_per_block + 1).map(resnet).collect::<Result<_>>()?;
            let upsampler = if i + 1 < channels.len() {
                Some(ConvLayer::load(&block.at("upsamplers.0"), "conv", cout, cout, 3)?)
            } else {
                None
            };
            up_blocks.push(UpBlock { resnets, upsampler });
            cin = cout;
        }
        Ok(Self {
            statistics: LatentStatistics::load(weights, config)?,
            post_quant_conv: config
                .use_post_quant_conv
                .then(|| ConvLayer::load(weights, "post_quant_conv", latent, latent, 1))
                .transpose()?,
            conv_in: ConvLayer::load(&decoder, "conv_in", latent, first, 3)?,
            mid_block: MidBlock::load(
                &decoder.at("mid_block"),
                first,
                config.norm_num_groups,
                config.mid_block_add_attention,
            )?,
            up_blocks,
            conv_norm_out: GroupNorm::load(&decoder, "conv_norm_out", last, config.norm_num_groups)?,
            conv_out: ConvLayer::load(&decoder, "conv_out", last, 3, 3)?,
        })
    }

    /// Unpacks the sampler's packed latents [height * width, 4 * latent_channels] to VAE latents [2 * height * 2 *
    /// width, latent_channels], or to a band of them.
    pub fn unpack(&self, latents: &Tensor<B>, height: usize, width: usize, band: Option<Band>) -> Result<Grid<B>> {
        let LatentStatistics { mean, std } = &self.statistics;
        let Some(band) = band else {
            return Ok(Grid::new(latents.unpatchify(mean, std, height, width)?, 2 * height, 2 * width));
        };
        let own = band.own();
        let rows = latents.row_view(own.start * width..own.end * width);
        let unpacked = rows.unpatchify(mean, std, own.len(), width)?;
        Ok(Grid::with_band(unpacked, 2 * own.len(), 2 * width, Some(band)))
    }

    /// Decodes VAE latents, or a band of them -> pixels [.., 3] of the whole image in about -1..1. Calls `done(stages
    /// so far)` after each stage, whose error ends the work.
    ///
    /// Source: diffusers `AutoencoderKLFlux2.decode` and `Decoder.forward`.
    pub fn forward(&self, latents: Grid<B>, mut done: impl FnMut(usize) -> Result<()>) -> Result<Grid<B>> {
        let x = match &self.post_quant_conv {
            Some(conv) => conv.forward(&latents)?,
            None => latents,
        };
        let mut x = self.mid_block.forward(self.conv_in.forward(&x)?)?;
        done(1)?;
        for (i, block) in self.up_blocks.iter().enumerate() {
            for resnet in &block.resnets {
                x = resnet.forward(x)?;
            }
            if let Some(conv) = &block.upsampler {
                x = conv.forward_upsampled(x)?;
            }
            done(2 + i)?;
        }
        let pixels = self.conv_out.forward_normed(&x, &self.conv_norm_out)?;
        let pixels = pixels.into_whole()?;
        done(self.stages())?;
        Ok(pixels)
    }

    /// Returns the number of stages that [`Decoder::forward`] reports.
    pub fn stages(&self) -> usize {
        self.up_blocks.len() + 2
    }
}
