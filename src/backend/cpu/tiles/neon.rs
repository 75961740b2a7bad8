//! Tiles in the vector registers of 64-bit Arm: SDOT.
//!
//! Rust has no stable intrinsics for this instruction, so it is in assembly; all else is NEON, which every such
//! CPU has. Tested in an emulator and never timed on hardware. The choices follow the software optimization guides of
//! Neoverse V1 and N2, where SDOT starts as often as a float32 multiply-add: once per cycle and pipe.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::blocks::{Blocks, unit};
use super::tile::{LINE_BYTES, PAIR, Sums, TILE, TILE_BYTES};

unit! {
    /// Integers by dot products, which are signed, so X loses its offset. A block of 4 x 4 has the fewest other vector
    /// instructions, and takes 21 of 32 registers.
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
