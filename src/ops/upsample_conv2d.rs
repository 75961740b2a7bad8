//! The convolution of an upsampled image.

use super::{Activation, Conv, Conv2d, Convolved, Halo};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::tensor::Tensor;

impl<B: Backend> Tensor<B> {
    /// 3 x 3 convolution of the image doubled in height and width, every pixel a square of two by two.
    ///
    /// self [height * width, in], weight [out, in, 3, 3], bias [1, out] -> [2 * height * 2 * width, out]. An output
    /// sees four different pixels. A kernel may sum the 1, 2 or 4 weights of the same pixel in float32, and round the
    /// sum to the dtype of weights: one rounding more than in the definition.
    ///
    /// Errors if the shapes do not fit.
    pub fn upsample_conv2d(
        self,
        weight: &ConvKernel<B>,
        bias: &Self,
        height: usize,
        width: usize,
    ) -> Result<Convolved<B>> {
        self.upsample_conv2d_band(weight, bias, [height, width], &Halo::default())
    }

    /// Computes `leaky_relu(upsample_conv2d(self), slope)`.
    ///
    /// Errors as [`Tensor::upsample_conv2d`], and if `slope` is not [1, out].
    pub fn upsample_conv2d_leaky_relu(
        self,
        weight: &ConvKernel<B>,
        bias: &Self,
        [height, width]: [usize; 2],
        slope: &Self,
    ) -> Result<Convolved<B>> {
        let conv2d = Conv2d::new(self, weight, bias, Conv::same(height, width, 3));
        let activation = Some(Activation::LeakyRelu(slope));
        Conv2d { upsample: true, activation, ..conv2d }.run("upsample_conv2d_leaky_relu")
    }

    /// `upsample_conv2d` of a band of an image, with a halo of one row of pixels on each side instead of zeros.
    ///
    /// Errors if the shapes do not fit.
    pub fn upsample_conv2d_band(
        self,
        weight: &ConvKernel<B>,
        bias: &Self,
        [height, width]: [usize; 2],
        halo: &Halo<B>,
    ) -> Result<Convolved<B>> {
        let conv2d = Conv2d::new(self, weight, bias, Conv::same(height, width, 3));
        Conv2d { upsample: true, halo: Some(halo), ..conv2d }.run("upsample_conv2d")
    }
}
