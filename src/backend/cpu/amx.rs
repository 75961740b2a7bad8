//! `Y = X W^T` on the tile unit of Intel CPUs from Sapphire Rapids on (AMX-BF16): X float32, W bfloat16, sums in float32.
//!
//! A tile is 16 rows of 64 bytes. Tile A is 16 rows of W by 32 columns, as they lie in the file; tile B is the same 32 columns
//! of 16 rows of X, as pairs of columns [16 pairs][16 rows][2]; the product adds to [16 rows of W][16 rows of X], a part of Y^T.
//! So only X is rearranged, once for all weights that it meets ([`Packed`]); W has no second copy.
//!
//! bfloat16 keeps 8 bits of a value and float32 has 24, so X is packed as a sum of 1 to 3 bfloat16 terms and the products of all
//! terms are summed:
//!
//! | terms | a value of X is off by | the product is off by, relative | |
//! |---|---|---|---|
//! | 1 | <= 2^-8 | 1.7e-3 | bfloat16 activations |
//! | 2 | <= 2^-16 | 2.6e-6 | six times a float32 product's own error |
//! | 3 | 0 | 3.2e-7 | the products are exact and only sums round: a float32 product |
//!
//! A float32 product from the `gemm` crate is off by 4.2e-7. All at 3072 columns against float64, root mean square, tiles emulated:
//! `cargo test --release --lib terms_compare -- --nocapture`.
//!
//! # Blocking
//!
//! A task is a block of W's rows times a block of X's rows. It walks blocks of columns: the block of W is copied to cache in the
//! order of its tiles (mapped rows lie at any address and 2 * columns bytes apart, which fall into few sets of the first-level
//! cache), then every strip of 32 rows of X meets every pair of tiles of it, 2 x 2 tiles of sums in registers. Between blocks of
//! columns the sums wait in cache. Workers take tasks in order from a counter, so that they share the strips of X in cache.

#![allow(unsafe_code)]
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::math;

/// Rows of a tile, and float32 columns of a tile of sums.
const TILE: usize = 16;
/// bfloat16 columns of W or X that a tile holds.
const TILE_COLS: usize = 32;
/// Rows of W or X that meet at once: two tiles.
const PAIR: usize = 2 * TILE;
/// Pairs of tiles of W in a task: 128 rows.
const TASK_PAIRS: usize = 4;
/// Strips of X in a task: 1024 rows, whose sums with 128 rows of W take 512 KiB of the second-level cache (2 MiB).
const TASK_STRIPS: usize = 32;
/// Tile steps in a block of columns where X has one term, and half as many where it has more: a strip of X takes 64 to 96 KiB, the
/// block of W at most 256 KiB, and the 8 KiB of sums that are read and written cost little beside them.
const BLOCK_STEPS: usize = 32;

/// A tile of bfloat16 bits.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([u16; TILE * TILE_COLS]);

/// 2 x 2 tiles of sums: [pair's tile of W][strip's tile of X][row of W][row of X].
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([[f32; TILE * TILE]; 4]);

const NO_TILE: Tile = Tile([0; TILE * TILE_COLS]);
const NO_SUMS: Sums = Sums([[0.0; TILE * TILE]; 4]);

/// What the tile unit does, so that tests can run the rest on any CPU.
trait Tiles {
    /// Makes this thread ready for [`Tiles::multiply`]; dropping the value ends that.
    fn begin() -> Self;

    /// `sums (or 0, unless add) += a b` for a pair of tiles of W by a strip of X.
    ///
    /// `a` is [step][2] tiles, `b` [step][term][2] tiles. `next` is an address of which 512 bytes a step and term are asked into the
    /// second-level cache, if they exist.
    fn multiply(&self, a: &[Tile], b: &[Tile], terms: usize, add: bool, sums: &mut Sums, next: *const Tile);
}

/// Whether this CPU and this kernel let us use the tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn available() -> bool {
    use std::sync::OnceLock;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const TILE_UNIT: u32 = 1 << 24;
        const BF16_PRODUCT: u32 = 1 << 22;
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILE_DATA: libc::c_long = 18;
        #[allow(unused_unsafe)] // Newer compilers call it safe.
        // SAFETY: every x86-64 CPU has cpuid, and leaf 7 is asked for only where leaf 0 names it.
        let features = unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx } };
        // The tiles are 8 KiB of state, which Linux (from 5.16) saves only for processes that asked. It refuses where the CPU or
        // the hypervisor does not offer them, so XCR0 needs no look.
        features & TILE_UNIT != 0
            && features & BF16_PRODUCT != 0
            // SAFETY: this request takes a number, touches no memory of ours, and holds for all threads of the process.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) } == 0
    })
}

