//! Launches cuda/low_rank_sm90a.cu: `low_rank` on Hopper, in one kernel. Other GPUs run its composition.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::project_tiles::rows_of_tiles;
use crate::backend::cuda::hopper::Choice;
use crate::backend::cuda::layout::assert_layout;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::nn::Linear;
use crate::ops::Products;
use crate::ops::low_rank::compose;

/// `FLUX_LOW_RANK=base` disables this kernel; `FLUX_LOW_RANK=sm90` makes it an error if this GPU or this program has
/// none, and `sm90-always` also runs it when its clusters would idle.
const CHOICE: Choice = Choice { op: "low_rank", variable: "FLUX_LOW_RANK", file: "low_rank_sm90a", forms: &[ALWAYS] };
const ALWAYS: &str = "sm90-always";
/// `ROWS`, `COLS`, `STEP_BYTES`, `STAGES`, `BOX`, `MAX_RANK`, `MAX_TILE_ROWS` and `THREADS` of cuda/low_rank_sm90a.cu.
const ROWS: usize = 128;
const COLS: usize = 256;
const STEP_BYTES: usize = 128;
const STAGES: usize = 4;
const BOX: usize = 16;
const MAX_RANK: usize = 128;
const MAX_TILE_ROWS: usize = 1024;
const THREADS: usize = 3 * 128;
/// `BARRIERS` of that file, and two barriers for each stage.
pub(super) const SHARED_BYTES: usize = STAGES * ((ROWS + COLS) * STEP_BYTES + 16);
/// Columns of narrow tiles, and their time in hundredths of a whole tile's time.
const NARROW: [(usize, usize); 3] = [(32, 35), (96, 45), (128, 56)];
const WHOLE_TIME: usize = 100;
/// The kernel saves a tenth to a quarter of the composition's time, in e4m3 a third, so with clusters that idle longer
/// it saves nothing.
const MIN_BUSY_PERCENT: usize = 85;
const MIN_BUSY_PERCENT_E4M3: usize = 65;

/// `Arguments` in cuda/low_rank_sm90a.cu, field by field.
#[repr(C)]
struct Arguments {
    x: [sys::CUtensorMap; 2],
    weight: [sys::CUtensorMap; 2],
    weight_boxes: [sys::CUtensorMap; 2],
    down_boxes: [sys::CUtensorMap; 2],
    up: [sys::CUtensorMap; 2],
    up_boxes: [sys::CUtensorMap; 2],
    low: [sys::CUtensorMap; 2],
    x_scales: [u64; 2],
    weight_scales: [u64; 2],
    down_scales: [u64; 2],
    down_rows: [i32; 2],
    low_rows: u64,
    out: u64,
    ld_out: i64,
    part_rows: [i32; 2],
    features: i32,
    cols: i32,
    rank: i32,
    whole_cols: i32,
    narrow_cols: i32,
    narrow_width: i32,
    rows_of_tiles: i32,
}

assert_layout! { Arguments: 1920, x: 0, weight: 256, weight_boxes: 512, down_boxes: 768, up: 1024, up_boxes: 1280,
low: 1536, x_scales: 1792, weight_scales: 1808, down_scales: 1824, down_rows: 1840, low_rows: 1848, out: 1856,
ld_out: 1864, part_rows: 1872, features: 1880, cols: 1884, rank: 1888, whole_cols: 1892, narrow_cols: 1896,
narrow_width: 1900, rows_of_tiles: 1904 }

/// One part: x with rows, its weight, and the factors of the weight.
struct FactorPair<'a> {
    x: &'a Tensor<Cuda>,
    weight: &'a Weight,
    down: &'a Weight,
    up: &'a Weight,
}

/// The tiling of the columns of `down` and of the weight: whole tiles of COLS, followed by narrow ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiling {
    whole_cols: usize,
    narrow_cols: usize,
    narrow_width: usize,
    /// The time of the slowest cluster, in hundredths of a whole tile's time.
    time: usize,
}

