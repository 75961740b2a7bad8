//! What the VAE's blocks are made of: convolutions and group norms.

use super::grid::Grid;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::{ConvKernel, Weights};
use crate::ops::{self, Conv, Convolved};
use crate::tensor::Tensor;

/// The epsilon of every group norm.
/// Source: diffusers `Decoder(resnet_eps=1e-6)`; it is in no config.
const GROUP_NORM_EPS: f32 = 1e-6;

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
        self.forward_by(x, self.same(x))
    }

    /// A convolution of another geometry, such as one that halves the image.
    pub(super) fn forward_by(&self, x: &Grid<B>, conv: Conv) -> Result<Grid<B>> {
        x.convolve(conv, 1, |pixels, conv| pixels.conv2d(&self.weight, &self.bias, conv))
    }

    /// `forward(x)` of a 1 x 1 convolution, which may overwrite x.
    pub(super) fn forward_over(&self, x: Grid<B>) -> Result<Grid<B>> {
        let (conv, band) = (self.same(&x), x.band());
        Ok(Grid::of_band(x.pixels.conv2d_over(&self.weight, &self.bias, conv)?, x.height, x.width, band))
    }

    /// `forward(silu(norm(x)))`
    pub(super) fn forward_normed(&self, x: &Grid<B>, norm: &GroupNorm<B>) -> Result<Grid<B>> {
        let reduced = x.reduced_statistics()?;
        let norm = norm.op(reduced.as_ref().or(x.statistics()));
        x.convolve(self.same(x), 1, |pixels, conv| pixels.norm_conv2d(&norm, &self.weight, &self.bias, conv))
    }

    /// `forward(silu(norm(x))) + residual`, which may overwrite the residual.
    pub(super) fn forward_normed_add(&self, x: Grid<B>, norm: &GroupNorm<B>, residual: Grid<B>) -> Result<Grid<B>> {
        let (height, width, band) = (x.height, x.width, x.band());
        if band.is_some() {
            // The neighbours' rows have no residual here.
            let made = self.forward_normed(&x, norm)?;
            return Ok(Grid::of_band(residual.pixels.add(&made.pixels)?, height, width, band));
        }
        let conv = self.same(&x);
        let Convolved { pixels, statistics } = x.into_convolved();
        let norm = norm.op(statistics.as_ref());
        let sum = pixels.norm_conv2d_add(&norm, &self.weight, &self.bias, conv, residual.pixels)?;
        Ok(Grid::new(sum, height, width))
    }

    /// `forward` of the image twice as high and wide; for 3 x 3 only.
    pub(super) fn forward_upsampled(&self, x: Grid<B>) -> Result<Grid<B>> {
        let (conv, (height, width)) = (self.same(&x), (x.height, x.width));
        if x.band().is_none() {
            // By value, so that the small image is gone before the large one is made.
            let made = x.pixels.upsample_conv2d(&self.weight, &self.bias, height, width)?;
            return Ok(Grid::new(made, 2 * height, 2 * width));
        }
        x.convolve(conv, 2, |pixels, Conv { height, width, .. }| {
            pixels.row_view(0..pixels.rows()).upsample_conv2d(&self.weight, &self.bias, height, width)
        })
    }

    fn same(&self, x: &Grid<B>) -> Conv {
        Conv::same(x.height, x.width, self.weight.side())
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
        let reduced = x.reduced_statistics()?;
        x.pixels.group_norm(&self.op(reduced.as_ref().or(x.statistics())))
    }

    fn op<'a>(&'a self, statistics: Option<&'a B::ChannelStatistics>) -> ops::GroupNorm<'a, B> {
        ops::GroupNorm { weight: &self.weight, bias: &self.bias, groups: self.groups, eps: GROUP_NORM_EPS, statistics }
    }
}
