// Asynchronous copies to shared memory, and warp-level multiplies, on every GPU since Turing.
#pragma once

#include "common.cuh"

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool inside) {
    // With a source size of 0 nothing is read and zeros are written.
    int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// As copy_16, or nothing unless `wanted`. LINE: L2 fetches the whole line of 128 bytes.
template <bool LINE = false>
__device__ __forceinline__ void copy_16_if(bool wanted, uint32_t to, const void* from, bool inside) {
    const int bytes = inside ? 16 : 0;
    if constexpr (LINE)
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %3, 0; "
            "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;}" ::"r"(to),
            "l"(from), "r"(bytes), "r"(int(wanted))
            : "memory");
    else
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(to),
            "l"(from), "r"(bytes), "r"(int(wanted))
            : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#else

// Without cp.async a copy is done when the thread continues; other threads see it after the next __syncthreads.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool inside) {
    const uint4 chunk = inside ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z),
                 "r"(chunk.w)
                 : "memory");
}

template <bool LINE = false>
__device__ __forceinline__ void copy_16_if(bool wanted, uint32_t to, const void* from, bool inside) {
    if (wanted) copy_16(to, from, inside);
}

__device__ __forceinline__ void commit_copies() {}

template <int PENDING>
__device__ __forceinline__ void wait_copies() {}

#endif

// Returns the offset of 16 bytes of a row of CHUNKS chunks in shared memory, from the first row on: eight consecutive
// rows have the same chunk in different banks, so ldmatrix has no conflicts.
template <int CHUNKS>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
    const int turn = CHUNKS >= 8 ? row & 7 : (row / (8 / CHUNKS)) & (CHUNKS - 1);
    return row * (CHUNKS * 16) + (chunk ^ turn) * 16;
}

__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&m)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8]
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifndef ELEMENT_F16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    // Half of the depth at a time: a[0], a[1] and b0 are of the first eight columns.
    const auto eight = [&](uint32_t top, uint32_t bottom, uint32_t b) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(top), "r"(bottom), "r"(b));
    };
    eight(a[0], a[1], b0);
    eight(a[2], a[3], b1);
#endif
}

// c [16, 8] += a [16, 32] b [32, 8] of 8-bit integers
__device__ __forceinline__ void multiply_add_int8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int k = 0; k < 2; k++)
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                         : "+r"(c[2 * half]), "+r"(c[2 * half + 1])
                         : "r"(a[2 * k + half]), "r"(b[k]));
    }
#endif
}

#if __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ >= 1200
#define MULTIPLIES_E4M3

// As above for e4m3. Tensor cores of 9.0 multiply these only by wgmma: there ptxas converts a and b to f16 first.
__device__ __forceinline__ void multiply_add_e4m3(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
