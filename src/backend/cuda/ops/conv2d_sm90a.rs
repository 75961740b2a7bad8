//! Launches cuda/conv2d_sm90a.cu, 3 x 3 convolutions on Hopper. Also used by the launcher of
//! cuda/upsample_conv2d_sm90a.cu.

use std::ffi::c_void;
use std::ops::Range;

use cudarc::driver::sys;

use super::conv2d_input::Input;
use super::conv2d_output::Output;
use super::leaky_relu::activation_arguments;
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::channel_statistics::ChannelStatistics;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::gemm::Matrix;
use crate::backend::cuda::hopper::{Axis, Choice};
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::Activation;
#[cfg(doc)]
use crate::ops::Conv;

/// `FLUX_CONV2D=base` disables this kernel; `FLUX_CONV2D=sm90` makes it an error if this GPU or this program has none.
pub(crate) const CHOICE: Choice = Choice { op: "conv2d", variable: "FLUX_CONV2D", file: "conv2d_sm90a", forms: &[] };
/// Channels or outputs of a box, and outputs of a consumer: 128 bytes, the width of TMA's swizzle.
const CHANNELS: usize = 64;
/// Outputs of a tile.
const OUTS: usize = CONSUMERS * CHANNELS;
/// Warpgroups that multiply.
const CONSUMERS: usize = 2;
/// Threads of a block: the consumers, and a warpgroup that fetches and stores.
const THREADS: usize = (1 + CONSUMERS) * 128;
/// Threads of that warpgroup that store, and the outputs of a consumer that each of them stores.
const STORERS: usize = 3 * 32;
const STORED_OUTS: usize = 8;
/// Channel statistics that a block leaves for the next band of an image: three floats for each output of each storing
/// thread.
const CARRY_BYTES: usize = CONSUMERS * STORED_OUTS * STORERS * 12;
/// Rows before and after a band that its outputs depend on.
const HALO: usize = 1;

/// A kernel by its `Shape` in cuda/conv2d_sm90a.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    taps: usize,
    width: usize,
    height: usize,
    stride: usize,
    pixel_stages: usize,
    weight_stages: usize,
    /// Relative time of one tile among shapes with equal taps.
    cost: usize,
}

/// The kernels for an image at its own size.
pub(super) const SAME: [Shape; 2] = [
    Shape::new("conv2d_bf16_16x16x128_sm90", 3, [16, 16], [2, 5], 100),
    Shape::new("conv2d_bf16_16x8x128_sm90", 3, [16, 8], [4, 6], 60),
];
/// The kernel that halves an image. A stage of pixels is so large that there is no room for larger tiles.
pub(super) const HALVED: [Shape; 1] =
    [Shape::new("conv2d_halve_bf16_16x8x128_sm90", 3, [16, 8], [3, 5], 100).halving()];

impl Shape {
    pub(super) const fn new(
        name: &'static str,
        taps: usize,
        [width, height]: [usize; 2],
        [pixel_stages, weight_stages]: [usize; 2],
        cost: usize,
    ) -> Self {
        Self { name, taps, width, height, stride: 1, pixel_stages, weight_stages, cost }
    }

    const fn halving(self) -> Self {
        Self { stride: 2, ..self }
    }

    /// Returns the rows of a stage of pixels.
    const fn rows(&self) -> usize {
        if self.stride == 1 { self.height + self.taps - 1 } else { 2 * (self.height + 1) }
    }

    /// Returns the tiles of an image of `height` x `width` pixels (before upsampling, after halving), and `outs`
    /// outputs.
    fn tiles(&self, height: usize, width: usize, outs: usize) -> usize {
        let places = if self.taps == 2 { 4 } else { 1 };
        places * height.div_ceil(self.height) * width.div_ceil(self.width) * outs.div_ceil(OUTS)
    }

