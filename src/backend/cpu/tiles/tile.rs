//! Tiles, and the operations of a unit that multiplies them.

use half::bf16;

use super::Offsets;

/// Rows of a tile, cells of a row, and float32 or 32-bit columns of a tile of sums.
pub(super) const TILE: usize = 16;
/// Rows of W or X that are multiplied at once: two tiles.
pub(super) const PAIR: usize = 2 * TILE;
/// Bytes of a row of a tile.
pub(super) const LINE_BYTES: usize = 4 * TILE;
/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = TILE * LINE_BYTES;
/// bfloat16 columns of a tile.
pub(super) const BF16_COLS: usize = LINE_BYTES / 2;

/// 16 rows of 16 cells, each two bfloat16 numbers or four 8-bit integers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [u32; TILE * TILE]);

// SAFETY: the fields are numbers, and may be zero.
unsafe impl bytemuck::Zeroable for Tile {}
// SAFETY: an array of numbers with a size that is a multiple of its alignment, so without padding.
unsafe impl bytemuck::Pod for Tile {}

/// A row of tile A in bfloat16.
pub type Line = [u16; BF16_COLS];

/// 2 x 2 tiles of sums: [tile A of the pair][tile B of the pair][row of A][row of B^T], with rows of W and X, or of X
/// and W. They are float32 for bfloat16, and 32-bit integers, as bits, for 8-bit integers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[f32; TILE * TILE]; 4]);

pub(super) const NO_TILE: Tile = Tile([0; TILE * TILE]);
pub(super) const NO_SUMS: Sums = Sums([[0.0; TILE * TILE]; 4]);

/// A unit that multiplies tiles.
pub(super) trait Tiles {
    /// Tile steps in a block of columns if X has one term, and half as many if it has more.
    const BLOCK_STEPS: usize;
    /// Bytes of a number of W: 2 for bfloat16, 1 for integers.
    const BYTES: usize;
    /// The number that integers of X contain more than their value in the sums of this unit.
    const OFFSET: i32 = 0;

    /// Returns `true` if this CPU has the instructions.
    fn available() -> bool;

    /// Configures this thread for the multiplications below until the value is dropped. Panics unless the unit is
    /// available.
    fn begin() -> Self;

    /// Computes `sums (or 0, unless add) += a b` for a pair of tiles of W by a strip of X.
    ///
    /// `a` is `[step][2]` tiles, `b` `[step][term][2]` tiles. Sums past `x_rows` rows of X may be left out. For each
    /// step and term, 512 bytes from `prefetch` on may be prefetched to the second-level cache, if they exist.
    #[allow(clippy::too_many_arguments)]
    fn multiply(
        &self,
        a: &[Tile],
        b: &[Tile],
        terms: usize,
        x_rows: usize,
        add: bool,
        sums: &mut Sums,
        prefetch: *const Tile,
    );
}

/// Returns `true` if a unit is available, and agrees with the definition on integers with sums that are exact in
/// float32 too.
pub(super) fn is_usable<T: Tiles>() -> bool {
    if !T::available() {
        return false;
    }
    const STEPS: usize = 3;
    let numbers = LINE_BYTES / T::BYTES;
    let number = |row: usize, i: usize| ((row * 1009 + i * 37) % 61) as i8 - 30;
    let line = |row: usize, step: usize, flipped: u8| {
        let mut line = [0; LINE_BYTES];
        for (i, bytes) in line.chunks_exact_mut(T::BYTES).enumerate() {
            let number = number(row, step * numbers + i);
            match bytes {
                [byte] => *byte = number as u8 ^ flipped,
                bytes => bytes.copy_from_slice(&bf16::from_f32(number.into()).to_le_bytes()),
            }
        }
        line
    };
    let (mut a, mut b) = ([NO_TILE; 2 * STEPS], [NO_TILE; 2 * STEPS]);
    for (step, row) in (0..STEPS).flat_map(|step| (0..PAIR).map(move |row| (step, row))) {
        let (tile, row_of_tile) = (step * 2 + row / TILE, row % TILE);
        bytemuck::bytes_of_mut(&mut a[tile])[row_of_tile * LINE_BYTES..][..LINE_BYTES]
            .copy_from_slice(&line(row, step, 0));
        let x = line(row + PAIR, step, 0x80);
        for (cell, bytes) in x.as_chunks().0.iter().enumerate() {
            b[tile].0[cell * TILE + row_of_tile] = u32::from_ne_bytes(*bytes);
        }
    }
    let mut sums = NO_SUMS;
    T::begin().multiply(&a, &b, 1, PAIR, false, &mut sums, b.as_ptr());
    (0..PAIR * PAIR).all(|i| {
        let (row, x) = (i / PAIR, i % PAIR);
        let terms = (0..STEPS * numbers).map(|i| i32::from(number(row, i)) * i32::from(number(x + PAIR, i)));
        let weights = (0..STEPS * numbers).map(|i| i32::from(number(row, i)));
        let (sum, got) = (terms.sum::<i32>(), sums.0[row / TILE * 2 + x / TILE][row % TILE * TILE + x % TILE]);
        if T::BYTES == 1 { got.to_bits() as i32 == sum + T::OFFSET * weights.sum::<i32>() } else { got == sum as f32 }
    })
}

/// A unit that also multiplies lines, for convolutions.
pub(super) trait LineTiles: Tiles {
    /// Computes `sums = a b`: a step and term of `a` is 32 consecutive lines from one of `offsets` on, and `b` is
    /// `[step][2]` tiles.
    ///
    /// Panics if `offsets` reach past the end of `a`, or if their number isn't that of the steps and terms.
    fn multiply_lines(&self, a: &[Line], offsets: &Offsets, b: &[Tile], sums: &mut Sums);
}

/// Writes `to[col * stride + row] = from[row * from_stride + col]` for 16 x 16 cells of 32 bits.
///
/// # Safety
///
/// `from` and `to` have these cells, and they do not overlap.
pub unsafe fn transpose(from: *const u32, from_stride: usize, to: *mut u32, stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        for (row, col) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: the CPU has AVX; the caller's cells hold the four blocks of 8 x 8 cells.
            unsafe {
                transpose_8x8(
                    from.add(row * from_stride + col).cast(),
                    from_stride,
                    to.add(col * stride + row).cast(),
                    stride,
                )
            };
        }
        return;
    }
    for row in 0..TILE {
        for col in 0..TILE {
            // SAFETY: the cells that the caller promises.
            unsafe { *to.add(col * stride + row) = *from.add(row * from_stride + col) };
        }
    }
}

/// Transposes one quarter of [`transpose`]; these moves preserve all bits, including those of a NaN.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose_8x8(from: *const f32, from_stride: usize, to: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's 8 rows of 8 cells, `from_stride` cells apart.
    let r: [__m256; 8] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(from.add(i * from_stride)) });
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