/// Whether this CPU and this kernel let us use the tiles.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn available() -> bool {
    false
}

/// The tile unit, configured on this thread.
#[cfg(target_arch = "x86_64")]
struct Unit {
    /// The configuration is the thread's, so it must end on the thread on which it began.
    _this_thread: std::marker::PhantomData<*const ()>,
}

#[cfg(target_arch = "x86_64")]
impl Tiles for Unit {
    fn begin() -> Self {
        assert!(available(), "no AMX-BF16 on this machine");
        /// Palette 1: eight tiles, each of 16 rows of 64 bytes. Entries past the eighth must be 0.
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
        // SAFETY: `available` says that the CPU has tiles and that the kernel lets us use them. The instruction reads 64 bytes,
        // the size of `Config`.
        unsafe { std::arch::asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
        Self { _this_thread: std::marker::PhantomData }
    }

    fn multiply(&self, a: &[Tile], b: &[Tile], terms: usize, add: bool, sums: &mut Sums, next: *const Tile) {
        let steps = a.len() / 2;
        assert!(steps > 0 && terms > 0 && a.len() == 2 * steps && b.len() == a.len() * terms);
        // tmm0 to tmm3 hold the sums, tmm4 and tmm5 a step of W for all terms, tmm6 and tmm7 a term of X.
        // SAFETY: `self` exists, so this thread has tiles of 16 rows of 64 bytes. Of `a`, 2 tiles a step are read, of `b` 2 a step
        // and term, as many as the line above found in them; `sums` is 4 tiles. All lie dense, 64 bytes a row. A prefetch never
        // faults. The loop counts are at least 1.
        unsafe {
            std::arch::asm!(
                "test {add:e}, {add:e}",
                "jnz 20f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 30f",
                "20:",
                "tileloadd tmm0, [{sums} + {row}*1]",
                "tileloadd tmm1, [{sums} + {row}*1 + 1024]",
                "tileloadd tmm2, [{sums} + {row}*1 + 2048]",
                "tileloadd tmm3, [{sums} + {row}*1 + 3072]",
                "30:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "add {a}, 2048",
                "mov {term}, {terms}",
                "40:",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht1 [{next}]",
                "prefetcht1 [{next} + 64]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht1 [{next} + 128]",
                "prefetcht1 [{next} + 192]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht1 [{next} + 256]",
                "prefetcht1 [{next} + 320]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{next} + 384]",
                "prefetcht1 [{next} + 448]",
                "add {b}, 2048",
                "add {next}, 512",
                "dec {term}",
                "jnz 40b",
                "dec {steps}",
                "jnz 30b",
                "tilestored [{sums} + {row}*1], tmm0",
                "tilestored [{sums} + {row}*1 + 1024], tmm1",
                "tilestored [{sums} + {row}*1 + 2048], tmm2",
                "tilestored [{sums} + {row}*1 + 3072], tmm3",
                add = in(reg) usize::from(add),
                row = in(reg) 64usize,
                sums = in(reg) sums.0.as_mut_ptr(),
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                next = inout(reg) next => _,
                steps = inout(reg) steps => _,
                terms = in(reg) terms,
                term = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Unit {
    fn drop(&mut self) {
        // A thread that sleeps with tiles in use would make the kernel save them, and may keep its core from a deeper sleep.
        // SAFETY: `begin` made sure that the CPU has tiles; no value lives in them between calls of `multiply`.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

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

/// Rows of a weight in bfloat16, little-endian, at any address, with as many columns as the [`Packed`] that it meets.
///
/// A slice of a weight's columns is `bytes` from its first column on, with the stride of the whole.
#[derive(Clone, Copy)]
pub struct Bf16Rows<'a> {
    /// From the first cell to at least the last.
    pub bytes: &'a [u8],
    /// Number of rows.
    pub rows: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
}

/// Where a product goes: [rows of X, rows of W] float32.
pub struct Output<'a> {
    /// From the first cell to at least the last.
    pub values: &'a mut [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// Whether to add to the values instead of replacing them.
    pub add: bool,
}

/// Activations as bfloat16 tiles: [strip of 32 rows][step of 32 columns][term][2 tiles], what is ragged filled up with zeros.
pub struct Packed {
    tiles: Box<[Tile]>,
    rows: usize,
    cols: usize,
    terms: usize,
}

impl Packed {
    /// The columns of `parts` side by side, each value as a sum of `terms` bfloat16 numbers. In parallel.
    ///
    /// Panics when there is no part, when the parts differ in rows or are shorter than they say, or when `terms` is not 1, 2 or 3.
    pub fn new(parts: &[Rows<'_>], terms: usize) -> Self {
        let rows = parts[0].rows;
        for part in parts {
            assert_eq!(part.rows, rows);
            assert!(part.cols <= part.stride && (rows == 0 || part.values.len() >= (rows - 1) * part.stride + part.cols));
        }
        Self::gather(rows, parts.iter().map(|part| part.cols).sum(), terms, |row, col, cells| {
            let mut part_start = 0;
            for part in parts {
                let from = col.max(part_start);
                let to = (col + cells.len()).min(part_start + part.cols);
                if from < to {
                    cells[from - col..to - col].copy_from_slice(&part.values[row * part.stride + from - part_start..][..to - from]);
                }
                part_start += part.cols;
            }
        })
    }

    /// The activations of which `read(row, col, cells)` writes the cells of one row from column `col` on, up to 32 of them, from a
    /// multiple of 32. So a convolution need not hold its windows. In parallel.
    ///
    /// A row with a value that is not finite gives results that are not finite. Panics when `terms` is not 1, 2 or 3.
    pub fn gather(rows: usize, cols: usize, terms: usize, read: impl Fn(usize, usize, &mut [f32]) + Sync) -> Self {
        assert!((1..=3).contains(&terms), "{terms} terms");
        let tiles_of_strip = 2 * terms * cols.div_ceil(TILE_COLS);
        let mut tiles = Box::new_uninit_slice(rows.div_ceil(PAIR) * tiles_of_strip);
        if tiles_of_strip > 0 {
            tiles.par_chunks_exact_mut(tiles_of_strip).enumerate().for_each(|(strip, tiles)| {
                for (step, tiles) in tiles.chunks_exact_mut(2 * terms).enumerate() {
                    for half in 0..2 {
                        let mut values = [0.0f32; TILE * TILE_COLS];
                        let row = strip * PAIR + half * TILE;
                        let col = step * TILE_COLS;
                        for (r, cells) in values.chunks_exact_mut(TILE_COLS).enumerate().take(rows.saturating_sub(row)) {
                            read(row + r, col, &mut cells[..TILE_COLS.min(cols - col)]);
                        }
                        pack_tile(&mut values, tiles.iter_mut().skip(half).step_by(2));
                    }
                }
            });
        }
        // SAFETY: `pack_tile` writes every tile that it is given. It is given the first or the second of each of the `terms` pairs of
        // a step, for both and for all steps of all strips, which is every tile of the slice.
        let tiles = unsafe { tiles.assume_init() };
        Self { tiles, rows, cols, terms }
    }

    /// Rows of the activations.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the activations: those of the parts together.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn strips(&self) -> usize {
        self.rows.div_ceil(PAIR)
    }

    fn steps(&self) -> usize {
        self.cols.div_ceil(TILE_COLS)
    }

    /// The tiles of one strip from step `from` up to `to`.
    fn block(&self, strip: usize, from: usize, to: usize) -> &[Tile] {
        let tiles_of_step = 2 * self.terms;
        let start = strip * self.steps();
        &self.tiles[(start + from) * tiles_of_step..(start + to) * tiles_of_step]
    }
}

/// Writes 16 rows of 32 values to one tile for each term, and leaves in `values` what the terms do not hold.
fn pack_tile<'t>(values: &mut [f32; TILE * TILE_COLS], tiles: impl Iterator<Item = &'t mut MaybeUninit<Tile>>) {
    for tile in tiles {
        let mut rounded = NO_TILE;
        math::take_bf16(values, &mut rounded.0);
        let tile = tile.write(NO_TILE);
        // SAFETY: a tile is 16 x 16 cells of 32 bits, each a pair of columns, dense and aligned to 64 bytes; these are two tiles.
        unsafe { transpose(rounded.0.as_ptr().cast(), tile.0.as_mut_ptr().cast(), TILE) };
    }
}

/// `to[col * stride + row] = from[row * 16 + col]` for 16 x 16 cells of 32 bits.
///
/// # Safety
///
/// `from` holds 256 cells, `to` holds the cells that are named, and they do not overlap.
unsafe fn transpose(from: *const u32, to: *mut u32, stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        for (row, col) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: the CPU has AVX; the caller's cells hold the four blocks of 8 x 8 cells.
            unsafe { transpose_8x8(from.add(row * TILE + col).cast(), to.add(col * stride + row).cast(), stride) };
        }
        return;
    }
    for row in 0..TILE {
        for col in 0..TILE {
            // SAFETY: the cells that the caller promises.
            unsafe { *to.add(col * stride + row) = *from.add(row * TILE + col) };
        }
    }
}

/// One quarter of [`transpose`]; these moves keep all bits, also where they are no number.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose_8x8(from: *const f32, to: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's 8 rows of 8 cells, 16 cells apart.
    let r: [__m256; 8] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(from.add(i * TILE)) });
    // Pairs of rows, then fours, then all eight.
    let pairs: [__m256; 8] = std::array::from_fn(|i| {
        let (a, b) = (r[i / 2 * 2], r[i / 2 * 2 + 1]);
        if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
    });
    let fours: [__m256; 8] = std::array::from_fn(|i| {
        let (a, b) = (pairs[i / 4 * 4 + i / 2 % 2], pairs[i / 4 * 4 + i / 2 % 2 + 2]);
        if i % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
    });
    for i in 0..4 {
        let low = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        // SAFETY: the caller's 8 rows of 8 cells, `stride` cells apart.
        unsafe {
            _mm256_storeu_ps(to.add(i * stride), low);
            _mm256_storeu_ps(to.add((i + 4) * stride), high);
        }
    }
}

