//! The convolution of an upsampled image.

use super::conv2d::{compose_any_band, expect_conv, expect_halo};
use super::halo::Halo;
use super::{Conv, Convolved};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::tensor::Tensor;

impl<B: Backend> Tensor<B> {
    /// 3 x 3 convolution of the image twice as high and wide, every pixel a square of two by two.
    ///
    /// self [height * width, in], weight [out, in, 3, 3], bias [1, out] -> [2 * height * 2 * width, out]. An output
    /// sees four different pixels. A kernel may sum the 1, 2 or 4 weights that fall on the same pixel, in float32, and
    /// round the sum to the dtype of weights, which is one rounding more than the definition has.
    ///
    /// Errors when the shapes do not fit.
    pub fn upsample_conv2d(
        self,
        weight: &ConvKernel<B>,
        bias: &Self,
        height: usize,
        width: usize,
    ) -> Result<Convolved<B>> {
        self.upsample_conv2d_band(weight, bias, [height, width], &Halo::default())
    }

    /// `upsample_conv2d` of a band of an image, with a halo of one row of pixels on each side in place of zeros.
    ///
    /// Errors when the shapes do not fit.
    pub fn upsample_conv2d_band(
        self,
        weight: &ConvKernel<B>,
        bias: &Self,
        [height, width]: [usize; 2],
        halo: &Halo<B>,
    ) -> Result<Convolved<B>> {
        let conv = Conv::same(height, width, 3);
        expect_conv("upsample_conv2d", &self, weight, bias, conv)?;
        expect_halo("upsample_conv2d", &self, conv, halo)?;
        let backend = self.backend().clone();
        backend.upsample_conv2d(self, weight, bias, [height, width], halo)
    }
}

/// What `upsample_conv2d` means.
pub fn compose<B: Backend>(
    b: &B,
    x: Tensor<B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    [height, width]: [usize; 2],
    halo: &Halo<B>,
) -> Result<Convolved<B>> {
    if !halo.is_empty() {
        return compose_any_band(&x, (Conv::same(height, width, 3), halo), 2, |x, conv| {
            b.upsample_conv2d(x, weight, bias, [conv.height, conv.width], &Halo::default())
        });
    }
    let upsampled = b.upsample(&x, height, width)?;
    // The small image is dropped before the convolution allocates its result.
    drop(x);
    b.conv2d(&upsampled, weight, bias, Conv::same(2 * height, 2 * width, 3), halo)
}