impl Tiling {
    /// Creates `rows` rows of tiles. `clusters` process all whole tiles round-robin, and then the narrow ones.
    fn new([whole_cols, narrow_cols, narrow_width]: [usize; 3], cost: usize, rows: usize, clusters: usize) -> Self {
        let (whole, all) = (rows * whole_cols, rows * (whole_cols + narrow_cols));
        // Returns how many of the first `items` items a cluster processes.
        let taken = |items: usize, cluster: usize| (items + clusters - 1 - cluster) / clusters;
        let time = |cluster| {
            let of_whole = taken(whole, cluster);
            of_whole * WHOLE_TIME + (taken(all, cluster) - of_whole) * cost
        };
        Self { whole_cols, narrow_cols, narrow_width, time: (0..clusters).map(time).max().unwrap_or(0) }
    }

    /// Returns the fastest tiling of `cols` columns. At least the first column of tiles is whole.
    fn find(rows: usize, cols: usize, clusters: usize) -> Self {
        let most = cols.div_ceil(COLS);
        let all_whole = Self::new([most, 0, NARROW[0].0], NARROW[0].1, rows, clusters);
        let fewer = (most.saturating_sub(3).max(1)..most).flat_map(|whole| {
            let narrow = move |(width, cost)| {
                Self::new([whole, (cols - whole * COLS).div_ceil(width), width], cost, rows, clusters)
            };
            NARROW.into_iter().map(narrow)
        });
        std::iter::once(all_whole).chain(fewer).min_by_key(|tiling| tiling.time).unwrap_or(all_whole)
    }

    /// Returns the share of the clusters' time spent on `rows` rows of tiles of `cols` columns, in percent.
    fn busy_percent(&self, rows: usize, cols: usize, clusters: usize) -> usize {
        rows * cols * WHOLE_TIME * 100 / (COLS * clusters * self.time).max(1)
    }
}

/// Returns the parts that have rows, if the kernel supports them: at most two, with low-rank factors, all of bf16, or
/// all except up of e4m3, and aligned for TMA and 16-byte stores.
fn parts<'a>(operands: &[(&'a Tensor<Cuda>, &'a Linear<Cuda>)]) -> Option<Vec<FactorPair<'a>>> {
    let with_rows = operands.iter().filter(|(x, _)| x.rows() > 0);
    let part = |&(x, weight): &(&'a Tensor<Cuda>, &'a Linear<Cuda>)| {
        let factors = weight.low_rank()?;
        let part = FactorPair { x, weight: weight.weight(), down: factors.down.weight(), up: factors.up.weight() };
        let of_x = x.quantized_kind();
        let alike = [part.weight, part.down].iter().all(|weight| weight.quantized_kind() == of_x);
        let known = (of_x.is_none() || x.is_e4m3()) && part.up.quantized_kind().is_none();
        let aligned = x.aligned() && part.weight.rows().is_multiple_of(8);
        (alike && known && aligned && (1..=MAX_RANK).contains(&part.down.rows())).then_some(part)
    };
    let parts: Vec<_> = with_rows.map(part).collect::<Option<_>>()?;
    let first = parts.first()?;
    let tile_rows: usize = parts.iter().map(|part| part.x.rows().div_ceil(2 * ROWS)).sum();
    let fits = parts.len() <= 2 && tile_rows <= MAX_TILE_ROWS && first.x.cols() > 0;
    let alike = |part: &FactorPair<'_>| part.x.cols() == first.x.cols() && part.x.is_e4m3() == first.x.is_e4m3();
    (fits && parts.iter().all(alike)).then_some(parts)
}

impl Cuda {
    /// Reads adjacent columns in place if they are contiguous in memory, otherwise from a copy.
    pub(crate) fn low_rank_op(&self, products: Products<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Some(form) = self.hopper_form(CHOICE)? else { return compose(self, products) };
        match products {
            Products::Rows(operands) if operands.iter().all(|(_, weight)| weight.weight().is_e4m3()) => {
                // Quantize once for the weight and for down.
                let pairs: Vec<_> = operands.iter().map(|(x, weight)| (*x, weight.weight())).collect();
                let fresh = self.operands(&pairs)?;
                let quantized =
                    operands.iter().zip(&fresh).map(|((x, weight), fresh)| (fresh.as_ref().unwrap_or(x), *weight));
                self.low_rank_of(&quantized.collect::<Vec<_>>(), form)
            }
            Products::Rows(operands) => self.low_rank_of(operands, form),
            Products::Columns(x, weight) => {
                let joined = Tensor::adjacent_cols(x).map_or_else(|| self.concat_cols_op(x), Ok)?;
                self.low_rank_op(Products::Rows(&[(&joined, weight)]))
            }
        }
    }

