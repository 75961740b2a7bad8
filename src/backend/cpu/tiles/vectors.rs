//! Tiles in the vector registers of x86-64: AVX-512 with BF16 or VNNI, AVX-VNNI, and AVX2.

use std::arch::x86_64::*;

use super::blocks::{Blocks, unit};
use super::tile::{LINE_BYTES, PAIR, Sums, TILE, TILE_BYTES};

/// Returns `true` on CPUs of AMD, which start a product of bfloat16 vectors in each cycle. On an Intel CPU, Sapphire
/// Rapids, these products reach 117 to 143 GFLOP/s on two cores, less than the 190 to 223 of float32.
pub(super) fn is_amd() -> bool {
    #[allow(unused_unsafe)] // Newer compilers consider it safe.
    // SAFETY: every x86-64 CPU has cpuid.
    let vendor = unsafe { __cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

unit! {
    /// bfloat16 on AVX-512.
    Avx512Bf16, "avx512f,avx512bf16", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16"),
    16 x __m512i: _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32,
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
    16 x __m512i: _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32,
    1 bytes, offset 128, blocks 8 x 2, 16 x 1,
    |sum, w, x| _mm512_dpbusd_epi32(*sum, x, w)
}

unit! {
    /// Integers on CPUs with AVX-VNNI and without AVX-512.
    AvxVnni, "avx2,avxvnni", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni"),
    8 x __m256i: _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32,
    1 bytes, offset 128, blocks 4 x 2, 4 x 2,
    |sum, w, x| _mm256_dpbusd_avx_epi32(*sum, x, w)
}

unit! {
    /// Integers on AVX2. Sums of two products of 128 and 127 fit 16 bits if both are signed, so X loses its offset.
    Avx2, "avx2", is_x86_feature_detected!("avx2"),
    8 x __m256i: _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32,
    1 bytes, offset 0, blocks 4 x 2, 4 x 2,
    |sum, w, x| {
        let x = _mm256_sign_epi8(_mm256_xor_si256(x, _mm256_set1_epi8(-128)), w);
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), x);
        _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}
