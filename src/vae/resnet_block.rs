//! A residual block of the VAE.

use super::grid::Grid;
use super::layers::{ConvLayer, GroupNorm};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Weights;

/// `conv2(silu(norm2(conv1(silu(norm1(x)))))) + shortcut(x)`
pub struct ResnetBlock<B: Backend> {
    norm1: GroupNorm<B>,
    conv1: ConvLayer<B>,
    norm2: GroupNorm<B>,
    conv2: ConvLayer<B>,
    conv_shortcut: Option<ConvLayer<B>>,
}

impl<B: Backend> ResnetBlock<B> {
    /// Loads one block; it has a shortcut convolution exactly when the channels change.
    pub fn load(weights: &Weights<'_, B>, cin: usize, cout: usize, groups: usize) -> Result<Self> {
        Ok(Self {
            norm1: GroupNorm::load(weights, "norm1", cin, groups)?,
            conv1: ConvLayer::load(weights, "conv1", cin, cout, 3)?,
            norm2: GroupNorm::load(weights, "norm2", cout, groups)?,
            conv2: ConvLayer::load(weights, "conv2", cout, cout, 3)?,
            conv_shortcut: (cin != cout)
                .then(|| ConvLayer::load(weights, "conv_shortcut", cin, cout, 1))
                .transpose()?,
        })
    }

    /// Runs the block on x [height * width, in] -> [height * width, out].
    pub fn forward(&self, x: Grid<B>) -> Result<Grid<B>> {
        let h = self.conv1.forward_normed(&x, &self.norm1)?;
        let shortcut = match &self.conv_shortcut {
            Some(conv) => conv.forward_over(x)?,
            None => x,
        };
        self.conv2.forward_normed_add(h, &self.norm2, shortcut)
    }
}
