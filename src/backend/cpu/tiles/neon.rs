//! Tiles in the vector registers of 64-bit Arm: SDOT, USMMLA and BFMMLA.
//!
//! Rust has no stable intrinsics for these instructions, so they are in assembly; all else is NEON, which every such
//! CPU has. Tested in an emulator and never timed on hardware. The choices follow the software optimization guides of
//! Neoverse V1 and N2, where these three start as often as a float32 multiply-add: once per cycle and pipe.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::blocks::{Blocks, unit};
use super::tile::{LINE_BYTES, PAIR, Sums, TILE, TILE_BYTES};

unit! {
    /// Integers by dot products, which are signed, so X loses its offset. A block of 4 x 4 has the fewest other vector
    /// instructions. All its vectors fit 24 of 32 registers.
    Sdot, "neon,dotprod", is_aarch64_feature_detected!("dotprod"),
    4 x int32x4_t: vld1q_s32 vst1q_s32 vdupq_n_s32,
    1 bytes, offset 0, blocks 4 x 4, 4 x 4,
    |sum, w, x| {
        let (mut sum, x) = (*sum, veorq_s32(x, vdupq_n_s32(0x8080_8080_u32.cast_signed())));
        // SAFETY: it accesses registers only, and this function has the feature.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

/// Defines a unit by its features and its instruction, which multiplies 8 bytes of two rows of X by those of two rows
/// of W, and adds the products to 2 x 2 sums.
///
/// A block of sums is 8 rows of W by 8 of X. All its vectors fit 26 of 32 registers. It has 16 of these instructions
/// for 8 that arrange operands.
macro_rules! matrix_unit {
    (
        $(#[$doc:meta])*
        $unit:ident, $features:literal, $detected:expr, $bytes:literal bytes, offset $offset:literal, $product:literal
    ) => {
        $(#[$doc])*
        pub(super) struct $unit;

        impl Blocks for $unit {
            const BYTES: usize = $bytes;
            const OFFSET: i32 = $offset;

            fn available() -> bool {
                $detected
            }

            #[target_feature(enable = $features)]
            unsafe fn accumulate(
                count: usize,
                at: impl Fn(usize) -> (*const u8, *const u8),
                x_rows: usize,
                add: bool,
                sums: &mut Sums,
            ) {
                const ROWS: usize = 8;
                let sums = sums.0.as_mut_ptr().cast::<i32>();
                // The sums of a row of W with four rows of X.
                let cells = |row: usize, x: usize| {
                    sums.wrapping_add((row / TILE * 2 + x / TILE) * TILE * TILE + row % TILE * TILE + x % TILE)
                };
                for x in (0..x_rows).step_by(ROWS) {
                    for row in (0..PAIR).step_by(ROWS) {
                        // [two rows of W][two rows of X]: the sums of a row of X with both rows of W, twice.
                        let mut block = [[vdupq_n_s32(0); ROWS / 2]; ROWS / 2];
                        if add {
                            for (r, block) in block.iter_mut().enumerate() {
                                for (v, sums) in block.as_chunks_mut().0.iter_mut().enumerate() {
                                    let first = cells(row + 2 * r, x + 4 * v);
                                    let second = first.wrapping_add(TILE);
                                    // SAFETY: the vectors of a block are in the 32 x 32 sums.
                                    *sums = unsafe { zip(vld1q_s32(first), vld1q_s32(second)) };
                                }
                            }
                        }
                        for i in 0..count {
                            let (a, b) = at(i);
                            let a = a.wrapping_add(row * LINE_BYTES);
                            let b = b.wrapping_add(x / TILE * TILE_BYTES + x % TILE * 4);
                            for cell in (0..TILE).step_by(2) {
                                let mut xs = [vdupq_n_s32(0); ROWS / 2];
                                for (v, values) in xs.as_chunks_mut().0.iter_mut().enumerate() {
                                    let first = b.wrapping_add(cell * LINE_BYTES + v * 16);
                                    let second = first.wrapping_add(LINE_BYTES);
                                    // SAFETY: vectors of two rows of the caller's two tiles.
                                    *values = unsafe { zip(vld1q_s32(first.cast()), vld1q_s32(second.cast())) };
                                }
                                for (r, block) in block.iter_mut().enumerate() {
                                    let first = a.wrapping_add(2 * r * LINE_BYTES + cell * 4);
                                    let second = first.wrapping_add(LINE_BYTES);
                                    // SAFETY: two cells of two of the caller's 32 rows.
                                    let w = unsafe { vcombine_s32(vld1_s32(first.cast()), vld1_s32(second.cast())) };
                                    for (sum, x) in block.iter_mut().zip(xs) {
                                        // SAFETY: it accesses registers only, and this function has the feature.
                                        unsafe {
                                            asm!(
                                                $product,
                                                sum = inout(vreg) *sum, x = in(vreg) x, w = in(vreg) w,
                                                options(pure, nomem, nostack, preserves_flags),
                                            );
                                        }
                                    }
                                }
                            }
                        }
                        for (r, block) in block.iter().enumerate() {
                            for (v, &[a, b]) in block.as_chunks().0.iter().enumerate() {
                                let first = cells(row + 2 * r, x + 4 * v);
                                // SAFETY: the vectors of a block are in the 32 x 32 sums.
                                unsafe {
                                    vst1q_s32(first, vuzp1q_s32(a, b));
                                    vst1q_s32(first.wrapping_add(TILE), vuzp2q_s32(a, b));
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}

/// Interleaves the cells of two vectors.
#[target_feature(enable = "neon")]
fn zip(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    [vzip1q_s32(a, b), vzip2q_s32(a, b)]
}

matrix_unit! {
    /// Integers by products of matrices, unsigned by signed.
    Usmmla, "neon,i8mm", is_aarch64_feature_detected!("i8mm"),
    1 bytes, offset 128, "usmmla {sum:v}.4s, {x:v}.16b, {w:v}.16b"
}

matrix_unit! {
    /// bfloat16 by products of matrices. Products, and sums of two, are rounded to odd, and subnormal numbers are zero.
    Bfmmla, "neon,bf16", is_aarch64_feature_detected!("bf16"),
    2 bytes, offset 0, "bfmmla {sum:v}.4s, {x:v}.8h, {w:v}.8h"
}
