//! The convolution of an upsampled image, as four convolutions of the image itself with summed weights. Launches
//! cuda/collapse_taps.cu, and cuda/upsample_conv2d_sm90a.cu on Hopper or cuda/conv2d_taps.cu. With too few channels for
//! these, im2col reads the image as if it were upsampled.

use super::conv2d::{Epilogue, rows_seen};
use super::conv2d_input::{Input, Rows};
use super::conv2d_narrow::{NARROW_UPSAMPLED, NarrowShape};
use super::conv2d_output::Output;
use super::conv2d_sm90a::{Call, Shape, Taps, takes};
use super::conv2d_taps::{self, Place};
use crate::backend::cuda::gemm::{Matrix, Product};
use crate::backend::cuda::hopper::Choice;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::{Conv, Conv2d, Convolved};

/// One variable chooses the kernels of all convolutions.
const CHOICE: Choice =
    Choice { op: "upsample_conv2d", variable: "FLUX_CONV2D", file: "upsample_conv2d_sm90a", forms: &[] };
/// The kernels: two taps per side, four sets of weights.
pub(super) const UPSAMPLED: [Shape; 2] = [
    Shape::new("upsample_conv2d_bf16_16x16x128_sm90", 2, [16, 16], [3, 3], 100),
    Shape::new("upsample_conv2d_bf16_16x8x128_sm90", 2, [16, 8], [4, 7], 60),
];

impl Cuda {
    /// Computes `upsample_conv2d` with summed weights, which are rounded to an element.
    pub(super) fn upsample_conv2d(&self, conv2d: Conv2d<'_, Cuda>) -> Result<Convolved<Cuda>> {
        let Conv2d { x, weight: kernel, bias, conv, halo, activation, .. } = conv2d;
        let (Conv { height, width, .. }, weight) = (conv, &kernel.weight().0);
        let mut input = Input::Doubled(Rows::new(&x, halo, conv, self.band_bytes())?);
        let whole = weight.rows().is_multiple_of(8) && x.cols().is_multiple_of(8);
        let hopper = self.hopper_wanted(CHOICE)? && whole && takes(&input, weight, bias);
        let out = self.empty_output(4 * x.rows(), weight.rows())?;
        // Two taps per side; the first are those of even rows and columns.
        let conv = Conv { kernel: 2, pad_before: 1, pad_after: 0, ..Conv::same(height, width, 1) };
        let product = Product { bias: Some(bias.address()), ..self.product(&x, weight, Matrix::new(&out), out.cols()) };
        let taps = whole && conv2d_taps::takes(&input, conv, &product);
        if !hopper && !taps {
            drop(out); // the rows of an output are padded there
            let conv = Conv::same(2 * height, 2 * width, 3);
            return self.convolve(input, kernel, bias, conv, Epilogue { activation, ..Epilogue::default() });
        }
        let collapsed = self.collapse_taps(weight, x.cols())?;
        let mut output = Output::new(&out, None);
        let statistics = if hopper {
            let weight = Taps { address: collapsed.address(), rows: collapsed.rows(), channels: x.cols() };
            let (input, output) = (&mut input, &mut output);
            let call = Call { input, weight, bias, activation, output, height, width };
            match NarrowShape::find(&NARROW_UPSAMPLED, out.cols()) {
                Some(shape) => self.run_hopper_narrow(CHOICE, shape, call).map(|()| None)?,
                None => Some(self.run_hopper_shape(CHOICE, &UPSAMPLED, call)?),
            }
        } else {
            let product = Product { weight: Matrix::new(&collapsed), k: collapsed.cols(), ..product };
            let halo = input.halo();
            // The taps of an output are in three rows of the image.
            let seen = Conv::same(height, width, 3);
            for band in input.bands(height, output.max_band(4 * width, self.band_bytes())) {
                let rows = band.start * width..band.end * width;
                let part = input.show(rows_seen(seen, halo, &rows))?;
                let place = Place { conv, halo, first_row: rows.start, doubled: true };
                let (out, _) = output.open(4 * rows.start..4 * rows.end)?;
                self.run_taps(&part, &place, &Product { m: rows.len(), out, ..product }, activation)?;
                output.close()?;
            }
            None
        };
        Ok(Convolved { pixels: out, statistics })
    }

    /// Sums weights [out, 9 * channels] for pixels that are repeated four times -> [4 * out, 4 * channels].
    fn collapse_taps(&self, weight: &Weight, channels: usize) -> Result<Tensor<Cuda>> {
        let collapsed = self.empty(4 * weight.rows(), 4 * channels)?;
        let launch = self.launch("collapse_taps", "collapse_taps")?;
        let launch = launch.address(weight.address()).long(weight.stride()).vector(&collapsed);
        let launch = launch.int(weight.rows()).int(channels);
        // SAFETY: argument types and order match cuda/collapse_taps.cu; the caller checked channels % 8 == 0 and rows
        // of whole 16 bytes; `collapsed` was made dense above, and has 16 runs of `channels` values for each row of the
        // weight.
        unsafe { launch.run_rows(16 * weight.rows(), channels, true) }?;
        Ok(collapsed)
    }
}
