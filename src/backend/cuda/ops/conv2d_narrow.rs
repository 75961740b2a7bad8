//! Launches the kernels of cuda/conv2d_narrow_sm90a.cuh: 3 x 3 convolutions on Hopper with at most 64 outputs, also of
//! an upsampled image.

use std::ffi::c_void;

use super::conv2d_sm90a::{Call, Image, image_map, rows_around, weight_map};
use super::leaky_relu::activation_arguments;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::Matrix;
use crate::backend::cuda::hopper::Choice;
use crate::backend::cuda::layout::assert_layout;
use crate::error::Result;

/// Threads of a block: two warpgroups that multiply, and one that fetches.
const THREADS: usize = 3 * 128;
/// Width and height of a tile in pixels, and of a box of pixels, which has one more on each side.
const TILE: [usize; 2] = [32, 16];
const BOX: [usize; 2] = [TILE[0] + 2, TILE[1] + 2];
/// Bytes of the pixels of a stage, of 64 channels, and the number of such stages.
const PIXEL_BYTES: usize = (BOX[0] * BOX[1] * 128).next_multiple_of(1024);
const PIXEL_STAGES: usize = 2;

/// A kernel by its `Shape` in cuda/conv2d_narrow_sm90a.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NarrowShape {
    pub(super) name: &'static str,
    taps: usize,
    outs: usize,
    weight_stages: usize,
}

/// The kernels for an image at its own size, with fewer outputs first.
pub(super) const NARROW: [NarrowShape; 3] = [
    NarrowShape { name: "conv2d_bf16_32x16x8_sm90", taps: 3, outs: 8, weight_stages: 18 },
    NarrowShape { name: "conv2d_bf16_32x16x32_sm90", taps: 3, outs: 32, weight_stages: 14 },
    NarrowShape { name: "conv2d_bf16_32x16x64_sm90", taps: 3, outs: 64, weight_stages: 8 },
];
/// The kernel for an upsampled image.
pub(super) const NARROW_UPSAMPLED: [NarrowShape; 1] =
    [NarrowShape { name: "upsample_conv2d_bf16_32x16x64_sm90", taps: 2, outs: 64, weight_stages: 8 }];

impl NarrowShape {
    /// Returns the first of `shapes` with room for a number of outputs; `None` if they are too many.
    pub(super) fn find(shapes: &[Self], outs: usize) -> Option<Self> {
        shapes.iter().copied().find(|shape| outs <= shape.outs)
    }

    /// Returns the number of phases: output pixels of an input pixel, each with its own weights.
    fn places(&self) -> usize {
        if self.taps == 2 { 4 } else { 1 }
    }

    /// Returns the tiles of an image (before upsampling).
    fn tiles(&self, height: usize, width: usize) -> usize {
        self.places() * height.div_ceil(TILE[1]) * width.div_ceil(TILE[0])
    }

    /// As `Shape` in cuda/conv2d_narrow_sm90a.cuh: stages of pixels and of weights, and two barriers for each.
    pub(super) const fn shared_bytes(&self) -> usize {
        PIXEL_STAGES * (PIXEL_BYTES + 16) + self.weight_stages * (self.outs * 128 + 16)
    }
}

/// `Arguments` of cuda/conv2d_narrow_sm90a.cuh.
#[repr(C)]
struct Arguments {
    /// Addresses; of the slopes and the residual 0, if there is none.
    bias: u64,
    slopes: u64,
    residual: u64,
    out: u64,
    /// Row strides.
    ld_residual: u64,
    ld_out: u64,
    activates: i32,
    outs: i32,
}

assert_layout! { Arguments: 56, bias: 0, slopes: 8, residual: 16, out: 24, ld_residual: 32, ld_out: 40, activates: 48,
outs: 52 }

