//! Launches cuda/project_sm90a.cu: `project` on Hopper, in one kernel, also with low-rank factors. Other GPUs run its
//! composition, except for 8-bit weights, which have their own kernels that include the MLP's activation function.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::attention_e4m3::Values;
use super::factors::Factors;
use super::project_tiles::{self, KERNELS, Tiles};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::hopper::Choice;
use crate::backend::cuda::layout::assert_layout;
use crate::backend::cuda::weight::Weight;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::nn::{Linear, LowRank, Operand};
use crate::ops::project::{Heads, Projection, compose};
use crate::ops::{Pairs, TokenLayout};

/// `FLUX_PROJECT=base` disables this kernel; `FLUX_PROJECT=sm90` makes it an error if this GPU or this program has
/// none.
const CHOICE: Choice = Choice {
    op: "project",
    variable: "FLUX_PROJECT",
    file: "project_sm90a",
    forms: &[KERNELS[0].form, KERNELS[1].form],
};
/// `THREADS` and `DOWN_ROWS` of cuda/project_tiles_sm90a.cuh, and the multiple of the rank.
const THREADS: usize = 3 * 128;
const DOWN_ROWS: usize = 128;
const RANK_MULTIPLE: usize = 16;
/// Rows of a weight in a box: `CONSUMER_COLS` of that file.
const WEIGHT_BOX: usize = 64;
/// Columns of a head.
const HEAD_DIM: usize = 128;

/// `Arguments` in cuda/project_tiles_sm90a.cuh, field by field.
#[repr(C)]
struct Arguments {
    x: [sys::CUtensorMap; 2],
    weight: [sys::CUtensorMap; 2],
    down: [sys::CUtensorMap; 2],
    low: [sys::CUtensorMap; 2],
    up: [sys::CUtensorMap; 2],
    x_scales: [u64; 2],
    weight_scales: [u64; 2],
    down_scales: [u64; 2],
    down_rows: [i32; 2],
    low_rows: u64,
    out: u64,
    ld_out: i64,
    txt_norm_q: u64,
    txt_norm_k: u64,
    img_norm_q: u64,
    img_norm_k: u64,
    cos: u64,
    sin: u64,
    v8: u64,
    v_tiles: u64,
    ld_table: i64,
    txt_eps: f32,
    img_eps: f32,
    part_rows: [i32; 2],
    ranks: [i32; 2],
    ld_low: i32,
    features: i32,
    dim: i32,
    mlp: i32,
    txt_rows: i32,
    txt: i32,
    img: i32,
    rows_of_tiles: i32,
    key_tiles: i32,
    heads_in_e4m3: i32,
    key_rows: i32,
}

assert_layout! { Arguments: 1536, x: 0, weight: 256, down: 512, low: 768, up: 1024, x_scales: 1280,
weight_scales: 1296, down_scales: 1312, down_rows: 1328, low_rows: 1336, out: 1344, ld_out: 1352, txt_norm_q: 1360,
txt_norm_k: 1368, img_norm_q: 1376, img_norm_k: 1384, cos: 1392, sin: 1400, v8: 1408, v_tiles: 1416, ld_table: 1424,
txt_eps: 1432, img_eps: 1436, part_rows: 1440, ranks: 1448, ld_low: 1456, features: 1460, dim: 1464, mlp: 1468,
txt_rows: 1472, txt: 1476, img: 1480, rows_of_tiles: 1484, key_tiles: 1488, heads_in_e4m3: 1492, key_rows: 1496 }

/// The operands of the kernel: x and the weight of each part, and their low-rank factors.
struct Operands<'a> {
    parts: Vec<(&'a Tensor<Cuda>, &'a Weight)>,
    low_rank: Vec<Option<Factors<'a>>>,
}

/// Returns `true` if the kernel supports these operands: its tiles divide the weight's rows, and all tensors are
/// aligned for TMA and 16-byte accesses. x will be e4m3 if the weight is. Integers are not supported.
fn takes(parts: &[(&Tensor<Cuda>, &Weight)], heads: Option<&Heads<'_, Cuda>>) -> bool {
    let (dim, out) = (heads.map_or(0, |heads| heads.dim), parts[0].1.rows());
    let sizes =
        dim.is_multiple_of(project_tiles::COLS) && (out - 3 * dim).is_multiple_of(project_tiles::COLS) && out > 0;
    let e4m3 = parts[0].1.is_e4m3();
    let x_fits = |x: &Tensor<Cuda>| x.cols() > 0 && (e4m3 && !x.is_e4m3() || x.aligned());
    let tensors =
        parts.iter().all(|(x, weight)| weight.is_e4m3() == e4m3 && x_fits(x) && weight.stride() == weight.cols())
            && !parts.iter().any(|(_, weight)| weight.is_int8());
    let norms = heads.is_none_or(|Heads { norm, rope, .. }| {
        let vectors = [&norm[0].q, &norm[0].k, &norm[1].q, &norm[1].k, &rope.cos, &rope.sin];
        2 * rope.cos.cols() == HEAD_DIM
            && rope.pairs == Pairs::Interleaved
            && rope.cos.stride() == rope.sin.stride()
            && all_aligned(&vectors)
    });
    parts.len() <= 2 && parts.iter().any(|(x, _)| x.rows() > 0) && sizes && tensors && norms
}

