//! The blend that inpainting applies after a step of the sampler.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations, expect_f32};

/// The operands of [`Tensor::inpaint_blend`].
pub struct InpaintBlend<'a, B: Backend> {
    /// [tokens, channels]. The result may overwrite it.
    pub x: Tensor<B>,
    /// [tokens, channels]
    pub noise: &'a Tensor<B>,
    /// [tokens, channels]
    pub image: &'a Tensor<B>,
    /// [tokens, 1]
    pub mask: &'a Tensor<B>,
    /// [1, 1] in float32
    pub sigma: &'a Tensor<B>,
}

impl<B: Backend> Tensor<B> {
    /// Computes `mask * self + (1 - mask) * (sigma * noise + (1 - sigma) * image)`: the area that is not repainted
    /// becomes the image again, as noisy as the rest.
    ///
    /// self, noise and image [tokens, channels], mask [tokens, 1] in 0..1, sigma [1, 1] in 0..1 and in float32 on
    /// every backend -> as self. In float32, rounded once. The result overwrites self if it is writable.
    ///
    /// Errors if the shapes do not fit.
    /// Source: diffusers `Flux2KleinInpaintPipeline.__call__`.
    pub fn inpaint_blend(self, noise: &Self, image: &Self, mask: &Self, sigma: &Self) -> Result<Self> {
        const OP: &str = "inpaint_blend";
        expect_activations(OP, &[&self, noise, image, mask])?;
        expect_f32(OP, self.backend(), &[sigma])?;
        self.expect_same(OP, "noise", noise)?;
        self.expect_same(OP, "image", image)?;
        for (name, x, rows) in [("mask", mask, self.rows()), ("sigma", sigma, 1)] {
            expect((x.rows(), x.cols()) == (rows, 1), OP, || {
                format!("{name} has shape [{}, {}], expected [{rows}, 1]", x.rows(), x.cols())
            })?;
        }
        let b = self.backend().clone();
        b.inpaint_blend(InpaintBlend { x: self, noise, image, mask, sigma })
    }
}
