//! Launches cuda/conv2d_sm90a.cu: 3 x 3 convolutions on Hopper, of a picture as it is or upsampled.

use std::env;
use std::ffi::c_void;

use super::hopper::{Axis, Choice};
use super::moments::Moments;
use super::{Cuda, Tensor, all_aligned};
use crate::error::{Error, Result};

/// `FLUX_CONV2D=base` keeps off this kernel, `FLUX_CONV2D=sm90` makes it an error when this GPU or this program has none.
pub(super) const CHOICE: Choice = Choice { op: "conv2d", variable: "FLUX_CONV2D", file: "conv2d_sm90a" };
/// Channels of a box: 128 bytes, over which TMA swizzles.
const CHANNELS: usize = 64;
/// Warpgroups that multiply.
const CONSUMERS: usize = 2;
/// They, and a warpgroup that fetches.
const THREADS: usize = (1 + CONSUMERS) * 128;

/// A kernel of cuda/conv2d_sm90a.cu, by its `Shape`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    taps: usize,
    width: usize,
    height: usize,
    outs: usize,
    pixel_slots: usize,
    weight_slots: usize,
    /// Taps that the first consumer is ahead of the second.
    lead: usize,
    /// Time of one tile, relative to others with as many taps.
    cost: usize,
}

/// Of a picture as it is.
const SAME: [Shape; 3] = [
    Shape::new("conv2d_bf16_16x16x128_sm90", 3, [16, 16, 128], [3, 7], 5, 100),
    Shape::new("conv2d_bf16_16x8x256_sm90", 3, [16, 8, 256], [3, 5], 3, 100),
    Shape::new("conv2d_bf16_16x8x128_sm90", 3, [16, 8, 128], [4, 8], 5, 60),
];
/// The same, for at most eight outputs: what takes time there is to fetch pixels.
const FEW: [Shape; 1] = [Shape::new("conv2d_bf16_32x8x8_sm90", 3, [32, 8, 8], [5, 15], 0, 100)];
/// Of an upsampled picture: two taps a side, four sets of weights.
const UPSAMPLED: [Shape; 2] = [
    Shape::new("upsample_conv2d_bf16_16x16x128_sm90", 2, [16, 16, 128], [3, 7], 3, 100),
    Shape::new("upsample_conv2d_bf16_16x8x128_sm90", 2, [16, 8, 128], [4, 9], 4, 60),
];

impl Shape {
    const fn new(
        name: &'static str,
        taps: usize,
        [width, height, outs]: [usize; 3],
        [pixel_slots, weight_slots]: [usize; 2],
        lead: usize,
        cost: usize,
    ) -> Self {
        Self { name, taps, width, height, outs, pixel_slots, weight_slots, lead, cost }
    }

    /// Tiles of a picture of `height` x `width` pixels (before upsampling), and `outs` outputs.
    fn tiles(&self, height: usize, width: usize, outs: usize) -> usize {
        let places = if self.taps == 2 { 4 } else { 1 };
        places * height.div_ceil(self.height) * width.div_ceil(self.width) * outs.div_ceil(self.outs)
    }

    /// Blocks that take the tiles in turn, and splits that their moments are of. A block's tiles are all of the same outputs: the blocks are a
    /// multiple of what the outputs are divided into, as the tiles are.
    fn blocks(&self, multiprocessors: usize, height: usize, width: usize, outs: usize) -> [usize; 2] {
        let out_tiles = outs.div_ceil(self.outs);
        let blocks = self.tiles(height, width, outs).min((multiprocessors / out_tiles).max(1) * out_tiles);
        [blocks, blocks / out_tiles * CONSUMERS]
    }

    /// The one that is done first, when every multiprocessor takes tiles in turn.
    fn find(shapes: &[Shape], multiprocessors: usize, height: usize, width: usize, outs: usize) -> Shape {
        let time = |shape: &&Shape| shape.tiles(height, width, outs).div_ceil(multiprocessors) * shape.cost;
        *shapes.iter().min_by_key(time).expect("SAME, FEW and UPSAMPLED are not empty")
    }

    /// The lead that `FLUX_CONV2D_LEAD` asks for, as far as the slots allow, or its own.
    fn lead(&self) -> Result<usize> {
        let Some(asked) = env::var_os("FLUX_CONV2D_LEAD").filter(|asked| !asked.is_empty()) else { return Ok(self.lead) };
        let asked = asked.to_string_lossy();
        let lead: usize = asked.parse().map_err(|_| Error::usage(format!("`{asked}` is no number of taps")).at("FLUX_CONV2D_LEAD"))?;
        Ok(lead.min(self.most_lead()))
    }

    /// The first consumer gets no further before the second begins.
    const fn most_lead(&self) -> usize {
        let (pixels, weights) = (self.taps * self.pixel_slots - 1, self.weight_slots - 1);
        if pixels < weights { pixels } else { weights }
    }

    /// Whether the kernel leaves the moments of its outputs.
    const fn leaves_moments(&self) -> bool {
        self.outs >= 32
    }