    /// Returns the number of blocks, and of splits in their statistics. The number of blocks is a multiple of the
    /// number of output tiles, so that all tiles of a block are of the same outputs.
    fn blocks(&self, multiprocessors: usize, height: usize, width: usize, outs: usize) -> [usize; 2] {
        let out_tiles = outs.div_ceil(OUTS);
        let blocks = self.tiles(height, width, outs).min((multiprocessors / out_tiles).max(1) * out_tiles);
        [blocks, blocks / out_tiles]
    }

    /// Returns the fastest shape, with tiles distributed round-robin over the multiprocessors.
    fn find(shapes: &[Shape], multiprocessors: usize, height: usize, width: usize, outs: usize) -> Shape {
        let time = |shape: &&Shape| shape.tiles(height, width, outs).div_ceil(multiprocessors) * shape.cost;
        *shapes.iter().min_by_key(time).expect("no op has an empty list of shapes")
    }

    /// Returns the first tile of a band of rows of pixels, and the one after its last. The band begins at the start of
    /// a tile.
    fn items(&self, band: &Range<usize>, width: usize, outs: usize) -> [usize; 2] {
        [band.start, band.end].map(|row| self.tiles(row, width, outs))
    }

    /// Returns the rows of pixels that a band of the output depends on, counted from the first row of the halo. An
    /// image to halve has twice as many rows as its output and no halo, and is read in pairs of rows.
    fn rows_seen(&self, band: &Range<usize>, [above, height, below]: [usize; 3]) -> Range<usize> {
        if self.stride == 2 {
            return 2 * band.start..2 * (band.end + HALO).min(height);
        }
        rows_around(band, [above, height, below])
    }

    /// As `Shape` in cuda/conv2d_sm90a.cuh: stages of pixels and of weights, a tile's rounded outputs, and two barriers
    /// for each stage and each consumer.
    pub(super) const fn shared_bytes(&self) -> usize {
        let pixels = self.width * self.rows() * CHANNELS * 2 + 16;
        let weights = OUTS * CHANNELS * 2 + 16;
        let rounded = self.width * self.height * OUTS * 2;
        self.pixel_stages * pixels + self.weight_stages * weights + rounded + CONSUMERS * 16
    }
}

/// Returns the rows of a band of an image and those next to it, counted from the first row of the halo.
pub(super) fn rows_around(band: &Range<usize>, [above, height, below]: [usize; 3]) -> Range<usize> {
    (above + band.start).saturating_sub(HALO)..(band.end + HALO).min(height + below) + above
}

/// A weight [rows, taps * channels] without gaps.
#[derive(Clone, Copy)]
pub(crate) struct Taps {
    pub address: u64,
    pub rows: usize,
    pub channels: usize,
}

/// One call, with tensors that [`takes`] accepted, and output and residual with rows in multiples of 16 bytes.
pub(crate) struct Call<'a, 'x, 'o> {
    /// [height * width, channels] and its halo; to be halved, four times as many rows, without a halo.
    pub input: &'a mut Input<'x>,
    /// 9 taps; for an upsampled image 4, with 4 rows for each output.
    pub weight: Taps,
    pub bias: &'a Tensor<Cuda>,
    /// Applied to the sum.
    pub activation: Option<Activation<'a, Cuda>>,
    pub output: &'a mut Output<'o>,
    pub height: usize,
    pub width: usize,
}

/// Returns `true` if the kernel supports these: rows in multiples of 16 bytes, and a weight without gaps, so that its
/// taps form an axis.
pub(crate) fn takes(input: &Input<'_>, weight: &Weight, bias: &Tensor<Cuda>) -> bool {
    let whole = input.source().rows() > 0 && input.aligned();
    whole && weight.stride() == weight.cols() && bias.address().is_multiple_of(4)
}

impl Cuda {
    /// Computes `conv2d(x) + residual` by [`Conv::halve`] to an image of `call.height` x `call.width`, from one of
    /// twice as many rows and columns. Returns the channel statistics of the output.
    pub(crate) fn run_hopper_halve(&self, call: Call<'_, '_, '_>) -> Result<ChannelStatistics> {
        self.run_hopper_shape(CHOICE, &HALVED, call)
    }

