//! Group norm over pixels and channels.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

/// The parameters of a group norm; the learned weights are [1, channels] each.
pub struct GroupNorm<'a, B: Backend> {
    /// The factor of each channel.
    pub weight: &'a Tensor<B>,
    /// The summand of each channel.
    pub bias: &'a Tensor<B>,
    /// Number of groups: runs of channels that share mean and variance.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Channel statistics of the input, if they are known; see [`Convolved`](super::Convolved::statistics).
    pub statistics: Option<&'a B::ChannelStatistics>,
}

impl<B: Backend> Tensor<B> {
    /// Computes `(x - mean) / sqrt(variance + eps) * weight + bias`, with mean and variance over all pixels and the
    /// channels of a group.
    ///
    /// self [height * width, channels] -> the same shape; groups of `channels / groups` neighbours.
    ///
    /// Errors if the groups do not divide the channels or a vector is not [1, channels].
    pub fn group_norm(&self, norm: &GroupNorm<'_, B>) -> Result<Self> {
        expect_groups("group_norm", self, norm)?;
        self.backend().group_norm(self, norm)
    }

    /// Computes `silu(group_norm(self))`; shapes and errors as [`Tensor::group_norm`].
    pub fn group_norm_silu(&self, norm: &GroupNorm<'_, B>) -> Result<Self> {
        expect_groups("group_norm_silu", self, norm)?;
        self.backend().group_norm_silu(self, norm)
    }
}

pub(super) fn expect_groups<B: Backend>(op: &str, x: &Tensor<B>, norm: &GroupNorm<'_, B>) -> Result<()> {
    expect_activations(op, &[x, norm.weight, norm.bias])?;
    x.expect_vec(op, "weight", norm.weight)?;
    x.expect_vec(op, "bias", norm.bias)?;
    expect(norm.groups > 0 && x.cols().is_multiple_of(norm.groups), op, || {
        format!("{} groups do not divide {} channels", norm.groups, x.cols())
    })
}

/// Defines `group_norm_silu` by simpler ops.
pub fn compose_silu<B: Backend>(b: &B, x: &Tensor<B>, norm: &GroupNorm<'_, B>) -> Result<Tensor<B>> {
    let normed = b.group_norm(x, norm)?;
    b.silu(normed)
}
