//! Channels to pixels: the last step of upscalers that compute at the size of their input.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

/// The operands of [`Tensor::pixel_shuffle`].
pub struct PixelShuffle<'a, B: Backend> {
    /// [height * width, channels * scale * scale]
    pub x: &'a Tensor<B>,
    /// [height * width, channels]: each pixel is added to its square in the output.
    pub base: Option<&'a Tensor<B>>,
    /// The side of the square that a pixel becomes.
    pub scale: usize,
    /// Columns of pixels of x.
    pub width: usize,
}

impl<B: Backend> Tensor<B> {
    /// Makes every pixel a square of `scale` x `scale`: channel `(c * scale + dy) * scale + dx` of pixel (y, x) becomes
    /// channel c of pixel (scale * y + dy, scale * x + dx). Adds the pixel of `base`.
    ///
    /// self [height * width, channels * scale * scale], base [height * width, channels] -> [height * scale * width *
    /// scale, channels].
    ///
    /// Errors if the shapes do not fit.
    /// Source: PyTorch `pixel_shuffle`.
    pub fn pixel_shuffle(&self, base: Option<&Self>, scale: usize, width: usize) -> Result<Self> {
        let operands: Vec<_> = [Some(self), base].into_iter().flatten().collect();
        expect_activations("pixel_shuffle", &operands)?;
        let fits = scale > 0 && width > 0 && self.rows().is_multiple_of(width);
        expect(fits && self.cols().is_multiple_of(scale * scale), "pixel_shuffle", || {
            format!(
                "x has shape [{}, {}], expected rows of {width} pixels and squares of {scale}",
                self.rows(),
                self.cols()
            )
        })?;
        let shape = (self.rows(), self.cols() / (scale * scale));
        expect(base.is_none_or(|base| (base.rows(), base.cols()) == shape), "pixel_shuffle", || {
            format!("the base does not have shape [{}, {}]", shape.0, shape.1)
        })?;
        self.backend().pixel_shuffle(PixelShuffle { x: self, base, scale, width })
    }
}