    /// Computes `conv2d(x) + residual`, with an output of the input's height and width. Returns the channel statistics
    /// of the output.
    pub(crate) fn run_hopper_conv2d(&self, call: Call<'_, '_, '_>) -> Result<ChannelStatistics> {
        self.run_hopper_shape(CHOICE, &SAME, call)
    }

    /// Runs the fastest of `shapes`, which are kernels of `choice.file`.
    pub(super) fn run_hopper_shape(
        &self,
        choice: Choice,
        shapes: &[Shape],
        call: Call<'_, '_, '_>,
    ) -> Result<ChannelStatistics> {
        let Call { input, weight, bias, activation, output, height, width } = call;
        let (out, adds) = (output.tensor(), output.residual.is_some());
        let shape = Shape::find(shapes, self.device().multiprocessors(), height, width, out.cols());
        // Load first: a driver that loads this kernel supports tensor maps too.
        let launch = self.launch(choice.file, shape.name)?.shared(shape.shared_bytes() as u32)?;
        let weight_map = weight_map(choice, weight, [shape.taps, OUTS])?;
        let [blocks, splits] = shape.blocks(self.device().multiprocessors(), height, width, out.cols());
        let statistics = ChannelStatistics::new(self, splits, out.cols())?;
        choice.int(shape.tiles(height, width, out.cols()))?;
        choice.int(out.rows())?;
        let sizes = [choice.int(height)?, choice.int(width)?, choice.int(weight.channels)?, choice.int(out.cols())?];
        let (activates, slopes) = activation_arguments(activation);
        // Rows of the output for each pixel of the band.
        let places = if shape.taps == 2 { 4 } else { 1 };
        let max_band = output.max_band(places * width, self.band_bytes());
        let (bands, [above, below]) = (input.bands(height, max_band), input.halo());
        let carried = if bands.len() > 1 {
            Some(Buffer::new(self.device(), BufferKind::Byte, blocks * CARRY_BYTES)?)
        } else {
            None
        };
        for band in bands {
            let part = input.show(shape.rows_seen(&band, [above, height, below]))?;
            let pixels = Image::new(&part.pixels, width * shape.stride);
            let x_map = match shape.stride {
                1 => image_map(choice, &pixels, [shape.width, shape.rows()])?,
                _ => halved_map(choice, &pixels.placed_at(part.first), &shape)?,
            };
            // A place as if the rows before the band were there too.
            let rows = places * width * band.start..places * width * band.end;
            let (own, added) = output.open(rows.clone())?;
            let from_first = |of: Matrix| of.address.wrapping_sub((rows.start * of.stride * Element::BYTES) as u64);
            let residual_map = |of: Matrix| {
                let (pixel, channels) = (if out.rows() > 1 { of.stride } else { out.cols() }, out.cols());
                let residual = Image { address: of.address, pixel, channels, rows: band.len(), width };
                image_map(choice, &residual.placed_at(band.start), [shape.width, shape.height])
            };
            let residual_map = added.map(residual_map).transpose()?;
            let [first, end] = shape.items(&band, width, out.cols());
            let mut arguments = Arguments {
                // Without a residual the kernel reads no third map.
                maps: [x_map, weight_map, residual_map.unwrap_or(x_map)],
                epilogue: [i32::from(adds), activates],
                bias_and_out: [bias.address(), slopes, from_first(own), own.stride as u64],
                sizes,
                statistics: [statistics.partial(), statistics.counts()],
                // Rows are counted from the first of the image, with the halo above.
                band: [choice.int(first)?, choice.int(end)?, choice.int(part.first)? - choice.int(above)?],
                carry: carried.as_ref().map_or(0, Buffer::address),
            };
            // SAFETY: the pointers are to `arguments`, which lives until the call returns; the shared memory is that of
            // the shape. The maps end with the present cells of x, of the weight and of the residual; those that begin
            // before the band are read from the band on. The ops checked the shapes; output and residual have rows in
            // multiples of 16 bytes and a row for every output pixel of the band, the bias and the slopes have a value
            // for every column of `out`. The statistics have the splits that `blocks` blocks produce. With more than
            // one band, `carry` has room for as many blocks. `out` may be `residual`: a tile's cells are read before
            // they are written, and no other tile has them.
            unsafe { launch.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments.pointers()) }?;
            output.close()?;
        }
        Ok(statistics)
    }
}