    /// As `Shape` in cuda/conv2d_sm90a.cu: slots of pixels and of weights, two barriers each, and each consumer's sums of two groups of outputs.
    const fn shared_bytes(&self) -> usize {
        let sums = if self.leaves_moments() { CONSUMERS * 2 * 4 * 32 * 8 } else { 0 };
        let pixels = self.width * (self.height + self.taps - 1) * CHANNELS * 2 + 16;
        self.pixel_slots * pixels + self.weight_slots * (self.outs * CHANNELS * 2 + 16) + sums
    }
}

/// One call: tensors that [`takes`] allowed, and `residual` and `out` with rows of whole 16 bytes.
pub(super) struct Call<'a> {
    /// [height * width, channels]
    pub x: &'a Tensor<Cuda>,
    /// [out, 9 * channels], or for an upsampled picture [4 * out, 4 * channels].
    pub weight: &'a Tensor<Cuda>,
    pub bias: &'a Tensor<Cuda>,
    pub residual: Option<&'a Tensor<Cuda>>,
    pub out: &'a Tensor<Cuda>,
    pub height: usize,
    pub width: usize,
}

/// Whether the kernel can take these: rows of whole 16 bytes, and a weight without gaps, so that its taps are an axis.
pub(super) fn takes(x: &Tensor<Cuda>, weight: &Tensor<Cuda>, bias: &Tensor<Cuda>) -> bool {
    x.rows() > 0 && all_aligned(&[x, weight]) && weight.stride() == weight.cols() && bias.address().is_multiple_of(4)
}

impl Cuda {
    /// `upsample_conv2d` by sums of the weights; the sums round to bf16.
    pub(super) fn upsample_conv2d_op(
        &self,
        x: Tensor<Cuda>,
        weight: &Tensor<Cuda>,
        bias: &Tensor<Cuda>,
        height: usize,
        width: usize,
    ) -> Result<Tensor<Cuda>> {
        if !self.hopper_wanted(CHOICE)? || !takes(&x, weight, bias) || !weight.rows().is_multiple_of(8) {
            return crate::ops::conv2d::compose_upsample(self, x, weight, bias, height, width);
        }
        let collapsed = self.collapse_taps(weight, x.cols())?;
        let out = self.empty(4 * x.rows(), weight.rows())?;
        let moments = self.run_hopper_shape(&UPSAMPLED, &Call { x: &x, weight: &collapsed, bias, residual: None, out: &out, height, width })?;
        Ok(match moments {
            Some(moments) => out.with_moments(moments),
            None => out,
        })
    }

    /// Weights [out, 9 * channels] for pixels that come four times -> [4 * out, 4 * channels].
    fn collapse_taps(&self, weight: &Tensor<Cuda>, channels: usize) -> Result<Tensor<Cuda>> {
        let collapsed = self.empty(4 * weight.rows(), 4 * channels)?;
        let launch = self.launch(CHOICE.file, "collapse_taps_bf16")?.matrix(weight).vector(&collapsed).int(weight.rows()).int(channels);
        // SAFETY: argument types and order match cuda/conv2d_sm90a.cu; `takes` found rows of whole 16 bytes, so channels % 8 == 0;
        // `collapsed` was made dense above, and has 16 runs of `channels` values for each row of the weight.
        unsafe { launch.run_rows(16 * weight.rows(), channels, true) }?;
        Ok(collapsed)
    }

    /// `conv2d(x) + residual`, of the same size out as in. The moments of `call.out`, where the kernel leaves them.
    pub(super) fn run_hopper_conv2d(&self, call: &Call<'_>) -> Result<Option<Moments>> {
        self.run_hopper_shape(if call.out.cols() <= 8 { &FEW } else { &SAME }, call)
    }