/// `out = x weight^T`, or `out += x weight^T`. In parallel.
///
/// x [rows, cols], weight [weight.rows, cols] -> out [rows, weight.rows].
///
/// Panics where [`available`] is false, or when `weight` or `out` is shorter than that.
#[cfg(target_arch = "x86_64")]
pub fn multiply(x: &Packed, weight: Bf16Rows<'_>, out: Output<'_>) {
    multiply_on::<Unit>(x, weight, out);
}

/// Panics: this architecture has no such tiles.
#[cfg(not(target_arch = "x86_64"))]
pub fn multiply(_: &Packed, _: Bf16Rows<'_>, _: Output<'_>) {
    panic!("no AMX-BF16 on this machine");
}

/// How a product is cut up.
struct Plan {
    /// Pairs of tiles of W and strips of X: all, and those of a task.
    pairs: usize,
    strips: usize,
    task_pairs: usize,
    task_strips: usize,
    /// Tile steps of X and W: all, and those of a block of columns.
    steps: usize,
    block_steps: usize,
}

impl Plan {
    fn new(x: &Packed, weight_rows: usize, threads: usize) -> Self {
        let (pairs, strips, steps) = (weight_rows.div_ceil(PAIR), x.strips(), x.steps());
        // Even parts, none larger than the most.
        let even = |all: usize, most: usize| all.div_ceil(all.div_ceil(most).max(1)).max(1);
        let block_steps = even(steps, if x.terms == 1 { BLOCK_STEPS } else { BLOCK_STEPS / 2 });
        let mut plan = Self { pairs, strips, task_pairs: TASK_PAIRS.min(pairs), task_strips: even(strips, TASK_STRIPS), steps, block_steps };
        // Enough tasks that no worker waits long for the last one.
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

/// The cells of an [`Output`], of which each task writes its own.
struct Cells {
    first: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    add: bool,
}

// SAFETY: tasks write disjoint blocks of rows and columns through it and nothing else; the slice behind it is borrowed mutably
// until all tasks are done.
unsafe impl Sync for Cells {}

fn multiply_on<T: Tiles>(x: &Packed, weight: Bf16Rows<'_>, out: Output<'_>) {
    if x.rows == 0 || weight.rows == 0 {
        return;
    }
    assert!(2 * x.cols <= weight.stride && weight.bytes.len() >= (weight.rows - 1) * weight.stride + 2 * x.cols);
    assert!(weight.rows <= out.stride && out.values.len() >= (x.rows - 1) * out.stride + weight.rows);
    if x.cols == 0 {
        if !out.add {
            out.values.chunks_mut(out.stride).for_each(|row| row[..weight.rows].fill(0.0));
        }
        return;
    }
    let threads = rayon::current_num_threads();
    let plan = Plan::new(x, weight.rows, threads);
    let cells = Cells { first: out.values.as_mut_ptr(), rows: x.rows, cols: weight.rows, stride: out.stride, add: out.add };
    let next = AtomicUsize::new(0);
    let work = || {
        let unit = T::begin();
        let mut panel = vec![NO_TILE; plan.task_pairs * plan.block_steps * 2];
        let mut sums = vec![NO_SUMS; if plan.block_steps == plan.steps { 1 } else { plan.task_pairs * plan.task_strips }];
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= plan.tasks() {
                break;
            }
            run_task(&unit, x, weight, &cells, &plan, task, &mut panel, &mut sums);
        }
    };
    rayon::scope(|scope| {
        for _ in 1..threads.min(plan.tasks()) {
            scope.spawn(|_| work());
        }
        work();
    });
}

#[allow(clippy::too_many_arguments)]
fn run_task<T: Tiles>(unit: &T, x: &Packed, weight: Bf16Rows<'_>, cells: &Cells, plan: &Plan, task: usize, panel: &mut [Tile], sums: &mut [Sums]) {
    // All blocks of W meet one block of X before the next one, whose strips the workers then share in cache.
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
            copy_pair(weight, x.cols, (first_pair + pair) * PAIR, from * TILE_COLS, tiles);
        }
        for strip in first_strip..first_strip + strips {
            let b = x.block(strip, from, to);
            // The same columns of the next strip; past the last one it is the start of a strip or nothing, which does no harm.
            let following = b.as_ptr().wrapping_add(x.steps() * x.terms * 2);
            for (pair, a) in panel.chunks_exact(tiles_of_pair).take(pairs).enumerate() {
                let waiting = if sums.len() == 1 { 0 } else { (strip - first_strip) * pairs + pair };
                let block = &mut sums[waiting];
                let share = following.wrapping_add(pair * b.len() / TASK_PAIRS);
                unit.multiply(a, b, x.terms, from > 0, block, share);
                if to == plan.steps {
                    store(block, cells, strip * PAIR, (first_pair + pair) * PAIR);
                }
            }
        }
    }
}