/// The arguments of `CONV2D` in cuda/conv2d_sm90a.cuh.
struct Arguments {
    /// x, weight and residual.
    maps: [sys::CUtensorMap; 3],
    /// Flags: add the residual, and apply the activation to the sum.
    epilogue: [i32; 2],
    /// Addresses of the bias, of the slopes or 0, and of out, and the row stride of out.
    bias_and_out: [u64; 4],
    /// Height, width, channels, outs.
    sizes: [i32; 4],
    /// Addresses of partial and counts.
    statistics: [u64; 2],
    /// The first tile, the one after the last, and the first row of x.
    band: [i32; 3],
    carry: u64,
}

impl Arguments {
    /// Returns a pointer to each argument, in the kernel's order: three tensor maps, two ints, three pointers, a
    /// long long, four ints, two pointers, three ints and a pointer.
    fn pointers(&mut self) -> Vec<*mut c_void> {
        fn each<T>(values: &mut [T]) -> impl Iterator<Item = *mut c_void> {
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast())
        }
        let mut pointers: Vec<_> = each(&mut self.maps).collect();
        pointers.extend(each(&mut self.epilogue));
        pointers.extend(each(&mut self.bias_and_out));
        pointers.extend(each(&mut self.sizes));
        pointers.extend(each(&mut self.statistics));
        pointers.extend(each(&mut self.band));
        pointers.push(std::ptr::from_mut(&mut self.carry).cast());
        pointers
    }
}

/// Rows of pixels of an image.
pub(super) struct Image {
    /// The address of the first pixel.
    address: u64,
    /// Values from one pixel to the next.
    pixel: usize,
    channels: usize,
    rows: usize,
    width: usize,
}

impl Image {
    pub(super) fn new(of: &Tensor<Cuda>, width: usize) -> Self {
        // The stride of a single row is unused, and need not be aligned.
        let pixel = if of.rows() > 1 { of.stride() } else { of.cols() };
        Self { address: of.address(), pixel, channels: of.cols(), rows: of.rows() / width, width }
    }

    /// Returns the whole image up to these rows, which begin with row `first`. The rows before are not there.
    fn placed_at(self, first: usize) -> Self {
        let before = (first * self.width * self.pixel * Element::BYTES) as u64;
        Self { address: self.address.wrapping_sub(before), rows: first + self.rows, ..self }
    }
}

/// Returns a map of an image in boxes of CHANNELS channels of some columns and rows of pixels.
pub(super) fn image_map(
    choice: Choice,
    of: &Image,
    [columns_in_box, rows_in_box]: [usize; 2],
) -> Result<sys::CUtensorMap> {
    let channels = Axis { cells: of.channels, step: 1, in_box: CHANNELS };
    let columns = Axis { cells: of.width, step: of.pixel, in_box: columns_in_box };
    let rows = Axis { cells: of.rows, step: of.width * of.pixel, in_box: rows_in_box };
    choice.tensor_map(of.address, [channels, columns, rows])
}

