//! Tiles in vector registers: AVX-512 with BF16 or VNNI, AVX-VNNI, and AVX2.
//!
//! A vector holds cells of 32 bits of 8 or 16 rows of X. They are multiplied by a cell of a row of W, which the load
//! broadcasts. A block of sums, `ROWS` rows of W by `VECTORS` vectors, stays in registers.

use std::arch::x86_64::*;

use super::Offsets;
use super::tile::{LINE_BYTES, Line, LineTiles, PAIR, Sums, TILE, TILE_BYTES, Tile, Tiles};

/// Returns `true` on CPUs of AMD, which start a product of bfloat16 vectors in each cycle. On an Intel CPU, Sapphire
/// Rapids, these products reach 117 to 143 GFLOP/s on two cores, less than the 190 to 223 of float32.
pub(super) fn is_amd() -> bool {
    #[allow(unused_unsafe)] // Newer compilers consider it safe.
    // SAFETY: every x86-64 CPU has cpuid.
    let vendor = unsafe { __cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

/// Defines a unit by its features, its vectors, the rows and vectors of a block of sums (also for at most 16 rows of
/// X), and the product that it adds to a vector of sums.
macro_rules! unit {
    (
        $(#[$doc:meta])*
        $unit:ident, $features:literal, $detected:expr, $lanes:literal x $vector:ty: $load:ident $store:ident
        $broadcast:ident $zero:ident, $bytes:literal bytes, offset $offset:literal,
        blocks $rows:literal x $vectors:literal, $few_rows:literal x $few_vectors:literal,
        |$sum:ident, $w:ident, $x:ident| $product:expr
    ) => {
        $(#[$doc])*
        pub(super) struct $unit(());

        impl $unit {
            /// Returns `true` if this CPU has the instructions.
            pub(super) fn available() -> bool {
                $detected
            }

            /// Computes `sums (or 0, unless add) += a b` over `count` pairs of tiles; `at` returns the addresses of
            /// both. Sums past `x_rows` rows of X may be left out.
            ///
            /// # Safety
            ///
            /// The CPU has the features. `at` returns addresses of 32 rows of 64 bytes, and of two tiles.
            #[target_feature(enable = $features)]
            unsafe fn accumulate<const ROWS: usize, const VECTORS: usize>(
                count: usize,
                at: impl Fn(usize) -> (*const u8, *const u8),
                x_rows: usize,
                add: bool,
                sums: &mut Sums,
            ) {
                const LANES: usize = $lanes;
                let sums = sums.0.as_mut_ptr().cast::<u32>();
                // The first of a vector of sums: of a row of W, from a row of X on.
                let cells = |row: usize, x: usize| {
                    sums.wrapping_add((row / TILE * 2 + x / TILE) * TILE * TILE + row % TILE * TILE + x % TILE)
                };
                for x in (0..x_rows).step_by(LANES * VECTORS) {
                    for row in (0..PAIR).step_by(ROWS) {
                        let mut block = [[$zero(); VECTORS]; ROWS];
                        if add {
                            for (r, block) in block.iter_mut().enumerate() {
                                for (v, sum) in block.iter_mut().enumerate() {
                                    // SAFETY: the vectors of a block are in the 32 x 32 sums.
                                    *sum = unsafe { $load(cells(row + r, x + v * LANES).cast()) };
                                }
                            }
                        }
                        for i in 0..count {
                            let (a, b) = at(i);
                            let a = a.wrapping_add(row * LINE_BYTES);
                            for cell in 0..TILE {
                                let mut xs = [$zero(); VECTORS];
                                for (v, values) in xs.iter_mut().enumerate() {
                                    let x = x + v * LANES;
                                    let at = x / TILE * TILE_BYTES + cell * LINE_BYTES + x % TILE * 4;
                                    // SAFETY: a vector of a row of the caller's two tiles.
                                    *values = unsafe { $load(b.wrapping_add(at).cast()) };
                                }
                                for (r, block) in block.iter_mut().enumerate() {
                                    let weight = a.wrapping_add(r * LINE_BYTES + cell * 4).cast::<i32>();
                                    // SAFETY: a cell of the caller's 32 rows.
                                    let $w: $vector = $broadcast(unsafe { weight.read_unaligned() });
                                    for ($sum, $x) in block.iter_mut().zip(xs) {
                                        *$sum = $product;
                                    }
                                }
                            }
                        }
                        for (r, block) in block.iter().enumerate() {
                            for (v, sum) in block.iter().enumerate() {
                                // SAFETY: the vectors of a block are in the 32 x 32 sums.
                                unsafe { $store(cells(row + r, x + v * LANES).cast(), *sum) };
                            }
                        }
                    }
                }
            }
        }

        impl Tiles for $unit {
            const BLOCK_STEPS: usize = 16;
            const BYTES: usize = $bytes;
            const OFFSET: i32 = $offset;

            fn begin() -> Self {
                assert!(Self::available());
                Self(())
            }

            fn multiply(
                &self,
                a: &[Tile],
                b: &[Tile],
                terms: usize,
                x_rows: usize,
                add: bool,
                sums: &mut Sums,
                _: *const Tile,
            ) {
                assert!(terms > 0 && a.len().is_multiple_of(2) && b.len() == a.len() * terms);
                let (count, a, b) = (b.len() / 2, a.as_ptr(), b.as_ptr());
                let at = |i: usize| (a.wrapping_add(i / terms * 2).cast(), b.wrapping_add(i * 2).cast());
                // SAFETY: `self` exists, so the CPU has the features; `a` has two tiles for each step, and `b` two for
                // each step and term.
                unsafe {
                    if x_rows > TILE {
                        Self::accumulate::<$rows, $vectors>(count, at, PAIR, add, sums);
                    } else {
                        Self::accumulate::<$few_rows, $few_vectors>(count, at, TILE, add, sums);
                    }
                }
            }
        }
    };
}

unit! {
    /// bfloat16 on AVX-512.
    Avx512Bf16, "avx512f,avx512bf16", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16"),
    16 x __m512i: _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 _mm512_setzero_si512,
    2 bytes, offset 0, blocks 8 x 2, 16 x 1,
    |sum, w, x| {
        // SAFETY: vectors of one size, of numbers.
        let [w, x] = unsafe { std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([w, x]) };
        _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(*sum), w, x))
    }
}

unit! {
    /// Integers on AVX-512.
    Avx512Vnni, "avx512f,avx512vnni", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni"),
    16 x __m512i: _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 _mm512_setzero_si512,
    1 bytes, offset 128, blocks 8 x 2, 16 x 1,
    |sum, w, x| _mm512_dpbusd_epi32(*sum, x, w)
}

unit! {
    /// Integers on CPUs with AVX-VNNI and without AVX-512.
    AvxVnni, "avx2,avxvnni", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni"),
    8 x __m256i: _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 _mm256_setzero_si256,
    1 bytes, offset 128, blocks 4 x 2, 4 x 2,
    |sum, w, x| _mm256_dpbusd_avx_epi32(*sum, x, w)
}

unit! {
    /// Integers on AVX2. Sums of two products of 128 and 127 fit 16 bits if both are signed, so X loses its offset.
    Avx2, "avx2", is_x86_feature_detected!("avx2"),
    8 x __m256i: _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 _mm256_setzero_si256,
    1 bytes, offset 0, blocks 4 x 2, 4 x 2,
    |sum, w, x| {
        let x = _mm256_sign_epi8(_mm256_xor_si256(x, _mm256_set1_epi8(-128)), w);
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), x);
        _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

impl LineTiles for Avx512Bf16 {
    fn multiply_lines(&self, a: &[Line], offsets: &Offsets, b: &[Tile], sums: &mut Sums) {
        let (steps, terms) = (b.len() / 2, offsets.terms());
        assert!(terms > 0 && offsets.bytes().len() == steps * terms && a.len() >= offsets.reach());
        let (a, b, offsets) = (a.as_ptr().cast::<u8>(), b.as_ptr(), offsets.bytes());
        let at = |i: usize| (a.wrapping_add(offsets[i]), b.wrapping_add(i / terms * 2).cast());
        // SAFETY: `self` exists, so the CPU has the features; `a` has 32 lines from each offset on, which end before
        // `reach`, and `b` two tiles for each step.
        unsafe { Self::accumulate::<8, 2>(steps * terms, at, PAIR, false, sums) };
    }
}
