//! `Y = X W^T` in bfloat16 or 8-bit integers, accumulated in float32 or 32-bit integers, on the units of a CPU that
//! multiply them: [`BF16`] and [`INT8`].
//!
//! A tile is 16 rows of 64 bytes. Tile A is 16 rows of W by 32 columns of bfloat16 or 64 of integers, in the file's
//! order; tile B is the same columns of 16 rows of X, as cells of 32 bits `[16 cells][16 rows]`; a unit adds their
//! product to `[16 rows of W][16 rows of X]`, a part of Y^T. So only X is rearranged, once for all weights that
//! multiply it ([`Packed`]); W has no second copy. In a convolution, the weight and the windows of the image swap
//! roles, see [`MultiplyWindows`](windows::MultiplyWindows).
//!
//! bfloat16 has 8 significant bits and float32 has 24, so X is packed as a sum of 1 to 3 bfloat16 terms and the
//! products of all terms are summed:
//!
//! | terms | error of a value of X | relative error of the result | |
//! |---|---|---|---|
//! | 1 | <= 2^-8 | 1.7e-3 | bfloat16 activations |
//! | 2 | <= 2^-16 | 2.6e-6 | six times the error of a float32 multiplication |
//! | 3 | 0 | 3.2e-7 | exact products, only sums round: as a float32 multiplication |
//!
//! A float32 multiplication by the `gemm` crate has an error of 4.2e-7. All errors are root mean square at 3072 columns
//! against float64, with emulated tiles: `cargo test --profile quick --lib terms_compare -- --nocapture`.
//!
//! Integers of X are packed as unsigned bytes, larger by 128, because that is what VNNI and USMMLA multiply by signed
//! ones. [`Output`] subtracts 128 times the sum of each row of W.
//!
//! # Blocking
//!
//! A task is a block of W's rows times a block of X's rows. It iterates over blocks of columns: it copies the block of
//! W to cache in the order of its tiles (mapped rows have any alignment and their distance maps to few sets of the
//! first-level cache), then multiplies every strip of 32 rows of X by every pair of its tiles. Between blocks of
//! columns the sums stay in cache. Workers take tasks in order from a counter, so that they share the strips of X in
//! cache.
//!
//! Convolutions have their own kernel, in which the tiles swap roles: see `windows.rs`.

#![allow(unsafe_code)]
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod blocks;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod portable;
mod tile;
mod units;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod windows;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use self::packed::{Packed, Rows};
use self::tile::{LINE_BYTES, NO_SUMS, NO_TILE, PAIR, Sums, TILE, Tile, Tiles};
pub use self::tile::{Line, transpose};
pub use self::units::{BF16, Bf16Unit, INT8, Int8Unit, bf16, int8};
pub use self::windows::{Lines, MultiplyWindows, Offsets, Windows};

/// Pairs of tiles of W in a task: 128 rows.
const TASK_PAIRS: usize = 4;
/// Strips of X in a task: 1024 rows, whose sums with 128 rows of W take 512 KiB of the second-level cache.
const TASK_STRIPS: usize = 32;

/// Tile steps in a block of columns if X is one strip: 8 KiB of each row of W.
const STREAMED_STEPS: usize = 128;

/// Computes `out = x weight^T`, or `out += x weight^T`. In parallel.
///
/// x [rows, cols], weight [weight.rows, cols] -> out [rows, weight.rows].
///
/// Panics unless the unit is available, and if `weight` or `out` is shorter than that.
pub type Multiply = fn(&Packed, WeightRows<'_>, Output<'_>);

/// Rows of a weight, at any address, with as many columns as the [`Packed`] that multiplies it: bfloat16,
/// little-endian, or 8-bit integers.
///
/// A slice of a weight's columns is `bytes` from its first column on, with the stride of the whole weight.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    /// From the first cell to at least the last.
    pub bytes: &'a [u8],
    /// Number of rows.
    pub rows: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
}

/// The destination of a matrix multiplication: [rows of X, rows of W] float32.
pub struct Output<'a> {
    /// From the first cell to at least the last.
    pub values: &'a mut [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// `true` to add to the values instead of replacing them.
    pub add: bool,
    /// For integers, which are multiplied by their scales.
    pub integers: Option<Integers<'a>>,
}

/// The factors that turn sums of integers into float32: `sum * (scale of x * scale of weight)`.
#[derive(Clone, Copy)]
pub struct Integers<'a> {
    /// Scales of the rows of X.
    pub x: &'a [f32],
    /// Scales of the rows of W.
    pub weight: &'a [f32],
    /// Sums of the rows of W.
    pub weight_sums: &'a [i32],
}

/// The partition of a matrix multiplication.
struct Plan {
    /// Pairs of tiles of W and strips of X: in total, and per task.
    pairs: usize,
    strips: usize,
    task_pairs: usize,
    task_strips: usize,
    /// Tile steps of X and W: in total, and per block of columns.
    steps: usize,
    block_steps: usize,
}

