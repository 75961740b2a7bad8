//! Packed latents to VAE latents.

use super::Patches;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations, expect_f32};

impl<B: Backend> Tensor<B> {
    /// Converts packed latents to VAE latents: `x * std + mean`, then channel `4 c + 2 dy + dx` of token (y, x)
    /// becomes channel c of pixel (2 y + dy, 2 x + dx).
    ///
    /// self [height * width, 4 * channels], mean and std [1, 4 * channels] in float32 -> [2 * height * 2 * width,
    /// channels].
    ///
    /// Errors if the shapes do not fit.
    /// Source: FLUX.2 reference `_unpatchify_latents` and the batch-norm statistics of its VAE.
    pub fn unpatchify(&self, mean: &Self, std: &Self, height: usize, width: usize) -> Result<Self> {
        expect_activations("unpatchify", &[self])?;
        expect_f32("unpatchify", self.backend(), &[mean, std])?;
        self.expect_vec("unpatchify", "mean", mean)?;
        self.expect_vec("unpatchify", "std", std)?;
        expect(self.rows() == height * width && self.cols().is_multiple_of(4), "unpatchify", || {
            format!(
                "x has shape [{}, {}], expected {height} x {width} rows and four columns per channel",
                self.rows(),
                self.cols()
            )
        })?;
        self.backend().unpatchify(Patches { x: self, mean, std, height, width })
    }
}