/// Copies 32 rows of W from `row` and the columns from `col` as [step][2] tiles, with zeros past W's end.
fn copy_pair(weight: Bf16Rows<'_>, cols: usize, row: usize, col: usize, tiles: &mut [Tile]) {
    for r in 0..PAIR {
        let (half, r_of_tile) = (r / TILE, r % TILE);
        let cells = tiles.iter_mut().skip(half).step_by(2).map(|tile| &mut tile.0[r_of_tile * TILE_COLS..][..TILE_COLS]);
        if row + r >= weight.rows {
            cells.for_each(|cells| cells.fill(0));
            continue;
        }
        let start = (row + r) * weight.stride;
        let mut source = &weight.bytes[start + 2 * col..start + 2 * cols];
        for cells in cells {
            let cells: &mut [u8] = bytemuck::cast_slice_mut(cells);
            if let Some((whole, rest)) = source.split_first_chunk::<{ 2 * TILE_COLS }>() {
                cells.copy_from_slice(whole);
                source = rest;
            } else {
                let (present, missing) = cells.split_at_mut(source.len());
                present.copy_from_slice(source);
                missing.fill(0);
                source = &[];
            }
        }
    }
}

/// Writes 2 x 2 tiles of Y^T to Y, from cell (`row`, `col`) on, as far as Y goes.
fn store(sums: &Sums, out: &Cells, row: usize, col: usize) {
    let rows = PAIR.min(out.rows - row);
    let cols = PAIR.min(out.cols - col);
    // SAFETY: row < out.rows and col < out.cols; the output holds out.rows rows of out.cols cells.
    let target = unsafe { out.first.add(row * out.stride + col) };
    if rows == PAIR && cols == PAIR && !out.add {
        for (i, tile) in sums.0.iter().enumerate() {
            // SAFETY: the block of 32 x 32 cells is whole, and no other task writes to it; tile i is its columns from i / 2 * 16 and
            // its rows from i % 2 * 16 on.
            unsafe { transpose(tile.as_ptr().cast(), target.add(i % 2 * TILE * out.stride + i / 2 * TILE).cast(), out.stride) };
        }
        return;
    }
    let mut block = [0.0f32; PAIR * PAIR];
    for (i, tile) in sums.0.iter().enumerate() {
        // SAFETY: as above, within `block`, whose rows are 32 cells apart.
        unsafe { transpose(tile.as_ptr().cast(), block.as_mut_ptr().add(i % 2 * TILE * PAIR + i / 2 * TILE).cast(), PAIR) };
    }
    for r in 0..rows {
        // SAFETY: row + r < out.rows and col + cols <= out.cols, and no other task touches these cells.
        let cells = unsafe { std::slice::from_raw_parts_mut(target.add(r * out.stride), cols) };
        for (cell, &sum) in cells.iter_mut().zip(&block[r * PAIR..]) {
            *cell = if out.add { *cell + sum } else { sum };
        }
    }
}

#[cfg(test)]
mod tests;
