//! Windows of an image times a weight: a convolution that never writes its windows to memory.
//!
//! Here tile A is 32 channels of 16 pixels, in the order of [`Lines`], and tile B is the weight, packed in tile order
//! once ([`Packed`]). Adjacent windows read adjacent pixels through each tap of the kernel, so the tile of another tap
//! is the same lines from another [offset](Offsets) on: a value is rounded and written once, not once per tap. The sums
//! are rows of the result, in its order.
//!
//! A task is a block of strips of 32 windows times 32 rows of the weight, which stay in the second-level cache for all
//! strips. Steps iterate over the taps of 32 channels before the next 32, so that the lines, which the taps share, stay
//! in the first-level cache, and only the weight comes from the second: 2 KiB in the 64 cycles of four tile
//! multiplications. All sums of a window stay in tiles to the end.

use parking_lot::{Mutex, MutexGuard};

use super::tile::{Line, LineTiles, NO_SUMS, NO_TILE, PAIR, Sums, TILE, Tile};
use super::{Packed, share};

/// Strips of a task, if a value has one term: 512 windows, which read about 0.6 MiB of an image with 512 channels.
const TASK_STRIPS: usize = 16;

/// Lines of 32 bfloat16 numbers, each a cache line.
pub struct Lines {
    tiles: Vec<Tile>,
    count: usize,
}

impl Lines {
    /// Allocates `count` lines, which contain values of an earlier use.
    pub fn new(count: usize) -> Self {
        let mut tiles = std::mem::take(&mut *spare());
        if tiles.len() < count.div_ceil(TILE) {
            drop(std::mem::take(&mut tiles));
            tiles = vec![NO_TILE; count.div_ceil(TILE)];
        }
        Self { tiles, count }
    }

    /// Returns the lines for reading.
    pub fn get(&self) -> &[Line] {
        &bytemuck::cast_slice(&self.tiles)[..self.count]
    }

    /// Returns the lines for writing.
    pub fn get_mut(&mut self) -> &mut [Line] {
        &mut bytemuck::cast_slice_mut(&mut self.tiles)[..self.count]
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let mut spare = spare();
        if self.tiles.len() > spare.len() {
            *spare = std::mem::take(&mut self.tiles);
        }
    }
}

/// Returns the memory of an earlier multiplication, for the next one.
fn spare() -> MutexGuard<'static, Vec<Tile>> {
    static SPARE: Mutex<Vec<Tile>> = Mutex::new(Vec::new());
    SPARE.lock()
}

/// The positions of the lines of a window: their distance from the window's own line, for each 32 columns of the weight
/// and each term of the values that these multiply.
pub struct Offsets {
    bytes: Vec<usize>,
    terms: usize,
    /// Number of lines that are read, from a strip's first one on.
    reach: usize,
}

impl Offsets {
    /// Creates offsets in lines, `[step][term]`.
    ///
    /// Panics unless they are a multiple of `terms`.
    pub fn new(lines: &[usize], terms: usize) -> Self {
        assert!(lines.len().is_multiple_of(terms), "{} offsets of {terms} terms", lines.len());
        let reach = lines.iter().max().map_or(0, |last| last + PAIR);
        Self { bytes: lines.iter().map(|line| line * size_of::<Line>()).collect(), terms, reach }
    }

    pub(super) fn bytes(&self) -> &[usize] {
        &self.bytes
    }

    pub(super) fn terms(&self) -> usize {
        self.terms
    }

    pub(super) fn reach(&self) -> usize {
        self.reach
    }
}

/// The windows of a multiplication, and the rows of the result that they compute.
///
/// Window (y, x) has the line `y * pitch + x` as its own, and row `first + y * row_step + x * step` of the result.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    /// Rows of windows.
    pub height: usize,
    /// Windows per row.
    pub width: usize,
    /// Lines from one row of windows to the next.
    pub pitch: usize,
    /// The result's row of the first window.
    pub first: usize,
    /// The result's rows from one row of windows to the next.
    pub row_step: usize,
    /// The result's rows from one window to the next.
    pub step: usize,
}

impl Windows {
    /// Returns the strips of windows, including the windows between the ends of the rows, which have no result.
    fn strips(&self) -> usize {
        Self::lines(self.height, self.width, self.pitch) / PAIR
    }

    /// Returns the lines needed for `height` rows of `width` windows that read only their own lines.
    pub fn lines(height: usize, width: usize, pitch: usize) -> usize {
        ((height - 1) * pitch + width).next_multiple_of(PAIR)
    }
}

/// Computes `out = windows weight^T + bias`, or `out += ..`. In parallel.
///
/// weight [out_cols, 32 * steps] of one term, bias \[out_cols\] -> the windows' rows of out [rows, out_cols].
///
/// Panics unless the unit is available, if windows share a row of the result, or if a slice is shorter than that.
pub type MultiplyWindows = fn(&Lines, &Offsets, &Packed, Windows, &mut [f32], &[f32], bool);