    fn run_hopper_shape(&self, shapes: &[Shape], call: &Call<'_>) -> Result<Option<Moments>> {
        let Call { x, weight, bias, residual, out, height, width } = *call;
        let shape = Shape::find(shapes, self.device().multiprocessors(), height, width, out.cols());
        let tiles = shape.tiles(height, width, out.cols());
        // First of all, because a driver that loads this kernel knows tensor maps too.
        let launch = self.launch(CHOICE.file, shape.name)?.shared(shape.shared_bytes() as u32)?;
        let channels = Axis { cells: x.cols(), step: 1, in_box: CHANNELS };
        // A lone row's stride means nothing, and need not be aligned.
        let pixel = if x.rows() > 1 { x.stride() } else { x.cols() };
        let columns = Axis { cells: width, step: pixel, in_box: shape.width };
        let rows = Axis { cells: height, step: width * pixel, in_box: shape.height + shape.taps - 1 };
        let taps = Axis { cells: shape.taps * shape.taps, step: x.cols(), in_box: 1 };
        let outs = Axis { cells: weight.rows(), step: weight.cols(), in_box: shape.outs };
        let mut maps = [CHOICE.tensor_map(x.address(), [channels, columns, rows])?, CHOICE.tensor_map(weight.address(), [channels, taps, outs])?];
        let [blocks, splits] = shape.blocks(self.device().multiprocessors(), height, width, out.cols());
        let moments = if shape.leaves_moments() { Some(Moments::new(self, splits, out.cols())?) } else { None };
        let mut lead = CHOICE.int(shape.lead()?)?;
        let (mut partial, mut counts) = moments.as_ref().map_or((0, 0), |moments| (moments.partial(), moments.counts()));
        let (mut bias_address, mut out_address, mut out_stride) = (bias.address(), out.address(), out.stride() as u64);
        let (mut residual_address, mut residual_stride) = residual.map_or((0, 0), |residual| (residual.address(), residual.stride() as u64));
        CHOICE.int(tiles)?;
        CHOICE.int(out.rows())?;
        let mut ints = [CHOICE.int(height)?, CHOICE.int(width)?, CHOICE.int(x.cols())?, CHOICE.int(out.cols())?];
        let mut arguments: Vec<*mut c_void> = maps.iter_mut().map(|map| std::ptr::from_mut(map).cast()).collect();
        let longs = [&mut bias_address, &mut residual_address, &mut residual_stride, &mut out_address, &mut out_stride];
        arguments.extend(longs.map(|long| std::ptr::from_mut(long).cast::<c_void>()));
        arguments.extend(ints.iter_mut().map(|int| std::ptr::from_mut(int).cast::<c_void>()));
        arguments.extend([&mut partial, &mut counts].map(|address| std::ptr::from_mut(address).cast::<c_void>()));
        arguments.push(std::ptr::from_mut(&mut lead).cast());
        // SAFETY: `arguments` are, in the order of `CONV2D` in cuda/conv2d_sm90a.cu, two tensor maps, two pointers, a long long, a pointer, a
        // long long, four ints, two pointers and an int, all alive until the call returns; the shared memory is that of the shape. The maps cover
        // exactly the cells of x and of the weight. The ops checked their shapes, `out` and `residual` have rows of whole 16 bytes and a row for
        // every output pixel, the bias has a value for every column of `out`, the moments the splits that `blocks` blocks make, or the shape
        // leaves none. `out` may be `residual`: each cell is read by the thread that then writes it.
        unsafe { launch.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments) }?;
        Ok(moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_fits_the_shared_memory_of_hopper_and_lets_both_consumers_begin() {
        for shape in SAME.iter().chain(&FEW).chain(&UPSAMPLED) {
            assert!(shape.shared_bytes() <= 227 << 10, "{shape:?}");
            assert!(shape.lead <= shape.most_lead(), "{shape:?}");
        }
        assert_eq!(SAME[0].shared_bytes(), 3 * 18 * 16 * 128 + 7 * 128 * 128 + 2 * 2 * 4 * 32 * 8 + 10 * 16);
    }

    #[test]
    fn the_shape_is_the_one_that_is_done_first() {
        let same = |side: usize, outs: usize| Shape::find(&SAME, 132, side, side, outs).name;
        assert_eq!(Shape::find(&SAME, 132, 264, 512, 512).name, "conv2d_bf16_16x8x256_sm90");
        assert_eq!(same(512, 512), "conv2d_bf16_16x16x128_sm90");
        assert_eq!(same(1024, 128), "conv2d_bf16_16x16x128_sm90");
        // Too few tiles for all multiprocessors, where they are large.
        assert_eq!(same(64, 512), "conv2d_bf16_16x8x128_sm90");
        let upsampled = |side: usize, outs: usize| Shape::find(&UPSAMPLED, 132, side, side, outs).name;
        assert_eq!(upsampled(512, 256), "upsample_conv2d_bf16_16x16x128_sm90");
        assert_eq!(upsampled(16, 512), "upsample_conv2d_bf16_16x8x128_sm90");
    }

    #[test]
    fn a_blocks_tiles_are_all_of_the_same_outputs() {
        for shape in SAME.iter().chain(&UPSAMPLED) {
            for outs in [8usize, 128, 136, 320, 512, 1000, 40_000] {
                let out_tiles = outs.div_ceil(shape.outs);
                for (height, width) in [(1, 1), (17, 33), (512, 512)] {
                    let [blocks, splits] = shape.blocks(132, height, width, outs);
                    assert!(blocks > 0 && blocks.is_multiple_of(out_tiles) && blocks <= shape.tiles(height, width, outs), "{shape:?} {outs}");
                    assert_eq!(splits, 2 * blocks / out_tiles);
                }
            }
        }
        assert_eq!(SAME[0].blocks(132, 1024, 1024, 128), [132, 264]);
        assert_eq!(SAME[0].blocks(132, 512, 512, 640), [130, 52]);
        assert_eq!(SAME[0].blocks(132, 16, 16, 128), [1, 2]);
    }

    #[test]
    fn tiles_cover_ragged_pictures_and_outputs() {
        assert_eq!(SAME[0].tiles(17, 16, 129), 4);
        assert_eq!(SAME[0].tiles(1, 1, 8), 1);
        assert_eq!(UPSAMPLED[0].tiles(17, 33, 128), 4 * 2 * 3);
    }
}
