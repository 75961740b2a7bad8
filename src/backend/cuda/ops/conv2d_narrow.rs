//! Launches the kernels of cuda/conv2d_narrow_sm90a.cuh: 3 x 3 convolutions on Hopper with at most 64 outputs.

use std::ffi::c_void;

use super::conv2d_sm90a::{CHOICE, Call, Image, image_map, rows_around, weight_map};
use super::leaky_relu::activation_arguments;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::Matrix;
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
    outs: usize,
    weight_stages: usize,
}

/// The kernels, with fewer outputs first.
pub(super) const NARROW: [NarrowShape; 3] = [
    NarrowShape { name: "conv2d_bf16_32x16x8_sm90", outs: 8, weight_stages: 18 },
    NarrowShape { name: "conv2d_bf16_32x16x32_sm90", outs: 32, weight_stages: 14 },
    NarrowShape { name: "conv2d_bf16_32x16x64_sm90", outs: 64, weight_stages: 8 },
];

impl NarrowShape {
    /// Returns the kernel for a number of outputs; `None` if they are too many.
    pub(super) fn find(outs: usize) -> Option<Self> {
        NARROW.into_iter().find(|shape| outs <= shape.outs)
    }

    /// Returns the tiles of an image.
    fn tiles(height: usize, width: usize) -> usize {
        height.div_ceil(TILE[1]) * width.div_ceil(TILE[0])
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
    /// Computes `conv2d(x) + residual` and the activation, with an output of the input's height and width.
    pub(super) fn run_hopper_narrow(&self, shape: NarrowShape, call: Call<'_, '_, '_>) -> Result<()> {
        let Call { input, weight, bias, activation, output, height, width } = call;
        let out = output.tensor();
        // Load first: a driver that loads this kernel supports tensor maps too.
        let launch = self.launch(CHOICE.file, shape.name)?.shared(shape.shared_bytes() as u32)?;
        let mut weight_map = weight_map(CHOICE, weight, [3, shape.outs])?;
        let (activates, slopes) = activation_arguments(activation);
        let outs = CHOICE.int(out.cols())?;
        CHOICE.int(out.rows())?;
        let sizes = [CHOICE.int(height)?, CHOICE.int(width)?, CHOICE.int(weight.channels)?];
        let [above, below] = input.halo();
        for band in input.bands(height, output.max_band(width, self.band_bytes())) {
            let part = input.show(rows_around(&band, [above, height, below]))?;
            let mut x_map = image_map(CHOICE, &Image::new(&part.pixels, width), BOX)?;
            let rows = band.start * width..band.end * width;
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
            let [first, end] = [band.start, band.end].map(|row| NarrowShape::tiles(row, width));
            // Rows are counted from the first of the image, with the halo above.
            let band = [CHOICE.int(first)?, CHOICE.int(end)?, CHOICE.int(part.first)? - CHOICE.int(above)?];
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
            // lanes that read a pixel's values are those that write them, and they read first.
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
        for shape in NARROW {
            assert!(shape.shared_bytes() <= 227 << 10, "{shape:?}");
        }
        assert_eq!(NARROW[2].shared_bytes(), 2 * 77 * 1024 + 8 * 8192 + 10 * 16);
        assert!(BAND_MULTIPLE.is_multiple_of(TILE[1]));
    }

    #[test]
    fn a_shape_has_room_for_the_outputs() {
        let outs = |outs| NarrowShape::find(outs).map(|shape| shape.outs);
        assert_eq!([1, 8, 9, 32, 48, 64, 65].map(outs), [8, 8, 32, 32, 64, 64, 0].map(|n| (n > 0).then_some(n)));
        assert_eq!([(1, 1), (16, 32), (17, 33)].map(|(height, width)| NarrowShape::tiles(height, width)), [1, 1, 4]);
    }
}
