//! Group norm, silu and a convolution, one after the other, as residual blocks have them.
//!
//! The normed image between them is as large as the input; a backend may make some rows of it at a time.

use super::conv2d::{expect_conv, expect_residual};
use super::group_norm::expect_groups;
use super::{Conv, Convolved, GroupNorm};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::tensor::Tensor;

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
        expect_groups("norm_conv2d", self, norm)?;
        expect_conv("norm_conv2d", self, weight, bias, conv)?;
        self.backend().norm_conv2d(self, norm, weight, bias, conv)
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
        expect_groups("norm_conv2d_add", &self, norm)?;
        expect_conv("norm_conv2d_add", &self, weight, bias, conv)?;
        expect_residual("norm_conv2d_add", &self, &residual, weight, conv)?;
        let backend = self.backend().clone();
        backend.norm_conv2d_add(self, norm, weight, bias, conv, residual)
    }
}

/// What `norm_conv2d` means.
pub fn compose<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    norm: &GroupNorm<'_, B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
) -> Result<Convolved<B>> {
    let normed = b.group_norm_silu(x, norm)?;
    b.conv2d(&normed, weight, bias, conv)
}

/// What `norm_conv2d_add` means.
pub fn compose_add<B: Backend>(
    b: &B,
    x: Tensor<B>,
    norm: &GroupNorm<'_, B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
    residual: Tensor<B>,
) -> Result<Convolved<B>> {
    let normed = b.group_norm_silu(&x, norm)?;
    // This makes room for the sum, which may need memory of its own.
    drop(x);
    b.conv2d_add(&normed, weight, bias, conv, residual)
}