/// Returns `true` if the kernel supports the low-rank factors of a layer: down in the type of the weight, and up in
/// bf16.
fn takes_factors(linear: &Linear<Cuda>) -> bool {
    linear.low_rank().is_none_or(|LowRank { down, up }| {
        let kind = linear.weight().quantized_kind();
        down.weight().quantized_kind() == kind && up.weight().quantized_kind().is_none()
    })
}

impl Cuda {
    /// Returns `true` if this GPU has the kernel, and it is enabled.
    ///
    /// Errors if `FLUX_PROJECT` names no available kernel.
    pub(super) fn projects_in_one(&self) -> Result<bool> {
        self.hopper_wanted(CHOICE)
    }

    pub(crate) fn project_op(
        &self,
        operands: &[(&Operand<Cuda>, &Linear<Cuda>)],
        heads: Option<&Heads<'_, Cuda>>,
    ) -> Result<Projection<Cuda>> {
        match self.project_fused(operands, heads)? {
            Some(projection) => Ok(projection),
            None => compose(self, operands, heads),
        }
    }

    /// Computes `project` with fused kernels; `None` if its composition must run.
    pub(super) fn project_fused(
        &self,
        operands: &[(&Operand<Cuda>, &Linear<Cuda>)],
        heads: Option<&Heads<'_, Cuda>>,
    ) -> Result<Option<Projection<Cuda>>> {
        let by_mma =
            |linear: &Linear<Cuda>| Ok(self.multiplies_by_mma(linear.weight())? && linear.low_rank().is_none());
        let by_mma = operands.iter().map(|(_, linear)| by_mma(linear)).collect::<Result<Vec<_>>>()?;
        if by_mma.iter().all(|by_mma| *by_mma) {
            return self.project_quantized(operands, heads).map(Some);
        }
        self.project_in_one(operands, heads, None)
    }

