//! What the VAE's blocks are made of: images, convolutions and group norms.

use crate::backend::Backend;
use crate::error::{Error, Result};
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

/// A convolution, whose output has the size of its input unless a method says otherwise.
pub(super) struct ConvLayer<B: Backend> {
    weight: ConvKernel<B>, // [out, in, k, k]
    bias: Tensor<B>,       // [1, out]
}

impl<B: Backend> ConvLayer<B> {
    pub(super) fn load(weights: &Weights<'_, B>, name: &str, cin: usize, cout: usize, kernel: usize) -> Result<Self> {
        Ok(Self {
            weight: weights.conv(name, cin, cout, kernel)?,
            bias: weights.vector(&format!("{name}.bias"), cout)?,
        })
    }

    /// The first `cout` of the `all` outputs that the checkpoint has.
    pub(super) fn load_first(
        weights: &Weights<'_, B>,
        name: &str,
        cin: usize,
        [cout, all]: [usize; 2],
        kernel: usize,
    ) -> Result<Self> {
        let weight = weights.view(&format!("{name}.weight"), &[all, cin, kernel, kernel])?.row_range(0..cout);
        let bias = weights.view(&format!("{name}.bias"), &[all])?.row_range(0..cout);
        let backend = weights.backend();
        Ok(Self { weight: ConvKernel::load(backend, &weight)?, bias: backend.upload(&bias.to_f32(), 1, cout)? })
    }

    pub(super) fn forward(&self, x: &Grid<B>) -> Result<Grid<B>> {
        self.forward_by(x, Conv::same(x.height, x.width, self.weight.side()))
    }

    /// A convolution of another geometry, such as one that halves the image.
    pub(super) fn forward_by(&self, x: &Grid<B>, conv: Conv) -> Result<Grid<B>> {
        let made = x.pixels.conv2d(&self.weight, &self.bias, conv)?;
        Ok(Grid::new(made, conv.out_height(), conv.out_width()))
    }

    /// `forward(x)`, which may overwrite x.
    pub(super) fn forward_over(&self, x: Grid<B>) -> Result<Grid<B>> {
        let conv = Conv::same(x.height, x.width, self.weight.side());
        Ok(Grid::new(x.pixels.conv2d_over(&self.weight, &self.bias, conv)?, x.height, x.width))
    }

    /// `forward(silu(norm(x)))`
    pub(super) fn forward_normed(&self, x: &Grid<B>, norm: &GroupNorm<B>) -> Result<Grid<B>> {
        let conv = Conv::same(x.height, x.width, self.weight.side());
        let norm = norm.op(x.statistics.as_ref());
        Ok(Grid::new(x.pixels.norm_conv2d(&norm, &self.weight, &self.bias, conv)?, x.height, x.width))
    }

    /// `forward(silu(norm(x))) + residual`, which may overwrite the residual.
    pub(super) fn forward_normed_add(&self, x: Grid<B>, norm: &GroupNorm<B>, residual: Grid<B>) -> Result<Grid<B>> {
        let Grid { pixels, height, width, statistics } = x;
        let conv = Conv::same(height, width, self.weight.side());
        let norm = norm.op(statistics.as_ref());
        let sum = pixels.norm_conv2d_add(&norm, &self.weight, &self.bias, conv, residual.pixels)?;
        Ok(Grid::new(sum, height, width))
    }

    /// `forward` of the image twice as high and wide; for 3 x 3 only.
    pub(super) fn forward_upsampled(&self, x: Grid<B>) -> Result<Grid<B>> {
        let (height, width) = (x.height, x.width);
        Ok(Grid::new(x.pixels.upsample_conv2d(&self.weight, &self.bias, height, width)?, 2 * height, 2 * width))
    }
}

/// A group norm with its learned weights.
pub(super) struct GroupNorm<B: Backend> {
    weight: Tensor<B>, // [1, channels]
    bias: Tensor<B>,   // [1, channels]
    groups: usize,
}

impl<B: Backend> GroupNorm<B> {
    pub(super) fn load(weights: &Weights<'_, B>, name: &str, channels: usize, groups: usize) -> Result<Self> {
        if !channels.is_multiple_of(groups) {
            return Err(Error::new(format!("norm_num_groups {groups} does not divide {channels} channels"))
                .at("vae/config.json"));
        }
        let weights = weights.at(name);
        Ok(Self { weight: weights.vector("weight", channels)?, bias: weights.vector("bias", channels)?, groups })
    }

    pub(super) fn forward(&self, x: &Grid<B>) -> Result<Tensor<B>> {
        x.pixels.group_norm(&self.op(x.statistics.as_ref()))
    }

    fn op<'a>(&'a self, statistics: Option<&'a B::ChannelStatistics>) -> ops::GroupNorm<'a, B> {
        ops::GroupNorm { weight: &self.weight, bias: &self.bias, groups: self.groups, eps: GROUP_NORM_EPS, statistics }
    }
}
