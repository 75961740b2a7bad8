//! Launches cuda/group_norm.cu: `group_norm` and `group_norm_silu`.

use super::pool::{Buffer, Kind};
use super::{Cuda, Tensor, all_aligned};
use crate::error::Result;

/// Threads of a block.
const THREADS: usize = 256;
/// Blocks that each multiprocessor gets of the first pass.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;
/// Pixels that a thread of the last pass walks over.
const PIXELS_PER_THREAD: usize = 8;

impl Cuda {
    pub(super) fn group_norm_op(
        &self,
        x: &Tensor<Cuda>,
        weight: &Tensor<Cuda>,
        bias: &Tensor<Cuda>,
        groups: usize,
        eps: f32,
        silu: bool,
    ) -> Result<Tensor<Cuda>> {
        let (pixels, channels) = (x.rows(), x.cols());
        let out = self.empty(pixels, channels)?;
        if pixels == 0 {
            return Ok(out);
        }
        let wide = all_aligned(&[x, weight, bias, &out]);
        let runs = if wide { channels / 8 } else { channels };
        let width = runs.min(THREADS);
        let height = THREADS / width;
        let columns = runs.div_ceil(width);

        let blocks = (self.device().multiprocessors() * BLOCKS_PER_MULTIPROCESSOR).div_ceil(columns);
        // No split is empty: the number of splits follows from their size.
        let pixels_per_split = pixels.div_ceil(blocks).max(height * PIXELS_PER_THREAD);
        let splits = pixels.div_ceil(pixels_per_split);
        let partial = Buffer::new(self.device(), Kind::F32, 2 * splits * channels)?;
        let stats = Buffer::new(self.device(), Kind::F32, 2 * groups)?;

        let kernel = if wide { "group_norm_stats_bf16" } else { "group_norm_stats_bf16_any" };
        let launch = self.launch("group_norm", kernel)?.matrix(x).address(partial.address()).int(pixels).int(channels).int(pixels_per_split);
        // SAFETY: argument types and order match cuda/group_norm.cu; x is [pixels, channels], `partial` has two floats for each split
        // and channel, and a block has at most THREADS threads, for which its shared memory is made.
        unsafe { launch.run([splits, columns, 1], [width, height, 1]) }?;

        let launch = self.launch("group_norm", "group_norm_merge")?.address(partial.address()).address(stats.address());
        let launch = launch.int(splits).int(pixels).int(pixels_per_split).int(channels).int(channels / groups).float(eps);
        // SAFETY: argument types and order match cuda/group_norm.cu; `Tensor::group_norm` checked that groups divide the channels; `stats`
        // has two floats for each group; the block has the THREADS threads that the kernel needs.
        unsafe { launch.run([groups, 1, 1], [THREADS, 1, 1]) }?;

        let kernel = match (wide, silu) {
            (true, false) => "group_norm_bf16",
            (false, false) => "group_norm_bf16_any",
            (true, true) => "group_norm_silu_bf16",
            (false, true) => "group_norm_silu_bf16_any",
        };
        let pixels_per_block = height * PIXELS_PER_THREAD;
        let launch = self.launch("group_norm", kernel)?.matrix(x).address(stats.address()).vector(weight).vector(bias).matrix(&out);
        let launch = launch.int(pixels).int(channels).int(channels / groups).int(pixels_per_block);
        // SAFETY: argument types and order match cuda/group_norm.cu; weight and bias are [1, channels], `out` is of the shape of x, and
        // the grid's blocks cover all pixels and channels once.
        unsafe { launch.run([pixels.div_ceil(pixels_per_block), columns, 1], [width, height, 1]) }?;
        Ok(out)
    }
}
