//! Launches cuda/upsample_conv2d_sm90a.cu, the convolution of an upsampled image on Hopper. On other GPUs im2col reads
//! the image as if it were upsampled.

use super::conv2d::Epilogue;
use super::conv2d_input::{Between, Input};
use super::conv2d_sm90a::{Call, Shape, Taps, takes};
use crate::backend::cuda::hopper::Choice;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::{Conv, Conv2d, Convolved};

/// One variable chooses the kernels of all convolutions.
const CHOICE: Choice =
    Choice { op: "upsample_conv2d", variable: "FLUX_CONV2D", file: "upsample_conv2d_sm90a", forms: &[] };
/// The kernels: two taps a side, four sets of weights.
pub(super) const UPSAMPLED: [Shape; 2] = [
    Shape::new("upsample_conv2d_bf16_16x16x128_sm90", 2, [16, 16, 128], [3, 3], 100),
    Shape::new("upsample_conv2d_bf16_16x8x128_sm90", 2, [16, 8, 128], [4, 7], 60),
];

impl Cuda {
    /// `upsample_conv2d` with sums of the weights, which round to bf16.
    pub(super) fn upsample_conv2d(&self, conv2d: Conv2d<'_, Cuda>) -> Result<Convolved<Cuda>> {
        let Conv2d { x, weight: kernel, bias, conv: Conv { height, width, .. }, halo, .. } = conv2d;
        let (mut input, weight) = (Input::Doubled(Between::new(&x, halo, width)?), &kernel.weight().0);
        if !self.hopper_wanted(CHOICE)? || !takes(&input, weight, bias) || !weight.rows().is_multiple_of(8) {
            return self.convolve(input, kernel, bias, Conv::same(2 * height, 2 * width, 3), Epilogue::default());
        }
        let collapsed = self.collapse_taps(weight, x.cols())?;
        let out = self.empty(4 * x.rows(), weight.rows())?;
        let weight = Taps { address: collapsed.address(), rows: collapsed.rows(), channels: x.cols() };
        let call = Call { input: &mut input, weight, bias, residual: None, relu: false, out: &out, height, width };
        let statistics = self.run_hopper_shape(CHOICE, &UPSAMPLED, call)?;
        Ok(Convolved { pixels: out, statistics })
    }

    /// Weights [out, 9 * channels] summed for pixels that are repeated four times -> [4 * out, 4 * channels].
    fn collapse_taps(&self, weight: &Weight, channels: usize) -> Result<Tensor<Cuda>> {
        let collapsed = self.empty(4 * weight.rows(), 4 * channels)?;
        let launch = self.launch(CHOICE.file, "upsample_conv2d_taps_bf16")?;
        let launch = launch.address(weight.address()).long(weight.stride()).vector(&collapsed);
        let launch = launch.int(weight.rows()).int(channels);
        // SAFETY: argument types and order match cuda/upsample_conv2d_sm90a.cu; `takes` found rows of whole 16 bytes,
        // so channels % 8 == 0; `collapsed` was made dense above, and has 16 runs of `channels` values for each row of
        // the weight.
        unsafe { launch.run_rows(16 * weight.rows(), channels, true) }?;
        Ok(collapsed)
    }
}
