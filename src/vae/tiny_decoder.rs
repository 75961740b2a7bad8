//! TAEF2's decoder, the tiny autoencoder for FLUX.2: latents to pixels with a fraction of the VAE's work, for previews
//! of steps.
//!
//! ```text
//! latents [2 h * 2 w, 32] -> conv_in, 3 blocks with pools, 3 x (upsample, conv, blocks), conv_out -> [16 h * 16 w, 3]
//! ```
//!
//! Source: madebyollin/taesd `taesd.py`, `Decoder` with `use_midblock_gn`.

use std::ops::Range;

use super::grid::Grid;
use super::layers::{ConvLayer, GroupNorm};
use super::tiny_layers::{BLOCKS, CONV_IN, CONV_OUT, LayerWeights, TinyDecoderSizes, UPSAMPLED};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::Weights;
use crate::tensor::Tensor;

/// Groups and epsilon of a pool's norm, which are in no config.
const POOL_GROUPS: usize = 4;
const POOL_EPS: f32 = 1e-5;
/// The soft cap of latents.
const BOUND: f32 = 3.0;

/// The tiny decoder: latents to pixels.
pub struct TinyDecoder<B: Backend> {
    conv_in: ConvLayer<B>,
    stages: Vec<Stage<B>>,
    conv_out: ConvLayer<B>,
    /// Statistics for `unpatchify` that leave latents unchanged: [1, 4 * latent_channels].
    zeros: Tensor<B>,
    ones: Tensor<B>,
    /// Map 0..1 to -1..1.
    scale: Tensor<B>,
    shift: Tensor<B>,
}

/// The blocks at one size.
struct Stage<B: Backend> {
    /// The convolution after upsampling; `None` in the first stage.
    upsampled: Option<ConvLayer<B>>,
    blocks: Vec<Block<B>>,
}

/// `relu(conv.4(relu(conv.2(relu(conv.0(x))))) + x)`, with its pool added to x if there is one.
struct Block<B: Backend> {
    pool: Option<Pool<B>>,
    convs: [ConvLayer<B>; 3],
}

/// `pool.3(relu(pool.1(pool.0(x))))`: 1 x 1 convolutions around a group norm.
struct Pool<B: Backend> {
    widen: ConvLayer<B>,
    norm: GroupNorm<B>,
    narrow: ConvLayer<B>,
}

impl<B: Backend> TinyDecoder<B> {
    /// Loads the decoder.
    ///
    /// Errors if a tensor is missing, no float, or does not have the shape by `sizes`.
    pub fn load(weights: &LayerWeights<'_, B>, sizes: &TinyDecoderSizes) -> Result<Self> {
        let &TinyDecoderSizes { latent_channels, channels, .. } = sizes;
        let stage = |(number, blocks): (usize, Range<usize>)| {
            let upsampled = number.checked_sub(1).map(|number| {
                let name = weights.name(UPSAMPLED[number]);
                ConvLayer::load_unbiased(weights.all(), &name, channels, channels, 3)
            });
            // Only blocks of the smallest size have pools.
            let block = |block| Block::load(&weights.all().at(weights.name(block)), sizes, number == 0);
            Ok(Stage { upsampled: upsampled.transpose()?, blocks: blocks.map(block).collect::<Result<_>>()? })
        };
        let conv = |number: usize, cin, cout| ConvLayer::load(weights.all(), &weights.name(number), cin, cout, 3);
        let (backend, packed) = (weights.all().backend(), 4 * latent_channels);
        Ok(Self {
            conv_in: conv(CONV_IN, latent_channels, channels)?,
            stages: BLOCKS.into_iter().enumerate().map(stage).collect::<Result<_>>()?,
            conv_out: conv(CONV_OUT, channels, 3)?,
            zeros: backend.upload_f32(&vec![0.0; packed], 1, packed)?,
            ones: backend.upload_f32(&vec![1.0; packed], 1, packed)?,
            scale: backend.upload(&[1.0; 3], 1, 3)?,
            shift: backend.upload(&[-1.0; 3], 1, 3)?,
        })
    }

    /// Decodes the sampler's packed latents [height * width, 4 * latent_channels] -> pixels [16 height * 16 width, 3]
    /// in about -1..1.
    ///
    /// Errors if the latents do not fit the size, or memory runs out.
    pub fn forward(&self, latents: Tensor<B>, [height, width]: [usize; 2]) -> Result<Grid<B>> {
        let x = Grid::new(
            latents.softcap(BOUND)?.unpatchify(&self.zeros, &self.ones, height, width)?,
            2 * height,
            2 * width,
        );
        let mut x = self.conv_in.forward_relu(&x)?;
        for Stage { upsampled, blocks } in &self.stages {
            if let Some(conv) = upsampled {
                x = conv.forward_upsampled(x)?;
            }
            for block in blocks {
                x = block.forward(x)?;
            }
        }
        let pixels = self.conv_out.forward(&x)?;
        let (height, width) = (pixels.height, pixels.width);
        Ok(Grid::new(pixels.pixels.scale_shift(&self.scale, &self.shift)?, height, width))
    }
}

impl<B: Backend> Block<B> {
    fn load(weights: &Weights<'_, B>, sizes: &TinyDecoderSizes, has_pool: bool) -> Result<Self> {
        let channels = sizes.channels;
        let conv = |number: usize| ConvLayer::load(weights, &format!("conv.{number}"), channels, channels, 3);
        Ok(Self {
            pool: has_pool.then(|| Pool::load(&weights.at("pool"), sizes)).transpose()?,
            convs: [conv(0)?, conv(2)?, conv(4)?],
        })
    }

    fn forward(&self, mut x: Grid<B>) -> Result<Grid<B>> {
        if let Some(pool) = &self.pool {
            x = pool.forward_add(x)?;
        }
        let [first, second, third] = &self.convs;
        let h = second.forward_relu(&first.forward_relu(&x)?)?;
        third.forward_add_relu(&h, x)
    }
}

impl<B: Backend> Pool<B> {
    fn load(weights: &Weights<'_, B>, sizes: &TinyDecoderSizes) -> Result<Self> {
        let &TinyDecoderSizes { channels, pool_channels, .. } = sizes;
        if !pool_channels.is_multiple_of(POOL_GROUPS) {
            return Err(Error::new(format!(
                "a pool of {pool_channels} channels cannot be divided into {POOL_GROUPS} groups"
            )));
        }
        Ok(Self {
            widen: ConvLayer::load_unbiased(weights, "0", channels, pool_channels, 1)?,
            norm: GroupNorm::load(weights, "1", pool_channels, POOL_GROUPS)?.with_eps(POOL_EPS),
            narrow: ConvLayer::load_unbiased(weights, "3", pool_channels, channels, 1)?,
        })
    }

    /// Adds the result of the pool to x.
    fn forward_add(&self, x: Grid<B>) -> Result<Grid<B>> {
        let h = self.widen.forward(&x)?;
        let (height, width) = (h.height, h.width);
        let h = Grid::new(self.norm.forward(&h)?.relu()?, height, width);
        self.narrow.forward_add(&h, x)
    }
}