    /// Computes `low_rank` of converted x, with this kernel if it supports them and its clusters are busy.
    fn low_rank_of(&self, operands: &[(&Tensor<Cuda>, &Linear<Cuda>)], form: &str) -> Result<Tensor<Cuda>> {
        let composed = || compose(self, Products::Rows(operands));
        let Some(mut parts) = parts(operands) else { return composed() };
        // In e4m3 the kernel keeps its sums in the tensor cores.
        if parts[0].x.is_e4m3() && !self.gemm()?.fast_accumulation() {
            return composed();
        }
        let clusters = (self.device().multiprocessors() / 2).max(1);
        let tile_rows = parts.iter().map(|part| part.x.rows().div_ceil(2 * ROWS)).sum();
        let rank = parts.iter().map(|part| part.down.rows()).max().unwrap_or(0).next_multiple_of(BOX);
        let cols = rank + parts[0].weight.rows();
        let tiling = Tiling::find(tile_rows, cols, clusters);
        let least = if parts[0].x.is_e4m3() { MIN_BUSY_PERCENT_E4M3 } else { MIN_BUSY_PERCENT };
        if form != ALWAYS && tiling.busy_percent(tile_rows, cols, clusters) < least {
            return composed();
        }
        let ready = parts.iter().map(|part| self.ready(part.weight)).collect::<Result<Vec<_>>>()?;
        parts.iter_mut().zip(&ready).for_each(|(part, ready)| part.weight = ready);
        self.run_low_rank(&parts, rank, tiling, tile_rows)
    }