impl Plan {
    fn new(x: &Packed, weight_rows: usize, threads: usize, block_steps: usize) -> Self {
        let (pairs, strips, steps) = (weight_rows.div_ceil(PAIR), x.strips(), x.steps());
        // The parts are even, and none is larger than the maximum.
        let even = |all: usize, most: usize| all.div_ceil(all.div_ceil(most).max(1)).max(1);
        let block_steps = if x.terms() == 1 { block_steps } else { block_steps / 2 };
        // Few rows of X take as long as reading W, so W is read in the order of memory.
        let (task_pairs, block_steps) = if strips == 1 { (1, STREAMED_STEPS) } else { (TASK_PAIRS, block_steps) };
        let block_steps = even(steps, block_steps);
        let mut plan = Self {
            pairs,
            strips,
            task_pairs: task_pairs.min(pairs),
            task_strips: even(strips, TASK_STRIPS),
            steps,
            block_steps,
        };
        // Create enough tasks that no worker waits long for the last one.
        while threads > 1 && plan.tasks() < 4 * threads {
            if plan.task_pairs > 1 {
                plan.task_pairs = plan.task_pairs.div_ceil(2);
            } else if plan.task_strips > 4 {
                plan.task_strips = plan.task_strips.div_ceil(2);
            } else {
                break;
            }
        }
        plan
    }

    fn tasks(&self) -> usize {
        self.pairs.div_ceil(self.task_pairs) * self.strips.div_ceil(self.task_strips)
    }
}

/// The cells of an [`Output`]; each task writes its own.
struct Cells<'a> {
    first: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    add: bool,
    /// With the number that integers of X contain more than their value.
    integers: Option<(Integers<'a>, i32)>,
}

// SAFETY: tasks write disjoint blocks of rows and columns through it and nothing else; the slice behind it is borrowed
// mutably until all tasks are done.
unsafe impl Sync for Cells<'_> {}

fn multiply_on<T: Tiles>(x: &Packed, weight: WeightRows<'_>, out: Output<'_>) {
    let (rows, cols, row_bytes) = (x.rows(), weight.rows, x.row_bytes());
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(row_bytes <= weight.stride && weight.bytes.len() >= (cols - 1) * weight.stride + row_bytes);
    assert!(cols <= out.stride && out.values.len() >= (rows - 1) * out.stride + cols);
    let Output { values, stride, add, integers } = out;
    assert!(integers.is_none_or(|of| of.x.len() >= rows && of.weight.len().min(of.weight_sums.len()) >= cols));
    if row_bytes == 0 {
        if !add {
            values.chunks_mut(stride).for_each(|row| row[..cols].fill(0.0));
        }
        return;
    }
    let plan = Plan::new(x, cols, rayon::current_num_threads(), T::BLOCK_STEPS);
    let integers = integers.map(|integers| (integers, T::OFFSET));
    let cells = Cells { first: values.as_mut_ptr(), rows, cols, stride, add, integers };
    let begin = || {
        let panel = vec![NO_TILE; plan.task_pairs * plan.block_steps * 2];
        let sums = vec![NO_SUMS; if plan.block_steps == plan.steps { 1 } else { plan.task_pairs * plan.task_strips }];
        (T::begin(), panel, sums)
    };
    share(plan.tasks(), begin, |own, task| run_task(own, x, weight, &cells, &plan, task));
}

/// Runs `run(own, task)` for all tasks on the workers, which take them in order from a counter; `begin` creates the
/// state `own` of a worker.
fn share<S>(tasks: usize, begin: impl Fn() -> S + Sync, run: impl Fn(&mut S, usize) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = begin();
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            run(&mut own, task);
        }
    };
    rayon::scope(|scope| {
        for _ in 1..rayon::current_num_threads().min(tasks) {
            scope.spawn(|_| work());
        }
        work();
    });
}

/// The state of a worker: a unit, a panel of tiles, and sums that wait for the next block of columns.
type Own<T> = (T, Vec<Tile>, Vec<Sums>);

