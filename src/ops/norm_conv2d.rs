//! Group norm, silu and a convolution, one after the other, as residual blocks have them.
//!
//! The normed image between them is as large as the input; a backend may make some rows of it at a time.

use super::conv2d::{compose_any_band, expect_conv, expect_halo, expect_residual};
use super::group_norm::expect_groups;
use super::halo::Halo;
use super::{Conv, Convolved, GroupNorm};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::tensor::{Tensor, expect};

impl<B: Backend> Tensor<B> {
    /// `conv2d(silu(group_norm(self)))`
    ///
    /// Shapes as [`Tensor::group_norm`] and [`Tensor::conv2d`]. Errors as both.
    pub fn norm_conv2d(
        &self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
    ) -> Result<Convolved<B>> {
        self.norm_conv2d_band(norm, weight, bias, conv, &Halo::default())
    }

    /// `norm_conv2d` of a band of an image, with a halo in place of zeros, which is normed as well.
    ///
    /// Errors as [`Tensor::norm_conv2d`] and [`Tensor::conv2d_band`], and when there is a halo and the norm has not the
    /// statistics of the whole image.
    pub fn norm_conv2d_band(
        &self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
        halo: &Halo<B>,
    ) -> Result<Convolved<B>> {
        expect_groups("norm_conv2d", self, norm)?;
        expect_conv("norm_conv2d", self, weight, bias, conv)?;
        expect_normed_halo("norm_conv2d", self, norm, conv, halo)?;
        self.backend().norm_conv2d(self, norm, weight, bias, conv, halo)
    }

    /// `norm_conv2d(self) + residual`. The result may overwrite `residual`.
    ///
    /// Errors as [`Tensor::norm_conv2d`], and when `residual` is not of the output's shape.
    pub fn norm_conv2d_add(
        self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
        residual: Self,
    ) -> Result<Convolved<B>> {
        self.norm_conv2d_add_band(norm, weight, bias, (conv, &Halo::default()), residual)
    }

    /// `norm_conv2d_band(self) + residual`. The result may overwrite `residual`.
    ///
    /// Errors as [`Tensor::norm_conv2d_band`] and [`Tensor::norm_conv2d_add`].
    pub fn norm_conv2d_add_band(
        self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        (conv, halo): (Conv, &Halo<B>),
        residual: Self,
    ) -> Result<Convolved<B>> {
        expect_groups("norm_conv2d_add", &self, norm)?;
        expect_conv("norm_conv2d_add", &self, weight, bias, conv)?;
        expect_normed_halo("norm_conv2d_add", &self, norm, conv, halo)?;
        expect_residual("norm_conv2d_add", &self, &residual, weight, conv)?;
        let backend = self.backend().clone();
        backend.norm_conv2d_add(self, norm, weight, bias, (conv, halo), residual)
    }
}

fn expect_normed_halo<B: Backend>(
    op: &str,
    x: &Tensor<B>,
    norm: &GroupNorm<'_, B>,
    conv: Conv,
    halo: &Halo<B>,
) -> Result<()> {
    expect_halo(op, x, conv, halo)?;
    expect(halo.is_empty() || norm.statistics.is_some(), op, || {
        "a band with a halo has a norm by the statistics of the whole image".to_string()
    })
}

/// What `norm_conv2d` means.
pub fn compose<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    norm: &GroupNorm<'_, B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
    halo: &Halo<B>,
) -> Result<Convolved<B>> {
    let convolve = |x: &Tensor<B>, conv: Conv| {
        let normed = b.group_norm_silu(x, norm)?;
        b.conv2d(&normed, weight, bias, conv, &Halo::default())
    };
    if halo.is_empty() {
        return convolve(x, conv);
    }
    compose_any_band(x, (conv, halo), 1, |x, conv| convolve(&x, conv))
}

/// What `norm_conv2d_add` means.
pub fn compose_add<B: Backend>(
    b: &B,
    x: Tensor<B>,
    norm: &GroupNorm<'_, B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    (conv, halo): (Conv, &Halo<B>),
    residual: Tensor<B>,
) -> Result<Convolved<B>> {
    if !halo.is_empty() {
        let made = compose(b, &x, norm, weight, bias, conv, halo)?;
        return b.add(residual, &made.pixels).map(Convolved::from);
    }
    let normed = b.group_norm_silu(&x, norm)?;
    // This makes room for the sum, which may need memory of its own.
    drop(x);
    b.conv2d_add(&normed, weight, bias, conv, residual)
}