    fn run_low_rank(
        &self,
        parts: &[FactorPair<'_>],
        rank: usize,
        tiling: Tiling,
        tile_rows: usize,
    ) -> Result<Tensor<Cuda>> {
        // Load first: a driver that loads this kernel supports tensor maps too.
        let kernel = if parts[0].x.is_e4m3() { "low_rank_e4m3_sm90" } else { "low_rank_sm90" };
        let launch = self.launch(CHOICE.file, kernel)?.shared(SHARED_BYTES as u32)?.all_at_once();
        let rows = parts.iter().map(|part| part.x.rows()).sum();
        let (out, low) = (self.empty(rows, parts[0].weight.rows())?, self.empty(rows, rank)?);
        CHOICE.int(rows)?;
        let items = tile_rows * (tiling.whole_cols + tiling.narrow_cols);
        let mut arguments = arguments(parts, tiling, tile_rows, &low, &out)?;
        let clusters = items.min(launch.pairs_at_once(THREADS)?);
        let mut pointers: [*mut c_void; 1] = [std::ptr::from_mut(&mut arguments).cast()];
        // SAFETY: the kernel takes `Arguments`, laid out as there, in clusters of two blocks, with THREADS threads and
        // SHARED_BYTES of shared memory. The maps cover exactly the cells of x, of the weights and of the factors,
        // which in e4m3 have a scale for each row, down including its padding; `low` and `out` were made for all rows
        // and columns.
        // `Tensor::low_rank` checked the shapes; `parts` found all rows aligned, a rank of at most MAX_RANK and at most
        // MAX_TILE_ROWS rows of tiles.
        unsafe { launch.run_raw([2 * clusters, 1, 1], [THREADS, 1, 1], &mut pointers) }?;
        Ok(out)
    }
}

fn arguments(
    parts: &[FactorPair<'_>],
    tiling: Tiling,
    tile_rows: usize,
    low: &Tensor<Cuda>,
    out: &Tensor<Cuda>,
) -> Result<Arguments> {
    // A missing second part has no tiles, so the maps of the first stand in for its own.
    let part = |index: usize| parts.get(index).unwrap_or(&parts[0]);
    let both = |of: &dyn Fn(usize) -> Result<sys::CUtensorMap>| Ok::<_, crate::error::Error>([of(0)?, of(1)?]);
    let of_weights = |weight: for<'a> fn(&FactorPair<'a>) -> &'a Weight, in_box: usize| {
        both(&|index| {
            let weight = weight(part(index));
            let shape = [weight.rows(), weight.cols()];
            CHOICE.rows_map(weight.is_e4m3(), weight.address(), shape, weight.stride(), in_box)
        })
    };
    let x = both(&|index| {
        let x = part(index).x;
        CHOICE.rows_map(x.is_e4m3(), x.address(), [x.rows(), x.cols()], x.stride(), ROWS)
    })?;
    let low_map = both(&|index| {
        let first = if index < parts.len() { index * parts[0].x.rows() } else { 0 };
        let address = low.address() + (first * low.stride() * 2) as u64;
        CHOICE.rows_map(false, address, [part(index).x.rows(), low.cols()], low.stride(), ROWS)
    })?;
    let scales = |of: &dyn Fn(&FactorPair<'_>) -> u64| [0, 1].map(|index| of(part(index)));
    let down_rows = [0, 1].map(|index| CHOICE.int(part(index).down.padded_rows()));
    let [first_down, second_down] = down_rows;
    let rows = |index: usize| CHOICE.int(parts.get(index).map_or(0, |part| part.x.rows()));
    Ok(Arguments {
        x,
        weight: of_weights(|part| part.weight, COLS / 2)?,
        weight_boxes: of_weights(|part| part.weight, BOX)?,
        down_boxes: of_weights(|part| part.down, BOX)?,
        up: of_weights(|part| part.up, COLS / 2)?,
        up_boxes: of_weights(|part| part.up, BOX)?,
        low: low_map,
        x_scales: scales(&|part| part.x.scales()),
        weight_scales: scales(&|part| part.weight.scales()),
        down_scales: scales(&|part| part.down.scales()),
        down_rows: [first_down?, second_down?],
        low_rows: low.address(),
        out: out.address(),
        ld_out: out.stride() as i64,
        part_rows: [rows(0)?, rows(1)?],
        features: CHOICE.int(parts[0].x.cols())?,
        cols: CHOICE.int(out.cols())?,
        rank: CHOICE.int(low.cols())?,
        whole_cols: CHOICE.int(tiling.whole_cols)?,
        narrow_cols: CHOICE.int(tiling.narrow_cols)?,
        narrow_width: CHOICE.int(tiling.narrow_width)?,
        rows_of_tiles: CHOICE.int(rows_of_tiles(tile_rows))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_fits_the_shared_memory_of_hopper() {
        const { assert!(SHARED_BYTES <= 227 << 10) }
        assert_eq!(SHARED_BYTES, 4 * 48 * 1024 + 64);
    }

    #[test]
    fn the_last_clusters_get_narrow_tiles() {
        // 1024 x 1024 with klein 4B and 9B, and 2048 x 2048, on the 132 multiprocessors of an H200.
        let tiling = |rows, cols| {
            let Tiling { whole_cols, narrow_cols, narrow_width, time } = Tiling::find(rows, cols, 66);
            [whole_cols, narrow_cols, narrow_width, time]
        };
        assert_eq!(tiling(18, 32 + 3072), [11, 3, 96, 345]);
        assert_eq!(tiling(18, 32 + 4096), [14, 6, 96, 490]);
        assert_eq!(tiling(66, 32 + 3072), [11, 3, 96, 1235]);
        assert_eq!(tiling(1, 16 + 8), [1, 0, 32, 100]);
        // 512 x 512.
        assert_eq!(tiling(6, 32 + 3072), [11, 9, 32, 135]);
    }

    #[test]
    fn tilings_cover_all_columns_and_no_tile_is_empty() {
        for rows in [1, 6, 18, 66] {
            for cols in [24, 256, 257, 600, 3104, 4224] {
                for clusters in [1, 57, 66] {
                    let tiling = Tiling::find(rows, cols, clusters);
                    let Tiling { whole_cols, narrow_cols, narrow_width, .. } = tiling;
                    let reach = whole_cols * COLS + narrow_cols * narrow_width;
                    let last = if narrow_cols > 0 { narrow_width } else { COLS };
                    assert!(whole_cols > 0 && reach >= cols && reach - cols < last, "{cols}: {tiling:?}");
                    assert!(tiling.busy_percent(rows, cols, clusters) <= 100, "{rows} x {cols}: {tiling:?}");
                }
            }
        }
    }

    #[test]
    fn a_share_of_the_clusters_time_says_whether_they_idle() {
        let percent = |rows, cols| Tiling::find(rows, cols, 66).busy_percent(rows, cols, 66);
        assert_eq!([percent(18, 3104), percent(18, 4128), percent(6, 3104)], [95, 89, 81]);
    }
}