    /// Computes `project` in one kernel; `None` if the kernel doesn't support the operands. `values` require weights in
    /// e4m3. k and q are then stored in e4m3 in the first half of the bytes of each head, with the scale derived from
    /// their norms, and v in `values` if its tiles allow that.
    ///
    /// Errors if `FLUX_PROJECT` names no available kernel.
    pub(super) fn project_in_one<'a>(
        &self,
        operands: &[(&Operand<Cuda>, &'a Linear<Cuda>)],
        heads: Option<&Heads<'_, Cuda>>,
        values: Option<&mut Values>,
    ) -> Result<Option<Projection<Cuda>>> {
        let parts: Vec<_> = operands.iter().map(|(x, weight)| (x.tensor(), weight.weight())).collect();
        // In e4m3 the kernel keeps its sums in the tensor cores.
        let sums = |weight: &Weight| Ok(!weight.is_e4m3() || self.gemm()?.fast_accumulation());
        let taken = takes(&parts, heads)
            && operands.iter().all(|(_, linear)| takes_factors(linear))
            && (parts[0].1.is_e4m3() || values.is_none());
        if !self.projects_in_one()? || !taken || !sums(parts[0].1)? {
            return Ok(None);
        }
        let ready = parts.iter().map(|(_, weight)| self.ready(weight)).collect::<Result<Vec<_>>>()?;
        let parts: Vec<_> = parts.iter().zip(&ready).map(|((x, _), weight)| (*x, &**weight)).collect();
        let dim = heads.map_or(0, |heads| heads.dim);
        let mlp = (parts[0].1.rows() - 3 * dim) / 2;
        let out = self.empty(parts.iter().map(|(x, _)| x.rows()).sum(), 3 * dim + mlp)?;
        let fresh = self.operands(&parts)?;
        let quantized: Vec<_> =
            parts.iter().zip(&fresh).map(|((x, weight), fresh)| (fresh.as_ref().unwrap_or(x), *weight)).collect();
        let beside = |(&(x, weight), (_, layer)): (&(&Tensor<Cuda>, &Weight), &(_, &'a Linear<Cuda>))| {
            layer.low_rank().filter(|_| x.rows() > 0).map(|factors| self.factors(weight, factors)).transpose()
        };
        let low_rank = quantized.iter().zip(operands).map(beside).collect::<Result<_>>()?;
        self.run_project(&Operands { parts: quantized, low_rank }, heads, values, [dim, mlp], &out)?;
        let [k, v, q, mlp] = out.split_cols([dim, dim, dim, mlp]);
        let without_query = heads.map_or(0, |heads| heads.layout.rows_without_query());
        let ((_, q), (_, mlp)) = (q.split_rows(without_query), mlp.split_rows(without_query));
        Ok(Some(Projection { kvq: [k, v, q], mlp }))
    }

    fn run_project(
        &self,
        operands: &Operands<'_>,
        heads: Option<&Heads<'_, Cuda>>,
        mut values: Option<&mut Values>,
        [dim, mlp]: [usize; 2],
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let Operands { parts, low_rank } = operands;
        let most_clusters = self.device().multiprocessors() / 2;
        let cols = [3 * dim + 2 * mlp, 2 * dim].map(|cols| cols / project_tiles::COLS);
        let part_rows = [0, 1].map(|part| parts.get(part).map_or(0, |(x, _)| x.rows()));
        let keys_only = heads.map_or(0, |heads| heads.layout.rows_without_query());
        let form = self.hopper_form(CHOICE)?;
        let tiles = match KERNELS.into_iter().find(|kernels| form == Some(kernels.form)) {
            Some(kernels) => Tiles::new(kernels, part_rows, keys_only),
            None => Tiles::fastest(part_rows, keys_only, cols, most_clusters),
        };
        let kernel = match (parts[0].1.is_e4m3(), low_rank.iter().any(Option::is_some)) {
            (false, false) => tiles.kernels.bf16,
            (false, true) => tiles.kernels.low_rank,
            (true, false) => tiles.kernels.e4m3,
            (true, true) => tiles.kernels.e4m3_low_rank,
        };
        // Load before creating maps: a driver that loads this kernel supports them too.
        let mut launch = self.launch(CHOICE.file, kernel)?.shared(tiles.shared_bytes() as u32)?;
        let rank = low_rank.iter().flatten().map(|factors| factors.down.rows()).max().unwrap_or(0);
        let rank = rank.next_multiple_of(RANK_MULTIPLE);
        let low = self.empty(if rank > 0 { out.rows() } else { 0 }, rank)?;
        let with_factors = parts.iter().zip(low_rank).filter(|(_, factors)| factors.is_some());
        let low_tiles: usize = with_factors.map(|((x, _), _)| x.rows().div_ceil(tiles.height())).sum();
        let items = tiles.count(cols) + low_tiles * rank.div_ceil(DOWN_ROWS);
        CHOICE.int(out.rows())?;
        CHOICE.int(items)?;
        if let Some(values) = &mut values {
            values.are_stored = values.are_tiles_of(tiles.height(), part_rows);
        }
        let mut arguments = arguments(operands, heads, values.as_deref(), [dim, mlp], out, &low, tiles)?;
        let mut clusters = items.min(most_clusters).max(1);
        if low_tiles > 0 {
            // Clusters wait for `low`, which other clusters compute.
            clusters = clusters.min(launch.pairs_at_once(THREADS)?);
            launch = launch.all_at_once();
        }
        let mut pointers: [*mut c_void; 1] = [std::ptr::from_mut(&mut arguments).cast()];
        // SAFETY: the kernel takes `Arguments`, laid out as there, in clusters of two blocks, with THREADS threads and
        // the shared memory of its tiles. The maps cover exactly the cells of x, of the weights, which in e4m3 have a
        // scale for each row, and of their low-rank factors, down in e4m3 with scales for its padding, too; `low`,
        // `out` and `values` were made for all rows and columns.
        // `Tensor::project` checked the weights' rows, the norms [1, head_dim], and the tables to have a row for every
        // token; `takes` found the tiles to divide the columns, and all rows and vectors aligned.
        unsafe { launch.run_raw([2 * clusters, 1, 1], [THREADS, 1, 1], &mut pointers) }
    }
}

/// Returns the kernel's arguments.
fn arguments(
    Operands { parts, low_rank }: &Operands<'_>,
    heads: Option<&Heads<'_, Cuda>>,
    values: Option<&Values>,
    [dim, mlp]: [usize; 2],
    out: &Tensor<Cuda>,
    low: &Tensor<Cuda>,
    tiles: Tiles,
) -> Result<Arguments> {
    let e4m3 = parts[0].1.is_e4m3();
    let x_map =
        |x: &Tensor<Cuda>| CHOICE.rows_map(x.is_e4m3(), x.address(), [x.rows(), x.cols()], x.stride(), tiles.x_box());
    let weight_map = |weight: &Weight| {
        let shape = [weight.rows(), weight.cols()];
        CHOICE.rows_map(weight.is_e4m3(), weight.address(), shape, weight.stride(), WEIGHT_BOX)
    };
    // The driver rejects maps of a part without rows. Such a part has no tiles, so the map of the other stands in for
    // it.
    let rows = |part: usize| parts.get(part).map_or(0, |(x, _)| x.rows());
    let part = |part: usize| parts[if rows(part) > 0 { part } else { 1 - part }];
    let low_rank = |index: usize| low_rank.get(index).and_then(Option::as_ref);
    // The kernel reads no factors of a part without them, so the maps of x and its weight stand in for theirs.
    let low_map = |index: usize| match low_rank(index) {
        None => x_map(part(index).0),
        Some(_) => {
            let address = low.address() + (index * rows(0) * low.stride() * Element::BYTES) as u64;
            CHOICE.rows_map(false, address, [rows(index), low.cols()], low.stride(), tiles.x_box())
        }
    };
    let factor_map = |index: usize, of: for<'f> fn(&'f Factors<'_>) -> &'f Weight| {
        weight_map(low_rank(index).map_or(part(index).1, of))
    };
    let down = |index: usize| factor_map(index, |factors| &factors.down);
    let up = |index: usize| factor_map(index, |factors| &factors.up);
    let rank = |index: usize| {
        CHOICE.int(low_rank(index).map_or(0, |factors| factors.down.rows().next_multiple_of(RANK_MULTIPLE)))
    };
    let down_rows = |index: usize| CHOICE.int(low_rank(index).map_or(0, |factors| factors.down.padded_rows()));
    let norms = heads
        .map_or([0; 4], |Heads { norm, .. }| [&norm[0].q, &norm[0].k, &norm[1].q, &norm[1].k].map(Tensor::address));
    let layout = heads.map_or(TokenLayout::single(out.rows()), |heads| heads.layout);
    Ok(Arguments {
        x: [x_map(part(0).0)?, x_map(part(1).0)?],
        weight: [weight_map(part(0).1)?, weight_map(part(1).1)?],
        down: [down(0)?, down(1)?],
        low: [low_map(0)?, low_map(1)?],
        up: [up(0)?, up(1)?],
        x_scales: [0, 1].map(|index| if e4m3 { part(index).0.scales() } else { 0 }),
        weight_scales: [0, 1].map(|index| if e4m3 { part(index).1.scales() } else { 0 }),
        down_scales: [0, 1].map(|index| low_rank(index).map_or(0, |factors| factors.down.scales())),
        down_rows: [down_rows(0)?, down_rows(1)?],
        low_rows: low.address(),
        out: out.address(),
        ld_out: out.stride() as i64,
        txt_norm_q: norms[0],
        txt_norm_k: norms[1],
        img_norm_q: norms[2],
        img_norm_k: norms[3],
        cos: heads.map_or(0, |heads| heads.rope.cos.address()),
        sin: heads.map_or(0, |heads| heads.rope.sin.address()),
        v8: values.filter(|values| values.are_stored).map_or(0, |values| values.v8),
        v_tiles: values.map_or(0, |values| values.v_tiles),
        ld_table: heads.map_or(0, |heads| heads.rope.cos.stride() as i64),
        txt_eps: heads.map_or(0.0, |heads| heads.norm[0].eps),
        img_eps: heads.map_or(0.0, |heads| heads.norm[1].eps),
        part_rows: [CHOICE.int(rows(0))?, CHOICE.int(rows(1))?],
        ranks: [rank(0)?, rank(1)?],
        ld_low: CHOICE.int(low.cols())?,
        features: CHOICE.int(parts[0].0.cols())?,
        dim: CHOICE.int(dim)?,
        mlp: CHOICE.int(mlp)?,
        txt_rows: CHOICE.int(layout.txt_rows())?,
        txt: CHOICE.int(layout.txt)?,
        img: CHOICE.int(layout.image_stream())?,
        rows_of_tiles: CHOICE.int(tiles.rows_together())?,
        key_tiles: CHOICE.int(tiles.keys)?,
        heads_in_e4m3: i32::from(values.is_some()),
        key_rows: CHOICE.int(values.map_or(0, |values| values.key_rows))?,
    })
}
