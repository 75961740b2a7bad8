//! `norm_conv2d` and `norm_conv2d_add`: launches cuda/group_norm.cu and the convolutions. A large image is normed in
//! bands of pixel rows, each just before the convolution that reads it. Any number of bands gives the same bytes: see
//! [`Input`].

use std::sync::atomic::Ordering;

use super::conv2d::WORKSPACE_BYTES;
use super::conv2d_input::{Input, Window};
use super::conv2d_sm90a::CHOICE;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::ops::{Conv, Convolved, GroupNorm};

/// The most memory that a norm of an image of `whole` bytes takes while it is convolved, in bands of `limit` bytes. It
/// is an estimate, which leaves out the few im2col rows of a small image.
fn need(whole: u64, limit: u64, im2col: bool) -> u64 {
    if whole <= limit.saturating_mul(2) {
        return whole;
    }
    limit + if im2col { WORKSPACE_BYTES as u64 } else { 0 }
}

impl Cuda {
    /// Limits bands to `bytes` bytes, in ops that make an image in bands. This changes how much memory they need, and
    /// not their results.
    pub fn limit_bands(&self, bytes: usize) {
        self.0.band_bytes.store(bytes, Ordering::Relaxed);
    }

    fn band_bytes(&self) -> usize {
        self.0.band_bytes.load(Ordering::Relaxed)
    }

    /// See [`crate::backend::Backend::norm_conv2d_bytes`].
    pub(crate) fn norm_conv2d_need(&self, whole: u64) -> u64 {
        // The first convolution reports an error of the variable.
        let im2col = !self.hopper_wanted(CHOICE).unwrap_or(false);
        need(whole, self.band_bytes() as u64, im2col)
    }

    /// `conv2d(silu(group_norm(x)))`, `+ residual` where there is one.
    pub(crate) fn norm_conv2d_op(
        &self,
        x: &Tensor<Cuda>,
        norm: &GroupNorm<'_, Cuda>,
        weight: &ConvKernel<Cuda>,
        bias: &Tensor<Cuda>,
        conv: Conv,
        residual: Option<Tensor<Cuda>>,
    ) -> Result<Convolved<Cuda>> {
        let coefficients = self.group_norm_coefficients(x, norm)?;
        let window = Window::new(x, coefficients, [conv.height, conv.width], conv.kernel, self.band_bytes());
        self.conv2d_op(Input::Normed(window), weight, bias, conv, residual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_is_the_whole_or_a_band() {
        assert_eq!(need(500, 256, false), 500);
        assert_eq!(need(513, 256, false), 256);
        assert_eq!(need(1 << 40, u64::MAX, false), 1 << 40);
        assert_eq!(need(512, 256, true), 512);
        assert_eq!(need(1 << 33, 256 << 20, true), 512 << 20);
    }
}