impl Cuda {
    /// Computes `conv2d(x) + residual` and the activation by a kernel of `choice.file`.
    pub(super) fn run_hopper_narrow(&self, choice: Choice, shape: NarrowShape, call: Call<'_, '_, '_>) -> Result<()> {
        let Call { input, weight, bias, activation, output, height, width } = call;
        let out = output.tensor();
        // Load first: a driver that loads this kernel supports tensor maps too.
        let launch = self.launch(choice.file, shape.name)?.shared(shape.shared_bytes() as u32)?;
        let mut weight_map = weight_map(choice, weight, [shape.taps, shape.outs])?;
        let (activates, slopes) = activation_arguments(activation);
        let outs = choice.int(out.cols())?;
        choice.int(out.rows())?;
        let sizes = [choice.int(height)?, choice.int(width)?, choice.int(weight.channels)?];
        let [above, below] = input.halo();
        // Rows of the output for a row of pixels.
        let row = shape.places() * width;
        for band in input.bands(height, output.max_band(row, self.band_bytes())) {
            let part = input.show(rows_around(&band, [above, height, below]))?;
            let mut x_map = image_map(choice, &Image::new(&part.pixels, width), BOX)?;
            let rows = band.start * row..band.end * row;
            let (own, added) = output.open(rows.clone())?;
            // A place as if the rows before the band were there too.
            let from_first = |of: Matrix| of.address.wrapping_sub((rows.start * of.stride * Element::BYTES) as u64);
            let mut epilogue = Arguments {
                bias: bias.address(),
                slopes,
                residual: added.map_or(0, from_first),
                out: from_first(own),
                ld_residual: added.map_or(0, |added| added.stride) as u64,
                ld_out: own.stride as u64,
                activates,
                outs,
            };
            let [first, end] = [band.start, band.end].map(|row| shape.tiles(row, width));
            // Rows are counted from the first of the image, with the halo above.
            let band = [choice.int(first)?, choice.int(end)?, choice.int(part.first)? - choice.int(above)?];
            let mut ints = [sizes, band].concat();
            let mut arguments: Vec<*mut c_void> = vec![
                std::ptr::from_mut(&mut x_map).cast(),
                std::ptr::from_mut(&mut weight_map).cast(),
                std::ptr::from_mut(&mut epilogue).cast(),
            ];
            arguments.extend(ints.iter_mut().map(|int| std::ptr::from_mut(int).cast::<c_void>()));
            let blocks = (end - first).min(self.device().multiprocessors());
            // SAFETY: argument types and order match cuda/conv2d_narrow_sm90a.cuh, and their values live until the call
            // returns; the shared memory is that of the shape. The maps cover exactly the present cells of x and of the
            // weight. The ops checked their shapes; output and residual have rows in multiples of 16 bytes and a row
            // for every output pixel of the band. The bias and the slopes have a value for every column of `out`, which
            // are at most the outputs of a tile, and begin at multiples of four bytes. `out` may be `residual`: the
            // lane that reads values of a pixel writes them later, and no other lane does.
            unsafe { launch.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments) }?;
            output.close()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::conv2d_input::BAND_MULTIPLE;
    use super::*;

    #[test]
    fn shapes_fit_the_shared_memory_of_hopper() {
        for shape in NARROW.iter().chain(&NARROW_UPSAMPLED) {
            assert!(shape.shared_bytes() <= 227 << 10, "{shape:?}");
        }
        assert_eq!(NARROW[2].shared_bytes(), 2 * 77 * 1024 + 8 * 8192 + 10 * 16);
        assert!(BAND_MULTIPLE.is_multiple_of(TILE[1]));
    }

    #[test]
    fn a_shape_has_room_for_the_outputs() {
        let outs = |outs| NarrowShape::find(&NARROW, outs).map(|shape| shape.outs);
        assert_eq!([1, 8, 9, 32, 48, 64, 65].map(outs), [8, 8, 32, 32, 64, 64, 0].map(|n| (n > 0).then_some(n)));
        assert_eq!([(1, 1), (16, 32), (17, 33)].map(|(height, width)| NARROW[0].tiles(height, width)), [1, 1, 4]);
        assert_eq!(NARROW_UPSAMPLED[0].tiles(17, 33), 16);
    }
}
