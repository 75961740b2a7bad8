//! The VAE: latents to pixels.
//!
//! A row is a pixel and a column a channel, so a 1 x 1 convolution is a `linear` and the attention of the middle block
//! needs no transpose.

mod config;
mod mid_block;
mod resnet_block;

pub use config::VaeConfig;
pub use mid_block::MidBlock;
pub use resnet_block::ResnetBlock;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::files::TensorFiles;
use crate::nn::{ConvKernel, Weights};
use crate::ops::{self, Conv, Convolved};
use crate::tensor::Tensor;

/// The epsilon of every group norm.
/// Source: diffusers `Decoder(resnet_eps=1e-6)`; it is in no config.
const GROUP_NORM_EPS: f32 = 1e-6;

/// An image whose rows are pixels.
pub struct Grid<B: Backend> {
    /// [height * width, channels]
    pub pixels: Tensor<B>,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channel statistics of these pixels, where the op that made them computed them as well.
    statistics: Option<B::ChannelStatistics>,
}

impl<B: Backend> Grid<B> {
    /// `pixels` [height * width, channels], a tensor or what a convolution returns.
    pub fn new(pixels: impl Into<Convolved<B>>, height: usize, width: usize) -> Self {
        let Convolved { pixels, statistics } = pixels.into();
        Self { pixels, height, width, statistics }
    }
}

/// A convolution whose output has the size of its input.
pub(crate) struct ConvLayer<B: Backend> {
    weight: ConvKernel<B>, // [out, in, k, k]
    bias: Tensor<B>,       // [1, out]
}

impl<B: Backend> ConvLayer<B> {
    fn load(weights: &Weights<'_, B>, name: &str, cin: usize, cout: usize, kernel: usize) -> Result<Self> {
        Ok(Self {
            weight: weights.conv(name, cin, cout, kernel)?,
            bias: weights.vector(&format!("{name}.bias"), cout)?,
        })
    }

    fn forward(&self, x: &Grid<B>) -> Result<Grid<B>> {
        let conv = Conv::same(x.height, x.width, self.weight.side());
        Ok(Grid::new(x.pixels.conv2d(&self.weight, &self.bias, conv)?, x.height, x.width))
    }

    /// `forward(x)`, which may overwrite x.
    fn forward_over(&self, x: Grid<B>) -> Result<Grid<B>> {
        let conv = Conv::same(x.height, x.width, self.weight.side());
        Ok(Grid::new(x.pixels.conv2d_over(&self.weight, &self.bias, conv)?, x.height, x.width))
    }

    /// `forward(silu(norm(x)))`
    fn forward_normed(&self, x: &Grid<B>, norm: &GroupNorm<B>) -> Result<Grid<B>> {
        let conv = Conv::same(x.height, x.width, self.weight.side());
        let norm = norm.op(x.statistics.as_ref());
        Ok(Grid::new(x.pixels.norm_conv2d(&norm, &self.weight, &self.bias, conv)?, x.height, x.width))
    }

    /// `forward(silu(norm(x))) + residual`, which may overwrite the residual.
    fn forward_normed_add(&self, x: Grid<B>, norm: &GroupNorm<B>, residual: Grid<B>) -> Result<Grid<B>> {
        let Grid { pixels, height, width, statistics } = x;
        let conv = Conv::same(height, width, self.weight.side());
        let norm = norm.op(statistics.as_ref());
        let sum = pixels.norm_conv2d_add(&norm, &self.weight, &self.bias, conv, residual.pixels)?;
        Ok(Grid::new(sum, height, width))
    }

    /// `forward` of the image twice as high and wide; for 3 x 3 only.
    fn forward_upsampled(&self, x: Grid<B>) -> Result<Grid<B>> {
        let (height, width) = (x.height, x.width);
        Ok(Grid::new(x.pixels.upsample_conv2d(&self.weight, &self.bias, height, width)?, 2 * height, 2 * width))
    }
}

/// A group norm with its learned weights.
pub(crate) struct GroupNorm<B: Backend> {
    weight: Tensor<B>, // [1, channels]
    bias: Tensor<B>,   // [1, channels]
    groups: usize,
}

impl<B: Backend> GroupNorm<B> {
    fn load(weights: &Weights<'_, B>, name: &str, channels: usize, groups: usize) -> Result<Self> {
        if !channels.is_multiple_of(groups) {
            return Err(Error::new(format!("norm_num_groups {groups} does not divide {channels} channels"))
                .at("vae/config.json"));
        }
        let weights = weights.at(name);
        Ok(Self { weight: weights.vector("weight", channels)?, bias: weights.vector("bias", channels)?, groups })
    }

    fn forward(&self, x: &Grid<B>) -> Result<Tensor<B>> {
        x.pixels.group_norm(&self.op(x.statistics.as_ref()))
    }

    fn op<'a>(&'a self, statistics: Option<&'a B::ChannelStatistics>) -> ops::GroupNorm<'a, B> {
        ops::GroupNorm { weight: &self.weight, bias: &self.bias, groups: self.groups, eps: GROUP_NORM_EPS, statistics }
    }
}

/// Latents to pixels.
pub struct Decoder<B: Backend> {
    mean: Tensor<B>, // [1, 4 * latent_channels] in float32
    std: Tensor<B>,  // [1, 4 * latent_channels] in float32
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
    /// Errors when a tensor is missing or has another shape than the config says.
    pub fn load(weights: &Weights<'_, B>, config: &VaeConfig) -> Result<Self> {
        let backend = weights.backend();
        let decoder = weights.at("decoder");
        let latent = config.latent_channels;
        let packed = 4 * latent;
        let statistics = |name: &str| Ok::<_, Error>(weights.at("bn").view(name, &[packed])?.to_f32());
        let std: Vec<f32> = statistics("running_var")?.iter().map(|var| (var + config.batch_norm_eps).sqrt()).collect();

        // The decoder walks the encoder's channels backwards.
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
            mean: backend.upload_f32(&statistics("running_mean")?, 1, packed)?,
            std: backend.upload_f32(&std, 1, packed)?,
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

    /// Packed latents [height * width, 4 * latent_channels] of the sampler -> VAE latents [2 * height * 2 * width,
    /// latent_channels].
    pub fn unpack(&self, latents: &Tensor<B>, height: usize, width: usize) -> Result<Grid<B>> {
        Ok(Grid::new(latents.unpatchify(&self.mean, &self.std, height, width)?, 2 * height, 2 * width))
    }

    /// VAE latents -> pixels [.., 3] in about -1..1; reports each stage to `done(stages so far)`, which may end the
    /// work with an error.
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
        done(self.stages())?;
        Ok(pixels)
    }

    /// Number of stages that [`Decoder::forward`] reports.
    pub fn stages(&self) -> usize {
        self.up_blocks.len() + 2
    }
}

/// Opens the VAE's files in a model folder.
pub fn open(dir: &ModelFiles) -> Result<TensorFiles> {
    dir.tensors("vae", "diffusion_pytorch_model")
}