/// A pointer to the first cell of a result; each task writes its own cells.
struct Cells(*mut f32);

// SAFETY: tasks write other rows or columns through it and nothing else; the slice behind it is borrowed mutably until
// all are done.
unsafe impl Sync for Cells {}

pub(super) fn multiply_on<T: LineTiles>(
    x: &Lines,
    offsets: &Offsets,
    weight: &Packed,
    windows: Windows,
    out: &mut [f32],
    bias: &[f32],
    add: bool,
) {
    let Windows { height, width, pitch, first, row_step, step } = windows;
    let cols = weight.rows();
    if height == 0 || width == 0 || cols == 0 {
        return;
    }
    assert!(weight.terms() == 1 && weight.steps() > 0 && offsets.bytes.len() == weight.steps() * offsets.terms);
    assert!(width <= pitch && step > 0 && (width - 1) * step < row_step, "{windows:?} share rows");
    assert!(bias.len() == cols && out.len() >= (first + (height - 1) * row_step + (width - 1) * step + 1) * cols);
    let (lines, strips, pairs) = (x.get(), windows.strips(), weight.strips());
    assert!(lines.len() >= (strips - 1) * PAIR + offsets.reach);
    // Create enough tasks that no worker waits long for the last one.
    let task_strips = (strips * pairs / (8 * rayon::current_num_threads())).clamp(1, TASK_STRIPS / offsets.terms);
    let blocks = strips.div_ceil(task_strips);
    let task_strips = strips.div_ceil(blocks);
    let cells = Cells(out.as_mut_ptr());
    // A block of strips is multiplied by all pairs before the next one begins, so that the workers share it in cache.
    share(
        blocks * pairs,
        || (T::begin(), NO_SUMS),
        |(unit, sums), task| {
            let cells = &cells;
            let (block, pair) = (task / pairs, task % pairs);
            let tiles = weight.block(pair, 0, weight.steps());
            let bias = &bias[pair * PAIR..cols.min((pair + 1) * PAIR)];
            for strip in block * task_strips..((block + 1) * task_strips).min(strips) {
                unit.multiply_lines(&lines[strip * PAIR..], offsets, tiles, sums);
                let (mut y, mut column) = (strip * PAIR / pitch, strip * PAIR % pitch);
                let targets: [Option<usize>; PAIR] = std::array::from_fn(|_| {
                    let target = (y < height && column < width)
                        .then(|| (first + y * row_step + column * step) * cols + pair * PAIR);
                    column += 1;
                    if column == pitch {
                        (y, column) = (y + 1, 0);
                    }
                    target
                });
                // SAFETY: `bias.len()` cells from each target on are in one row of the result, as checked above, and no
                // other window or pair writes to them.
                unsafe { store(sums, cells.0, &targets, bias, add) };
            }
        },
    );
}

/// Writes 2 x 2 tiles of sums with their bias to the cells from `targets` on: [window][column].
///
/// # Safety
/// `out` is valid for `bias.len()` cells from each target on, and nothing else accesses these meanwhile.
unsafe fn store(sums: &Sums, out: *mut f32, targets: &[Option<usize>; PAIR], bias: &[f32], add: bool) {
    /// The AVX2 version, because CPUs with tiles have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn with_avx2(sums: &Sums, out: *mut f32, targets: &[Option<usize>; PAIR], bias: &[f32], add: bool) {
        // SAFETY: as the caller promises.
        unsafe { store_body(sums, out, targets, bias, add) };
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2; the rest is as the caller promises.
        return unsafe { with_avx2(sums, out, targets, bias, add) };
    }
    // SAFETY: as the caller promises.
    unsafe { store_body(sums, out, targets, bias, add) };
}

/// # Safety
/// As for [`store`].
#[inline(always)]
unsafe fn store_body(sums: &Sums, out: *mut f32, targets: &[Option<usize>; PAIR], bias: &[f32], add: bool) {
    for (window, target) in targets.iter().enumerate() {
        let Some(target) = *target else { continue };
        // SAFETY: as the caller promises.
        let cells = unsafe { std::slice::from_raw_parts_mut(out.add(target), bias.len()) };
        let rows = [0, 1].map(|tile| &sums.0[window / TILE * 2 + tile].as_chunks::<TILE>().0[window % TILE]);
        for ((cells, bias), sums) in cells.chunks_mut(TILE).zip(bias.chunks(TILE)).zip(rows) {
            match (<&mut [f32; TILE]>::try_from(&mut *cells), <&[f32; TILE]>::try_from(bias)) {
                // This slice has a length known at compile time.
                (Ok(cells), Ok(bias)) => finish(cells, sums, bias, add),
                _ => finish(cells, sums, bias, add),
            }
        }
    }
}

#[inline(always)]
fn finish(cells: &mut [f32], sums: &[f32], bias: &[f32], add: bool) {
    for ((cell, sum), bias) in cells.iter_mut().zip(sums).zip(bias) {
        *cell = if add { *cell + (sum + bias) } else { sum + bias };
    }
}
