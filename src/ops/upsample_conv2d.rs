//! The convolution of an upsampled image.

use super::Conv;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect};

impl<B: Backend> Tensor<B> {
    /// 3 x 3 convolution of the image twice as high and wide, every pixel a square of two by two.
    ///
    /// self [height * width, in], weight [out, 9 * in] as [`Backend::conv_weight`] orders it, bias [1, out] -> [2 *
    /// height * 2 * width, out]. An output sees four different pixels. A kernel may sum the weights that fall on one
    /// (1, 2 or 4), in float32, and round the sum to the dtype of weights: one rounding that the definition has not.
    ///
    /// Errors when the shapes do not fit.
    pub fn upsample_conv2d(self, weight: &Self, bias: &Self, height: usize, width: usize) -> Result<Self> {
        let fits = self.rows() == height * width
            && weight.cols() == 9 * self.cols()
            && bias.rows() == 1
            && bias.cols() == weight.rows();
        expect(fits, "upsample_conv2d", || {
            let [x, weight] = [&self, weight].map(|tensor| format!("[{}, {}]", tensor.rows(), tensor.cols()));
            format!(
                "x {x}, weight {weight}, bias [{}, {}] do not fit an image of {height} x {width}",
                bias.rows(),
                bias.cols()
            )
        })?;
        let backend = self.backend().clone();
        backend.upsample_conv2d(self, weight, bias, height, width)
    }
}

/// What `upsample_conv2d` means.
pub fn compose<B: Backend>(
    b: &B,
    x: Tensor<B>,
    weight: &Tensor<B>,
    bias: &Tensor<B>,
    height: usize,
    width: usize,
) -> Result<Tensor<B>> {
    let upsampled = b.upsample(&x, height, width)?;
    // The small image is not needed while the convolution makes a third.
    drop(x);
    b.conv2d(&upsampled, weight, bias, Conv::same(2 * height, 2 * width, 3))
}