/// Returns a map of an image to halve, by the parities of rows and columns: in boxes of CHANNELS channels, a tile's
/// columns and one row more than the tile has, each of one parity.
fn halved_map(choice: Choice, of: &Image, shape: &Shape) -> Result<sys::CUtensorMap> {
    let (pixel, row) = (of.pixel, of.width * of.pixel);
    let channels = Axis { cells: of.channels, step: 1, in_box: CHANNELS };
    let odd_columns = Axis { cells: 2, step: pixel, in_box: 1 };
    let columns = Axis { cells: of.width / 2, step: 2 * pixel, in_box: shape.width };
    let odd_rows = Axis { cells: 2, step: row, in_box: 1 };
    let rows = Axis { cells: of.rows / 2, step: 2 * row, in_box: shape.height + 1 };
    choice.tensor_map(of.address, [channels, odd_columns, columns, odd_rows, rows])
}

/// Returns a map of a weight, with `side` taps in height and width, in boxes of CHANNELS channels, one tap and the
/// outputs of a tile.
pub(super) fn weight_map(choice: Choice, weight: Taps, [side, outs]: [usize; 2]) -> Result<sys::CUtensorMap> {
    let taps = side * side;
    let channels = Axis { cells: weight.channels, step: 1, in_box: CHANNELS };
    let taps_axis = Axis { cells: taps, step: weight.channels, in_box: 1 };
    let outs = Axis { cells: weight.rows, step: taps * weight.channels, in_box: outs };
    choice.tensor_map(weight.address, [channels, taps_axis, outs])
}

#[cfg(test)]
mod tests {
    use super::super::upsample_conv2d::UPSAMPLED;
    use super::*;

    #[test]
    fn every_shape_fits_the_shared_memory_of_hopper() {
        for shape in SAME.iter().chain(&HALVED).chain(&UPSAMPLED) {
            assert!(shape.shared_bytes() <= 227 << 10, "{shape:?}");
        }
        assert_eq!(SAME[0].shared_bytes(), 2 * 18 * 16 * 128 + 5 * 128 * 128 + 256 * 128 * 2 + 9 * 16);
        assert_eq!(HALVED[0].shared_bytes(), 3 * 18 * 16 * 128 + 5 * 128 * 128 + 128 * 128 * 2 + 10 * 16);
    }

    #[test]
    fn the_shape_is_the_one_that_is_done_first() {
        let same = |side: usize, outs: usize| Shape::find(&SAME, 132, side, side, outs).name;
        assert_eq!(same(512, 512), "conv2d_bf16_16x16x128_sm90");
        assert_eq!(same(1024, 128), "conv2d_bf16_16x16x128_sm90");
        // Large tiles would be too few for all multiprocessors.
        assert_eq!(same(64, 512), "conv2d_bf16_16x8x128_sm90");
        // The sizes for each kernel in tests/parity/conv2d.rs and tests/parity/upsample_conv2d.rs.
        for ((height, width, outs), shape) in [(251, 298, 136), (151, 250, 128)].into_iter().zip(SAME) {
            assert_eq!(Shape::find(&SAME, 132, height, width, outs), shape);
            assert!(shape.tiles(height, width, outs) > 132);
        }
        for ((height, width, outs), shape) in [(67, 130, 136), (90, 90, 128)].into_iter().zip(UPSAMPLED) {
            assert_eq!(Shape::find(&UPSAMPLED, 132, height, width, outs), shape);
            assert!(shape.tiles(height, width, outs) > 132);
        }
        let upsampled = |side: usize, outs: usize| Shape::find(&UPSAMPLED, 132, side, side, outs).name;
        assert_eq!(upsampled(512, 256), "upsample_conv2d_bf16_16x16x128_sm90");
        assert_eq!(upsampled(16, 512), "upsample_conv2d_bf16_16x8x128_sm90");
    }

    #[test]
    fn a_blocks_tiles_are_all_of_the_same_outputs() {
        for shape in SAME.iter().chain(&HALVED).chain(&UPSAMPLED) {
            for outs in [8usize, 128, 136, 320, 512, 1000, 40_000] {
                let out_tiles = outs.div_ceil(OUTS);
                for (height, width) in [(1, 1), (17, 33), (512, 512)] {
                    let [blocks, splits] = shape.blocks(132, height, width, outs);
                    assert!(
                        blocks > 0 && blocks.is_multiple_of(out_tiles) && blocks <= shape.tiles(height, width, outs),
                        "{shape:?} {outs}"
                    );
                    assert_eq!(splits, blocks / out_tiles);
                }
            }
        }
        assert_eq!(SAME[0].blocks(132, 1024, 1024, 128), [132, 132]);
        assert_eq!(SAME[0].blocks(132, 512, 512, 640), [130, 26]);
        assert_eq!(SAME[0].blocks(132, 16, 16, 128), [1, 1]);
    }

