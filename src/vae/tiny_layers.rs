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
/// The convolutions after each upsampling.
pub const UPSAMPLED: [usize; 3] = [7, 12, 17];
/// The last convolution.
pub const CONV_OUT: usize = 19;
/// TAEF2 has 64 channels, and 256 in pools.
const MAX_CHANNELS: usize = 4096;
const NO_POOLS: &str = "without pools, it is for another model: fetch `taef2.safetensors` of \
                        huggingface.co/madebyollin/taef2";
/// Possible prefixes of a layer's number.
const PREFIXES: [&str; 3] = ["decoder.layers.", "decoder.", ""];
/// The prefix of an encoder's tensors, which a file may also have.
pub const ENCODER: &str = "encoder.";

/// The names of layers in a file.
#[derive(Debug, Clone, Copy)]
pub struct LayerNames {
    /// The prefix of the number.
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
    /// Channels between the two convolutions of a pool.
    pub pool_channels: usize,
    /// Number of weights in all layers.
    pub elements: u64,
}

/// The weights of the decoder, by the layer numbers of the reference.
pub struct LayerWeights<'a, B: Backend> {
    pub(super) weights: Weights<'a, B>,
    pub(super) names: LayerNames,
}

impl<'a, B: Backend> LayerWeights<'a, B> {
    /// Returns the weights of all layers.
    pub(super) fn all(&self) -> &Weights<'a, B> {
        &self.weights
    }

    /// Returns the name of a layer in the file.
    pub(super) fn name(&self, number: usize) -> String {
        self.names.layer(number)
    }
}

impl LayerNames {
    /// Returns the name of a layer.
    pub fn layer(self, number: usize) -> String {
        format!("{}{}", self.prefix, number + self.first - CONV_IN)
    }

    /// Finds the names in a file with these tensors.
    pub fn find(files: &TensorFiles) -> Option<Self> {
        let all = PREFIXES.into_iter().flat_map(|prefix| [0, CONV_IN].map(|first| Self { prefix, first }));
        let mut fitting = all.filter(|names| {
            let [conv, block] = [CONV_IN, BLOCKS[0].start].map(|number| names.layer(number));
            files.shape(&format!("{conv}.weight")).is_some() && files.shape(&format!("{block}.conv.0.weight")).is_some()
        });
        fitting.next()
    }
}

impl TinyDecoderSizes {
    /// Reads the sizes from the shapes in a file.
    ///
    /// Errors if a tensor that determines sizes is missing or has other axes, or if a size is not possible for a tiny
    /// decoder.
    pub fn from_shapes(files: &TensorFiles, names: LayerNames) -> Result<Self> {
        let conv = format!("{}.weight", names.layer(CONV_IN));
        let pool = format!("{}.pool.0.weight", names.layer(BLOCKS[0].start));
        let (latent_channels, channels) = (files.axis(&conv, 1)?, files.axis(&conv, 0)?);
        let pool_channels = files.axis(&pool, 0).map_err(|e| e.hint_instead(NO_POOLS))?;
        for (name, channels) in [(&conv, channels), (&pool, pool_channels)] {
            if !(1..=MAX_CHANNELS).contains(&channels) {
                return Err(Error::new(format!("tensor `{name}` has {channels} rows, expected 1 to {MAX_CHANNELS}")));
            }
        }
        let is_own = |name: &&str| !name.starts_with(ENCODER);
        let elements = files.names().filter(is_own).filter_map(|name| files.format(name)).map(|(_, values)| values);
        Ok(Self { latent_channels, channels, pool_channels, elements: elements.sum() })
    }

    /// Returns the peak number of activation values for an image of `pixels` pixels.
    pub fn activations(&self, pixels: u64) -> u64 {
        // A block holds its input, and a convolution's input and output; the pools are at an eighth of the width and
        // height.
        let (blocks, pools) = (3 * pixels * self.channels as u64, pixels / 64 * 3 * self.pool_channels as u64);
        blocks.max(pools)
    }
}