fn run_task<T: Tiles>(
    (unit, panel, sums): &mut Own<T>,
    x: &Packed,
    weight: WeightRows<'_>,
    cells: &Cells<'_>,
    plan: &Plan,
    task: usize,
) {
    // A block of X is multiplied by all blocks of W before the next one begins, so that the workers share its strips in
    // cache.
    let blocks = plan.pairs.div_ceil(plan.task_pairs);
    let (strip_block, pair_block) = (task / blocks, task % blocks);
    let first_pair = pair_block * plan.task_pairs;
    let pairs = plan.task_pairs.min(plan.pairs - first_pair);
    let first_strip = strip_block * plan.task_strips;
    let strips = plan.task_strips.min(plan.strips - first_strip);
    for from in (0..plan.steps).step_by(plan.block_steps) {
        let to = (from + plan.block_steps).min(plan.steps);
        let tiles_of_pair = 2 * (to - from);
        for (pair, tiles) in panel.chunks_exact_mut(tiles_of_pair).take(pairs).enumerate() {
            copy_pair(weight, x.row_bytes(), (first_pair + pair) * PAIR, from * LINE_BYTES, tiles);
        }
        for strip in first_strip..first_strip + strips {
            let b = x.block(strip, from, to);
            // Prefetch the same columns of the next strip. Past the last strip the address is another strip's or
            // invalid, which is harmless.
            let following = b.as_ptr().wrapping_add(x.steps() * x.terms() * 2);
            for (pair, a) in panel.chunks_exact(tiles_of_pair).take(pairs).enumerate() {
                let waiting = if sums.len() == 1 { 0 } else { (strip - first_strip) * pairs + pair };
                let block = &mut sums[waiting];
                let prefetch = following.wrapping_add(pair * b.len() / TASK_PAIRS);
                let x_rows = PAIR.min(x.rows() - strip * PAIR);
                unit.multiply(a, b, x.terms(), x_rows, from > 0, block, prefetch);
                if to == plan.steps {
                    store(block, cells, strip * PAIR, (first_pair + pair) * PAIR);
                }
            }
        }
    }
}

/// Copies 32 rows of W from `row` and their bytes from `first` on as `[step][2]` tiles, with zeros past W's end.
fn copy_pair(weight: WeightRows<'_>, row_bytes: usize, row: usize, first: usize, tiles: &mut [Tile]) {
    for r in 0..PAIR {
        let (half, r_of_tile) = (r / TILE, r % TILE);
        let lines = tiles.iter_mut().skip(half).step_by(2).map(|tile| {
            let bytes: &mut [u8] = bytemuck::bytes_of_mut(tile);
            &mut bytes[r_of_tile * LINE_BYTES..][..LINE_BYTES]
        });
        if row + r >= weight.rows {
            lines.for_each(|line| line.fill(0));
            continue;
        }
        let mut source = &weight.bytes[(row + r) * weight.stride..][first..row_bytes];
        for line in lines {
            if let Some((whole, rest)) = source.split_first_chunk::<LINE_BYTES>() {
                line.copy_from_slice(whole);
                source = rest;
            } else {
                let (present, missing) = line.split_at_mut(source.len());
                present.copy_from_slice(source);
                missing.fill(0);
                source = &[];
            }
        }
    }
}

/// Writes 2 x 2 tiles of Y^T to Y from cell (`row`, `col`) on, without the cells past the end of Y.
fn store(sums: &Sums, out: &Cells<'_>, row: usize, col: usize) {
    let rows = PAIR.min(out.rows - row);
    let cols = PAIR.min(out.cols - col);
    // SAFETY: row < out.rows and col < out.cols; the output holds out.rows rows of out.cols cells.
    let target = unsafe { out.first.add(row * out.stride + col) };
    if rows == PAIR && cols == PAIR && !out.add && out.integers.is_none() {
        for (i, tile) in sums.0.iter().enumerate() {
            // SAFETY: the block of 32 x 32 cells is complete, and no other task writes to it; tile i is its columns
            // from i / 2 * 16 and its rows from i % 2 * 16 on.
            unsafe {
                transpose(
                    tile.as_ptr().cast(),
                    TILE,
                    target.add(i % 2 * TILE * out.stride + i / 2 * TILE).cast(),
                    out.stride,
                )
            };
        }
        return;
    }
    let mut block = [0.0f32; PAIR * PAIR];
    for (i, tile) in sums.0.iter().enumerate() {
        // SAFETY: as above, within `block`, whose rows are 32 cells apart.
        unsafe {
            transpose(
                tile.as_ptr().cast(),
                TILE,
                block.as_mut_ptr().add(i % 2 * TILE * PAIR + i / 2 * TILE).cast(),
                PAIR,
            )
        };
    }
    for r in 0..rows {
        // SAFETY: row + r < out.rows and col + cols <= out.cols, and no other task accesses these cells.
        let cells = unsafe { std::slice::from_raw_parts_mut(target.add(r * out.stride), cols) };
        let sums = &mut block[r * PAIR..][..cols];
        if let Some((Integers { x, weight, weight_sums }, offset)) = out.integers {
            let x = x[row + r];
            for ((sum, scale), of_weight) in sums.iter_mut().zip(&weight[col..]).zip(&weight_sums[col..]) {
                let exact = (sum.to_bits() as i32).wrapping_sub(of_weight.wrapping_mul(offset));
                *sum = exact as f32 * (x * scale);
            }
        }
        for (cell, &mut sum) in cells.iter_mut().zip(sums) {
            *cell = if out.add { *cell + sum } else { sum };
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use self::tests::{multiply_emulated, multiply_windows_emulated};