    #[test]
    fn bands_have_all_tiles_once_and_every_block_keeps_its_own() {
        use super::super::conv2d_input::BAND_MULTIPLE;
        for shape in SAME.iter().chain(&HALVED).chain(&UPSAMPLED) {
            assert!(BAND_MULTIPLE.is_multiple_of(shape.height), "{shape:?}");
            for (height, width, outs) in [(250, 253, 128), (33, 50, 320), (100, 17, 8), (1000, 400, 640)] {
                let [blocks, _] = shape.blocks(132, height, width, outs);
                let own = |block: usize, [first, end]: [usize; 2]| {
                    // The first tile, computed as in the kernel.
                    let begin = first + (block + blocks - first % blocks) % blocks;
                    (begin..end).step_by(blocks).collect::<Vec<_>>()
                };
                for rows in [16, 48, 2000] {
                    let bands: Vec<_> =
                        (0..height).step_by(rows).map(|first| first..(first + rows).min(height)).collect();
                    let items: Vec<_> = bands.iter().map(|band| shape.items(band, width, outs)).collect();
                    assert_eq!((items[0][0], items[items.len() - 1][1]), (0, shape.tiles(height, width, outs)));
                    assert!(items.windows(2).all(|pair| pair[0][1] == pair[1][0]));
                    for block in [0, 1, blocks / 2, blocks - 1] {
                        let block = block.min(blocks - 1);
                        let whole = own(block, [0, shape.tiles(height, width, outs)]);
                        assert_eq!(
                            items.iter().flat_map(|&items| own(block, items)).collect::<Vec<_>>(),
                            whole,
                            "{shape:?} {height}x{width}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_band_shows_all_rows_that_its_tiles_read() {
        for shape in SAME.iter().chain(&HALVED).chain(&UPSAMPLED) {
            for (height, above, below) in [(40, 0, 0), (33, 1, 1), (16, 0, 1), (7, 1, 0)] {
                let [above, below] = if shape.stride == 2 { [0, 0] } else { [above, below] };
                let all = above + shape.stride * height + below;
                for band in (0..height).step_by(16).map(|first| first..(first + 16).min(height)) {
                    let seen = shape.rows_seen(&band, [above, height, below]);
                    assert!(seen.end <= all, "{shape:?} {band:?} of {height}");
                    // Boxes begin one row above an output, or in pairs of rows with the output's own.
                    let read = |y: usize| match shape.stride {
                        1 => (above + y).saturating_sub(1)..above + y + 2,
                        _ => 2 * y..2 * y + 4,
                    };
                    for y in band {
                        let read = read(y);
                        assert!(read.start >= seen.start && read.end.min(all) <= seen.end, "{shape:?} {y} of {height}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_image_from_its_first_row_on_has_the_band_in_its_place() {
        let band = Image { address: 1 << 40, pixel: 136, channels: 128, rows: 18, width: 50 };
        let row_bytes = 50 * 136 * 2;
        let whole = band.placed_at(32);
        assert_eq!((whole.address + 32 * row_bytes, whole.rows), (1 << 40, 50));
    }

    #[test]
    fn tiles_cover_ragged_images_and_outputs() {
        assert_eq!(SAME[0].tiles(17, 16, 129), 4);
        assert_eq!(SAME[0].tiles(1, 1, 8), 1);
        assert_eq!(UPSAMPLED[0].tiles(17, 33, 128), 4 * 2 * 3);
    }
}
