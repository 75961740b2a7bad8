//! Launches cuda/group_norm.cu: `group_norm` and `group_norm_silu`.

use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::channel_statistics::ChannelStatistics;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::{Error, Result};
use crate::ops::GroupNorm;

/// Threads of a block.
const THREADS: usize = 256;
/// Threads of a block that merges.
const MERGE_THREADS: usize = 1024;
/// Blocks of the first pass per multiprocessor: as many as run at once (with up to 64 registers per thread).
const BLOCKS_PER_MULTIPROCESSOR: usize = 4;
/// The min pixels per thread of the first pass.
const PIXELS_PER_SPLIT_THREAD: usize = 8;
/// Pixels per thread of the last pass.
const PIXELS_PER_THREAD: usize = 16;

/// The layout of threads over pixels and channels.
struct Blocks {
    /// `true` if a thread has eight channels; otherwise one.
    wide: bool,
    /// Threads along the channels.
    width: usize,
    /// Threads of a channel.
    height: usize,
    /// Blocks along the channels.
    columns: usize,
}

impl Blocks {
    fn new(channels: usize, wide: bool) -> Self {
        let runs = if wide { channels / 8 } else { channels };
        let width = runs.min(THREADS);
        Self { wide, width, height: THREADS / width, columns: runs.div_ceil(width) }
    }
}

/// A factor and a summand for the values of each channel: two floats per channel.
pub struct Coefficients(Buffer);

impl Cuda {
    pub(crate) fn group_norm_op(
        &self,
        x: &Tensor<Cuda>,
        norm: &GroupNorm<'_, Cuda>,
        silu: bool,
    ) -> Result<Tensor<Cuda>> {
        let out = self.empty(x.rows(), x.cols())?;
        if x.rows() > 0 {
            let coefficients = self.group_norm_coefficients(x, norm)?;
            self.apply_group_norm(x, &coefficients, &out, silu)?;
        }
        Ok(out)
    }

    /// Returns the coefficients of the norm of x, from its statistics or from a pass over it. x must have rows.
    pub(crate) fn group_norm_coefficients(&self, x: &Tensor<Cuda>, norm: &GroupNorm<'_, Cuda>) -> Result<Coefficients> {
        let &GroupNorm { weight, bias, groups, eps, statistics } = norm;
        let channels = x.cols();
        let fresh = if statistics.is_some() { None } else { Some(self.channel_statistics_of(x)?) };
        let statistics = fresh.as_ref().or(statistics).expect("statistics were passed or computed");
        if statistics.channels() != channels {
            let what = format!("x has {channels} channels, but its statistics have {}", statistics.channels());
            return Err(Error::new(what).at("op `group_norm`"));
        }
        let coefficients = Buffer::new(self.device(), BufferKind::F32, 2 * channels)?;

        let launch = self.launch("group_norm", "group_norm_merge")?;
        let launch = launch.address(statistics.partial()).address(statistics.counts());
        let launch = launch.vector(weight).vector(bias).address(coefficients.address());
        let launch = launch.int(statistics.splits).int(channels).int(channels / groups).float(eps);
        // SAFETY: argument types and order match cuda/group_norm.cu; `Tensor::group_norm` checked that groups divide
        // the channels, and weight and bias to be [1, channels]; the statistics are of `channels` channels;
        // `coefficients` has two floats for each channel; the block has the MERGE_THREADS threads that the kernel
        // needs.
        unsafe { launch.run([groups, 1, 1], [MERGE_THREADS, 1, 1]) }?;
        Ok(Coefficients(coefficients))
    }

    /// Writes the norm of some rows to `out`, of equal shape. `coefficients` are those of all rows.
    pub(crate) fn apply_group_norm(
        &self,
        x: &Tensor<Cuda>,
        coefficients: &Coefficients,
        out: &Tensor<Cuda>,
        silu: bool,
    ) -> Result<()> {
        let (pixels, channels) = (x.rows(), x.cols());
        let Blocks { wide, width, height, columns } = Blocks::new(channels, all_aligned(&[x, out]));
        let kernel = match (wide, silu) {
            (true, false) => "group_norm",
            (false, false) => "group_norm_any",
            (true, true) => "group_norm_silu",
            (false, true) => "group_norm_silu_any",
        };
        let pixels_per_block = height * PIXELS_PER_THREAD;
        let launch = self.launch("group_norm", kernel)?.matrix(x).address(coefficients.0.address()).matrix(out);
        let launch = launch.int(pixels).int(channels).int(pixels_per_block);
        // SAFETY: argument types and order match cuda/group_norm.cu; `coefficients` has two floats for each channel,
        // `out` is of the shape of x, and the grid's blocks cover all pixels and channels once.
        unsafe { launch.run([pixels.div_ceil(pixels_per_block), columns, 1], [width, height, 1]) }
    }

    /// Computes the channel statistics of x in a pass over it. x must have rows.
    pub(crate) fn channel_statistics_of(&self, x: &Tensor<Cuda>) -> Result<ChannelStatistics> {
        let Blocks { wide, width, height, columns } = Blocks::new(x.cols(), x.aligned());
        let blocks = (self.device().multiprocessors() * BLOCKS_PER_MULTIPROCESSOR).div_ceil(columns);
        // No split is empty: each has pixels in the first round of `splits * height`.
        let splits = x.rows().div_ceil(height * PIXELS_PER_SPLIT_THREAD).min(blocks);
        let statistics = ChannelStatistics::new(self, splits, x.cols())?;
        let kernel = if wide { "group_norm_stats" } else { "group_norm_stats_any" };
        let launch =
            self.launch("group_norm", kernel)?.matrix(x).address(statistics.partial()).address(statistics.counts());
        let launch = launch.int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match cuda/group_norm.cu; x is [pixels, channels], the statistics have two
        // floats for each split and channel and one for each split, and a block has at most THREADS threads, for which
        // its shared memory is sized.
        unsafe { launch.run([splits, columns, 1], [width, height, 1]) }?;
        Ok(statistics)
    }
}
