//! Activations, or the weight of a convolution, in tile order.

use std::mem::MaybeUninit;

use parking_lot::{Mutex, MutexGuard};
use rayon::prelude::*;

use super::super::math;
use super::tile::{BF16_COLS, LINE_BYTES, NO_TILE, PAIR, TILE, Tile, transpose};

/// Tile steps that are read from a row at once while packing X: 1 KiB of it.
const PACK_STEPS: usize = 8;

/// Rows of float32 activations: [rows, cols], `stride` values from one row to the next.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// From the first cell to at least the last.
    pub values: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Values from one row to the next.
    pub stride: usize,
}

/// Activations as tiles: `[strip of 32 rows][step of 64 bytes of a weight's row][term][2 tiles]`. The columns past the
/// end are finite.
///
/// A value takes 2 * terms bytes, or one as an integer. A multiplication reads the weight once per 1024 rows, so
/// packing more rows at once gains nothing.
pub struct Packed {
    /// The tiles of all strips are initialized; memory of an earlier matrix multiplication may be longer.
    tiles: Vec<MaybeUninit<Tile>>,
    rows: usize,
    /// Bytes of a row of the weight that multiplies them.
    row_bytes: usize,
    terms: usize,
}

impl Packed {
    /// Packs the concatenated columns of `parts`, each value as a sum of `terms` bfloat16 numbers. In parallel.
    ///
    /// Panics if there is no part, if the parts have different rows or are shorter than their sizes, or if `terms` is
    /// not 1, 2 or 3.
    pub fn new(parts: &[Rows<'_>], terms: usize) -> Self {
        let rows = parts[0].rows;
        for part in parts {
            assert_eq!(part.rows, rows);
            assert!(
                part.cols <= part.stride && (rows == 0 || part.values.len() >= (rows - 1) * part.stride + part.cols)
            );
        }
        Self::gather(rows, parts.iter().map(|part| part.cols).sum(), terms, |row, col, cells| {
            let mut part_start = 0;
            for part in parts {
                let from = col.max(part_start);
                let to = (col + cells.len()).min(part_start + part.cols);
                if from < to {
                    cells[from - col..to - col]
                        .copy_from_slice(&part.values[row * part.stride + from - part_start..][..to - from]);
                }
                part_start += part.cols;
            }
        })
    }

    /// Packs the activations that `read(row, col, cells)` writes: up to 32 cells of one row from column `col` on, a
    /// multiple of 32. In parallel.
    ///
    /// A row with a non-finite value gives non-finite results. Panics if `terms` is not 1, 2 or 3.
    pub fn gather(rows: usize, cols: usize, terms: usize, read: impl Fn(usize, usize, &mut [f32]) + Sync) -> Self {
        assert!((1..=3).contains(&terms), "{terms} terms");
        let memory = std::mem::take(&mut *spare());
        Self::gather_into(memory, rows, cols, terms, read)
    }

    /// As [`Packed::gather`] in one term, for a weight that stays loaded: in exactly the memory that it needs.
    pub fn lasting(rows: usize, cols: usize, read: impl Fn(usize, usize, &mut [f32]) + Sync) -> Self {
        Self::gather_into(Vec::new(), rows, cols, 1, read)
    }

    /// Packs 8-bit integers: `quantize(row, state, integers)` writes the integers of a row, `cols` of them, and returns
    /// the row's scale; `init` creates the state of a task. Also returns the scales. In parallel.
    pub fn quantize<S>(
        rows: usize,
        cols: usize,
        init: impl Fn() -> S + Sync,
        quantize: impl Fn(usize, &mut S, &mut [i8]) -> f32 + Sync,
    ) -> (Self, Vec<f32>) {
        let memory = std::mem::take(&mut *spare());
        let padded = cols.next_multiple_of(LINE_BYTES);
        let mut this = Self::allocate(memory, rows, cols, 1);
        let mut scales = vec![0.0; rows];
        let tiles_of_strip = 2 * this.steps();
        if tiles_of_strip > 0 {
            let strips = this.tiles.par_chunks_exact_mut(tiles_of_strip).zip(scales.par_chunks_mut(PAIR)).enumerate();
            strips.for_each(|(strip, (tiles, scales))| {
                let (mut state, mut integers) = (init(), vec![0i8; PAIR * padded]);
                for (r, (scale, integers)) in scales.iter_mut().zip(integers.chunks_exact_mut(padded)).enumerate() {
                    *scale = quantize(strip * PAIR + r, &mut state, &mut integers[..cols]);
                }
                for (i, tile) in tiles.iter_mut().enumerate() {
                    let (first_row, first_col) = (i % 2 * TILE, i / 2 * LINE_BYTES);
                    let mut lines = NO_TILE;
                    let rows = integers.chunks_exact(padded).skip(first_row);
                    for (line, row) in bytemuck::bytes_of_mut(&mut lines).chunks_exact_mut(LINE_BYTES).zip(rows) {
                        let row = &row[first_col..][..LINE_BYTES];
                        line.iter_mut().zip(row).for_each(|(byte, integer)| *byte = *integer as u8 ^ 0x80);
                    }
                    write_transposed(&lines, tile);
                }
            });
        }
        (this, scales)
    }

    /// Returns the memory of tiles that the caller writes.
    fn allocate(mut tiles: Vec<MaybeUninit<Tile>>, rows: usize, row_bytes: usize, terms: usize) -> Self {
        let needed = rows.div_ceil(PAIR) * row_bytes.div_ceil(LINE_BYTES) * 2 * terms;
        if tiles.len() < needed {
            drop(std::mem::take(&mut tiles));
            tiles.resize_with(needed, MaybeUninit::uninit);
        }
        Self { tiles, rows, row_bytes, terms }
    }

    fn gather_into(
        tiles: Vec<MaybeUninit<Tile>>,
        rows: usize,
        cols: usize,
        terms: usize,
        read: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) -> Self {
        let mut this = Self::allocate(tiles, rows, 2 * cols, terms);
        let tiles_of_step = 2 * terms;
        let tiles_of_strip = tiles_of_step * this.steps();
        let pack_strip = |(strip, tiles): (usize, &mut [MaybeUninit<Tile>])| {
            for half in 0..2 {
                let first_row = strip * PAIR + half * TILE;
                let present = TILE.min(rows.saturating_sub(first_row));
                for (group, tiles) in tiles.chunks_mut(PACK_STEPS * tiles_of_step).enumerate() {
                    // Rows before columns: the CPU prefetches along a row.
                    let mut steps = [[0.0f32; TILE * BF16_COLS]; PACK_STEPS];
                    for row in 0..present {
                        for (i, values) in steps.iter_mut().enumerate().take(tiles.len() / tiles_of_step) {
                            let col = (group * PACK_STEPS + i) * BF16_COLS;
                            let cells = &mut values[row * BF16_COLS..][..BF16_COLS.min(cols - col)];
                            read(first_row + row, col, cells);
                        }
                    }
                    for (values, tiles) in steps.iter_mut().zip(tiles.chunks_exact_mut(tiles_of_step)) {
                        pack_tile(values, tiles.iter_mut().skip(half).step_by(2));
                    }
                }
            }
        };
        if tiles_of_strip > 0 {
            this.tiles.par_chunks_exact_mut(tiles_of_strip).take(rows.div_ceil(PAIR)).enumerate().for_each(pack_strip);
        }
        this
    }

    /// Returns the rows of the activations.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes of a row of the weight that multiplies them.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the numbers per value.
    pub fn terms(&self) -> usize {
        self.terms
    }

    pub(super) fn strips(&self) -> usize {
        self.rows.div_ceil(PAIR)
    }

    pub(super) fn steps(&self) -> usize {
        self.row_bytes.div_ceil(LINE_BYTES)
    }

    /// Returns the tiles of one strip from step `from` up to `to`.
    pub(super) fn block(&self, strip: usize, from: usize, to: usize) -> &[Tile] {
        let tiles_of_step = 2 * self.terms;
        let start = strip * self.steps();
        assert!(strip < self.strips() && to <= self.steps());
        let tiles = &self.tiles[(start + from) * tiles_of_step..(start + to) * tiles_of_step];
        // SAFETY: `gather_into` and `quantize`, which create every value of this type, write each tile of these strips:
        // the first or the second of the `terms` pairs of a step, for both and for all steps.
        unsafe { std::slice::from_raw_parts(tiles.as_ptr().cast(), tiles.len()) }
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let mut spare = spare();
        if self.tiles.len() > spare.len() {
            *spare = std::mem::take(&mut self.tiles);
        }
    }
}

/// Returns the memory of an earlier matrix multiplication, for the next one: new memory costs a page fault for each 4
/// KiB, which takes longer than packing them.
fn spare() -> MutexGuard<'static, Vec<MaybeUninit<Tile>>> {
    static SPARE: Mutex<Vec<MaybeUninit<Tile>>> = Mutex::new(Vec::new());
    SPARE.lock()
}

/// Writes 16 rows of 32 values to one tile per term, and leaves the remainders in `values`.
fn pack_tile<'t>(values: &mut [f32; TILE * BF16_COLS], tiles: impl Iterator<Item = &'t mut MaybeUninit<Tile>>) {
    for tile in tiles {
        let mut rounded = NO_TILE;
        math::take_bf16(values, bytemuck::cast_slice_mut(&mut rounded.0));
        write_transposed(&rounded, tile);
    }
}

/// Writes the transposed cells of a tile.
fn write_transposed(lines: &Tile, tile: &mut MaybeUninit<Tile>) {
    let tile = tile.write(NO_TILE);
    // SAFETY: a tile is 16 x 16 cells of 32 bits, dense and aligned to 64 bytes; these are two distinct tiles.
    unsafe { transpose(lines.0.as_ptr(), TILE, tile.0.as_mut_ptr(), TILE) };
}
