//! Convolutions of a normed image: launches cuda/group_norm.cu and the convolutions. A large image is normed in bands
//! of pixel rows, each just before the convolution that reads it. Any number of bands gives the same bytes: see
//! [`Input`].

use std::sync::atomic::Ordering;

use super::conv2d::Epilogue;
use super::conv2d_input::{Input, Window};
use super::conv2d_sm90a::CHOICE;
use crate::backend::cuda::Cuda;
use crate::error::Result;
use crate::ops::{Conv2d, Convolved, GroupNorm};

impl Cuda {
    /// Limits bands to `bytes` bytes, in ops that compute an image in bands. This changes their memory, and not their
    /// results.
    pub fn limit_bands(&self, bytes: usize) {
        self.0.band_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn band_bytes(&self) -> usize {
        self.0.band_bytes.load(Ordering::Relaxed)
    }

    /// Returns `true` if convolutions copy their input to im2col rows.
    pub(crate) fn copies_im2col(&self) -> bool {
        // The first convolution reports an error in the variable.
        !self.hopper_wanted(CHOICE).unwrap_or(false)
    }

    /// Computes a convolution of `silu(group_norm(x))`.
    pub(super) fn norm_conv2d(&self, conv2d: Conv2d<'_, Cuda>, norm: &GroupNorm<'_, Cuda>) -> Result<Convolved<Cuda>> {
        let Conv2d { x, weight, bias, conv, halo, residual, activation, .. } = conv2d;
        let coefficients = self.group_norm_coefficients(&x, norm)?;
        let window = Window::new(&x, halo, Some(coefficients), conv, self.band_bytes());
        self.convolve(Input::Normed(window), weight, bias, conv, Epilogue { residual, activation, out: None })
    }
}
