// Warpgroup matrix multiplies and matrix moves of conv2d_sm90a.cuh.

#pragma once
#include "multiply_128_sm90a.cuh"
#include "multiply_wide_sm90a.cuh"

namespace hopper {

// sums [64, 8] = a [64, 16] b [8, 16]^T, added to sums if `add`
__device__ __forceinline__ void multiply(float (&sums)[4], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, p, 1, 1, 0, 0;}\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "l"(a), "l"(b), "r"(add));
}

// Stores four 8 x 8 matrices of bf16, held as a warp holds sums, by columns: lane l gives the address of column l % 8
// of matrix l / 8, 16 bytes each.
__device__ __forceinline__ void store_transposed_matrices(uint32_t to, const uint32_t (&matrices)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(matrices[0]),
                 "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
}

__device__ __forceinline__ void load_transposed_matrices(uint32_t from, uint32_t (&matrices)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(from)
                 : "memory");
}

}  // namespace hopper
