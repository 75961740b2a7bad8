//! The layers of TAEF2's decoder: their numbers in the reference, their names in files, and their sizes.
//!
//! | written by | names |
//! |---|---|
//! | diffusers | `decoder.layers.0.weight`: the first layer, which has no weights, is not counted |
//! | the reference | `decoder.1.weight`, or `1.weight` in a file of the decoder alone |
//!
//! Source: madebyollin/taesd `taesd.py` and the files of madebyollin/taef2.

use std::ops::Range;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::TensorFiles;
use crate::nn::Weights;

/// The first convolution.
pub const CONV_IN: usize = 1;
/// The blocks at each size.
pub const BLOCKS: [Range<usize>; 4] = [3..6, 8..11, 13..16, 18..19];
/// The convolutions behind the upsampling between the sizes.
pub const UPSAMPLED: [usize; 3] = [7, 12, 17];
/// The last convolution.
pub const CONV_OUT: usize = 19;
/// TAEF2 has 64, and 256 in pools.
const MOST_CHANNELS: usize = 4096;
const NO_POOLS: &str = "without pools it is a tiny autoencoder of another model: fetch `taef2.safetensors` of \
                        huggingface.co/madebyollin/taef2";
/// What may stand in front of the number of a layer.
const PREFIXES: [&str; 3] = ["decoder.layers.", "decoder.", ""];
/// What a file may hold beside the decoder.
pub const ENCODER: &str = "encoder.";

/// How the layers of a file are called.
#[derive(Debug, Clone, Copy)]
pub struct LayerNames {
    /// What stands in front of its number.
    pub prefix: &'static str,
    /// The number of the first layer that has weights.
    first: usize,
}

/// The sizes of a tiny decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyDecoderSizes {
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Channels of all blocks.
    pub channels: usize,
    /// Channels between the two products of a pool.
    pub pool_channels: usize,
    /// Weights of all layers.
    pub elements: u64,
}

/// The weights of the decoder, by the numbers that its layers have in the reference.
pub struct LayerWeights<'a, B: Backend> {
    pub(super) weights: Weights<'a, B>,
    pub(super) names: LayerNames,
}

impl<'a, B: Backend> LayerWeights<'a, B> {
    /// Those of all layers.
    pub(super) fn all(&self) -> &Weights<'a, B> {
        &self.weights
    }

    /// What a layer is called among them.
    pub(super) fn name(&self, number: usize) -> String {
        self.names.of(number)
    }
}

impl LayerNames {
    /// The name of a layer.
    pub fn of(self, number: usize) -> String {
        format!("{}{}", self.prefix, number + self.first - CONV_IN)
    }

    /// Those of a file with these tensors.
    pub fn find(files: &TensorFiles) -> Option<Self> {
        let all = PREFIXES.into_iter().flat_map(|prefix| [0, CONV_IN].map(|first| Self { prefix, first }));
        let mut fitting = all.filter(|names| {
            let [conv, block] = [CONV_IN, BLOCKS[0].start].map(|number| names.of(number));
            files.shape(&format!("{conv}.weight")).is_some() && files.shape(&format!("{block}.conv.0.weight")).is_some()
        });
        fitting.next()
    }
}

impl TinyDecoderSizes {
    /// Those that the shapes of a file tell.
    ///
    /// Errors when a tensor that tells them is missing, or has other axes, and when a size is none that a tiny decoder
    /// has.
    pub fn of(files: &TensorFiles, names: LayerNames) -> Result<Self> {
        let conv = format!("{}.weight", names.of(CONV_IN));
        let pool = format!("{}.pool.0.weight", names.of(BLOCKS[0].start));
        let (latent_channels, channels) = (files.axis(&conv, 1)?, files.axis(&conv, 0)?);
        let pool_channels = files.axis(&pool, 0).map_err(|e| e.hint_instead(NO_POOLS))?;
        for (name, channels) in [(&conv, channels), (&pool, pool_channels)] {
            if !(1..=MOST_CHANNELS).contains(&channels) {
                return Err(Error::new(format!("tensor `{name}` has {channels} rows, expected 1 to {MOST_CHANNELS}")));
            }
        }
        let is_own = |name: &&str| !name.starts_with(ENCODER);
        let elements = files.names().filter(is_own).filter_map(|name| files.format(name)).map(|(_, values)| values);
        Ok(Self { latent_channels, channels, pool_channels, elements: elements.sum() })
    }

    /// Values of the largest activations that are there at once, for an image of so many pixels.
    pub fn activations(&self, pixels: u64) -> u64 {
        // A block holds its input, what a convolution reads and what it makes; the pools are at an eighth of the sides.
        let (blocks, pools) = (3 * pixels * self.channels as u64, pixels / 64 * 3 * self.pool_channels as u64);
        blocks.max(pools)
    }
}
