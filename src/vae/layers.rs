//! The layers of the VAE's blocks: convolutions and group norms.

use super::grid::Grid;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::{ConvKernel, Weights};
use crate::ops::{self, Conv, Convolved};
use crate::tensor::Tensor;

/// The epsilon of every group norm of the VAE.
/// Source: diffusers `Decoder(resnet_eps=1e-6)`; it is in no config.
const GROUP_NORM_EPS: f32 = 1e-6;

/// A convolution. The output has the size of the input unless a method says otherwise.
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

    /// As `load`, without a bias.
    pub(super) fn load_unbiased(
        weights: &Weights<'_, B>,
        name: &str,
        cin: usize,
        cout: usize,
        kernel: usize,
    ) -> Result<Self> {
        let bias = weights.backend().upload(&vec![0.0; cout], 1, cout)?;
        Ok(Self { weight: weights.conv(name, cin, cout, kernel)?, bias })
    }

    /// Loads the first `cout` of the `all` outputs in the checkpoint.
    pub(super) fn load_first(
        weights: &Weights<'_, B>,
        name: &str,
        cin: usize,
        [cout, all]: [usize; 2],
        kernel: usize,
    ) -> Result<Self> {
        let weight = weights.view(&format!("{name}.weight"), &[all, cin, kernel, kernel])?.row_range(0..cout);
        let bias = weights.view(&format!("{name}.bias"), &[all])?.row_range(0..cout);
        Ok(Self { weight: weights.conv_of(&weight)?, bias: weights.backend().upload(&bias.to_f32(), 1, cout)? })
    }

    pub(super) fn forward(&self, x: &Grid<B>) -> Result<Grid<B>> {
        self.forward_by(x, self.same(x))
    }

    /// Computes `relu(forward(x))`.
    pub(super) fn forward_relu(&self, x: &Grid<B>) -> Result<Grid<B>> {
        let made = x.pixels.conv2d_relu(&self.weight, &self.bias, self.same(x))?;
        Ok(Grid::new(made, x.height, x.width))
    }

    /// Computes `relu(forward(x) + residual)`, which may overwrite the residual.
    pub(super) fn forward_add_relu(&self, x: &Grid<B>, residual: Grid<B>) -> Result<Grid<B>> {
        let residual = residual.into_convolved().pixels;
        let sum = x.pixels.conv2d_add_relu(&self.weight, &self.bias, self.same(x), residual)?;
        Ok(Grid::new(sum, x.height, x.width))
    }

    /// Computes `forward(x) + residual`, which may overwrite the residual.
    pub(super) fn forward_add(&self, x: &Grid<B>, residual: Grid<B>) -> Result<Grid<B>> {
        let residual = residual.into_convolved().pixels;
        let sum = x.pixels.conv2d_add(&self.weight, &self.bias, self.same(x), residual)?;
        Ok(Grid::new(sum, x.height, x.width))
    }

    /// Convolves with another geometry, such as one that halves the image.
    pub(super) fn forward_by(&self, x: &Grid<B>, conv: Conv) -> Result<Grid<B>> {
        let made = x.pixels.conv2d_band(&self.weight, &self.bias, conv, &x.halo(conv)?)?;
        Ok(Grid::with_band(made, conv.out_height(), conv.out_width(), x.band()))
    }

    /// Computes `forward(x)` of a 1 x 1 convolution, which may overwrite x.
    pub(super) fn forward_over(&self, x: Grid<B>) -> Result<Grid<B>> {
        let (conv, band) = (self.same(&x), x.band());
        Ok(Grid::with_band(x.pixels.conv2d_over(&self.weight, &self.bias, conv)?, x.height, x.width, band))
    }

    /// Computes `forward(silu(norm(x)))`.
    pub(super) fn forward_normed(&self, x: &Grid<B>, norm: &GroupNorm<B>) -> Result<Grid<B>> {
        let (reduced, conv) = (x.reduced_statistics()?, self.same(x));
        let norm = norm.op(reduced.as_ref().or(x.statistics()));
        let made = x.pixels.norm_conv2d_band(&norm, &self.weight, &self.bias, conv, &x.halo(conv)?)?;
        Ok(Grid::with_band(made, x.height, x.width, x.band()))
    }

    /// Computes `forward(silu(norm(x))) + residual`, which may overwrite the residual.
    pub(super) fn forward_normed_add(&self, x: Grid<B>, norm: &GroupNorm<B>, residual: Grid<B>) -> Result<Grid<B>> {
        let (height, width, band, conv) = (x.height, x.width, x.band(), self.same(&x));
        let (reduced, halo) = (x.reduced_statistics()?, x.halo(conv)?);
        let Convolved { pixels, statistics } = x.into_convolved();
        let norm = norm.op(reduced.as_ref().or(statistics.as_ref()));
        let sum = pixels.norm_conv2d_add_band(&norm, &self.weight, &self.bias, (conv, &halo), residual.pixels)?;
        Ok(Grid::with_band(sum, height, width, band))
    }

    /// Computes `forward` of the image doubled in height and width; for 3 x 3 only.
    pub(super) fn forward_upsampled(&self, x: Grid<B>) -> Result<Grid<B>> {
        let (halo, band, [height, width]) = (x.halo(self.same(&x))?, x.band(), [x.height, x.width]);
        // By value, so that the small image is freed before the large one is allocated.
        let made = x.pixels.upsample_conv2d_band(&self.weight, &self.bias, [height, width], &halo)?;
        Ok(Grid::with_band(made, 2 * height, 2 * width, band))
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
    eps: f32,
}

impl<B: Backend> GroupNorm<B> {
    pub(super) fn load(weights: &Weights<'_, B>, name: &str, channels: usize, groups: usize) -> Result<Self> {
        if !channels.is_multiple_of(groups) {
            return Err(Error::new(format!("norm_num_groups {groups} does not divide {channels} channels"))
                .at("vae/config.json"));
        }
        let weights = weights.at(name);
        let (weight, bias) = (weights.vector("weight", channels)?, weights.vector("bias", channels)?);
        Ok(Self { weight, bias, groups, eps: GROUP_NORM_EPS })
    }

    /// Sets the epsilon.
    pub(super) fn with_eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }

    pub(super) fn forward(&self, x: &Grid<B>) -> Result<Tensor<B>> {
        let reduced = x.reduced_statistics()?;
        x.pixels.group_norm(&self.op(reduced.as_ref().or(x.statistics())))
    }

    fn op<'a>(&'a self, statistics: Option<&'a B::ChannelStatistics>) -> ops::GroupNorm<'a, B> {
        let Self { weight, bias, groups, eps } = self;
        ops::GroupNorm { weight, bias, groups: *groups, eps: *eps, statistics }
    }
}
