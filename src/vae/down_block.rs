//! A block of the encoder.

use super::ResnetBlock;
use super::grid::Grid;
use super::layers::ConvLayer;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Weights;
use crate::ops::Conv;

/// Residual blocks, and a convolution that halves the image, except in the last block.
pub struct DownBlock<B: Backend> {
    resnets: Vec<ResnetBlock<B>>,
    downsampler: Option<ConvLayer<B>>,
}

impl<B: Backend> DownBlock<B> {
    /// Loads the block, with `layers` residual blocks.
    pub fn load(
        weights: &Weights<'_, B>,
        [cin, cout]: [usize; 2],
        layers: usize,
        groups: usize,
        halves: bool,
    ) -> Result<Self> {
        let resnet =
            |i: usize| ResnetBlock::load(&weights.at("resnets").at(i), if i == 0 { cin } else { cout }, cout, groups);
        Ok(Self {
            resnets: (0..layers).map(resnet).collect::<Result<_>>()?,
            downsampler: halves
                .then(|| ConvLayer::load(&weights.at("downsamplers.0"), "conv", cout, cout, 3))
                .transpose()?,
        })
    }

    /// Runs the block on x [height * width, in] -> [height / 2 * width / 2, out], or [height * width, out] if it does
    /// not halve.
    pub fn forward(&self, mut x: Grid<B>) -> Result<Grid<B>> {
        for resnet in &self.resnets {
            x = resnet.forward(x)?;
        }
        match &self.downsampler {
            Some(conv) => conv.forward_by(&x, Conv::halve(x.height, x.width)),
            None => Ok(x),
        }
    }
}
