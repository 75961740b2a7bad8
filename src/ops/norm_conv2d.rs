//! Group norm, silu and a convolution, as in residual blocks.
//!
//! The normed image between them is as large as the input, so a backend may compute a few rows of it at a time.

use super::{Conv, Conv2d, Convolved, GroupNorm, Halo};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::tensor::Tensor;

impl<B: Backend> Tensor<B> {
    /// Computes `conv2d(silu(group_norm(self)))`.
    ///
    /// Shapes as [`Tensor::group_norm`] and [`Tensor::conv2d`]. Errors as both.
    pub fn norm_conv2d(
        &self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
    ) -> Result<Convolved<B>> {
        Conv2d { norm: Some(norm), ..Conv2d::from_view(self, weight, bias, conv) }.run("norm_conv2d")
    }

    /// `norm_conv2d` of a band of an image, with a halo instead of zeros. The halo is normed as well.
    ///
    /// Errors as [`Tensor::norm_conv2d`] and [`Tensor::conv2d_band`], and if there is a halo but the norm has no
    /// statistics of the whole image.
    pub fn norm_conv2d_band(
        &self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
        halo: &Halo<B>,
    ) -> Result<Convolved<B>> {
        let conv2d = Conv2d::from_view(self, weight, bias, conv);
        Conv2d { norm: Some(norm), halo: Some(halo), ..conv2d }.run("norm_conv2d")
    }

    /// Computes `norm_conv2d(self) + residual`. The result may overwrite `residual`.
    ///
    /// Errors as [`Tensor::norm_conv2d`], and if `residual` differs from the output in shape.
    pub fn norm_conv2d_add(
        self,
        norm: &GroupNorm<'_, B>,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
        residual: Self,
    ) -> Result<Convolved<B>> {
        let conv2d = Conv2d::new(self, weight, bias, conv);
        Conv2d { norm: Some(norm), residual: Some(residual), ..conv2d }.run("norm_conv2d_add")
    }

    /// Computes `norm_conv2d_band(self) + residual`. The result may overwrite `residual`.
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
        let conv2d = Conv2d::new(self, weight, bias, conv);
        Conv2d { norm: Some(norm), halo: Some(halo), residual: Some(residual), ..conv2d }.run("norm_conv2d_add")
    }
}
