//! Group norm over pixels and channels.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect};

impl<B: Backend> Tensor<B> {
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`, mean and variance over all pixels and the channels of a
    /// group.
    ///
    /// self [height * width, channels], weight [1, channels], bias [1, channels]; groups of `channels / groups`
    /// neighbours.
    ///
    /// Errors when the groups do not divide the channels or a vector is not [1, channels].
    pub fn group_norm(&self, weight: &Self, bias: &Self, groups: usize, eps: f32) -> Result<Self> {
        expect_groups(self, weight, bias, groups)?;
        self.backend().group_norm(self, weight, bias, groups, eps)
    }

    /// `silu(group_norm(self))`; shapes and errors as [`Tensor::group_norm`].
    pub fn group_norm_silu(&self, weight: &Self, bias: &Self, groups: usize, eps: f32) -> Result<Self> {
        expect_groups(self, weight, bias, groups)?;
        self.backend().group_norm_silu(self, weight, bias, groups, eps)
    }
}

pub(super) fn expect_groups<B: Backend>(
    x: &Tensor<B>,
    weight: &Tensor<B>,
    bias: &Tensor<B>,
    groups: usize,
) -> Result<()> {
    x.expect_vec("group_norm", "weight", weight)?;
    x.expect_vec("group_norm", "bias", bias)?;
    expect(groups > 0 && x.cols().is_multiple_of(groups), "group_norm", || {
        format!("{groups} groups do not divide {} channels", x.cols())
    })
}

/// What `group_norm_silu` means.
pub fn compose_silu<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    weight: &Tensor<B>,
    bias: &Tensor<B>,
    groups: usize,
    eps: f32,
) -> Result<Tensor<B>> {
    let normed = b.group_norm(x, weight, bias, groups, eps)?;
    b.silu(normed)
}
