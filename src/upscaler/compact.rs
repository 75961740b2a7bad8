//! The Compact networks of Real-ESRGAN: convolutions and PReLU at the size of the image, then squares of pixels.
//!
//! ```text
//! y = body.0(x); repeat: y = body.2i(prelu(y)); pixel_shuffle(y) + x, each pixel as a square
//! ```
//!
//! Source: Real-ESRGAN `SRVGGNetCompact`.

use super::Step;
use super::layers::{Affine, ConvLayer, PLAIN};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Weights;
use crate::tensor::Tensor;

/// The sizes of a network, as its shapes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CompactSizes {
    /// Channels of the hidden layers.
    pub features: usize,
    /// Layers with an activation; one more follows.
    pub layers: usize,
    pub scale: usize,
}

pub(super) struct Compact<B: Backend> {
    /// Each convolution with the slopes of its PReLU.
    layers: Vec<(ConvLayer<B>, Tensor<B>)>,
    last: ConvLayer<B>,
    scale: usize,
}

impl<B: Backend> Compact<B> {
    pub(super) fn load(weights: &Weights<'_, B>, sizes: CompactSizes) -> Result<Self> {
        let CompactSizes { features, layers, scale } = sizes;
        let conv = |i: usize, cin: usize, cout: usize, affine| {
            ConvLayer::load(weights, &format!("body.{i}"), [cin, cout, 3], true, affine)
        };
        let layer = |i: usize| {
            let slopes = weights.vector(&format!("body.{}.weight", 2 * i + 1), features)?;
            Ok((conv(2 * i, if i == 0 { 3 } else { features }, features, PLAIN)?, slopes))
        };
        // The base is in -1..1 and has the offset already.
        let affine = Affine { factor: 2.0, offset: 0.0 };
        Ok(Self {
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            last: conv(2 * layers, features, 3 * scale * scale, affine)?,
            scale,
        })
    }

    pub(super) fn parts(&self) -> usize {
        self.layers.len()
    }

    /// Computes pixels in -1..1 from x [height * width, 3] in 0..1, and the same pixels in -1..1.
    pub(super) fn forward(
        &self,
        mut x: Tensor<B>,
        base: Tensor<B>,
        size: [usize; 2],
        step: &mut Step<'_>,
    ) -> Result<Tensor<B>> {
        for (conv, slopes) in &self.layers {
            step.next()?;
            x = conv.forward_leaky(&x, size, slopes)?;
        }
        self.last.forward(&x, size)?.pixel_shuffle(Some(&base), self.scale, size[1])
    }
}
