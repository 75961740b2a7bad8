// The warpgroup matrix multiply with 128 columns of sums, which several kernels share.

#pragma once
#include "hopper.cuh"

namespace hopper {

// The sums of a warpgroup, [64, 128].
#define SUMS                                                                                            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define SUM_REGISTERS                                                                                   \
    REGISTERS_8(sums, 0), REGISTERS_8(sums, 8), REGISTERS_8(sums, 16), REGISTERS_8(sums, 24),           \
        REGISTERS_8(sums, 32), REGISTERS_8(sums, 40), REGISTERS_8(sums, 48), REGISTERS_8(sums, 56)

// sums [64, 128] = a [64, 16] b [128, 16]^T, added to sums if `add`; with BY_ROWS b is [16, 128]
template <bool BY_ROWS = false>
__device__ __forceinline__ void multiply(float (&sums)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SUMS "%64, %65, p, 1, 1, 0, %67;}\n"
                 : SUM_REGISTERS
                 : "l"(a), "l"(b), "r"(add), "n"(BY_ROWS));
}

// sums [64, 128] = a [64, 32] b [128, 32]^T in e4m3, added to sums if `add`
__device__ __forceinline__ void multiply_e4m3(float (&sums)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " SUMS "%64, %65, p, 1, 1;}\n"
                 : SUM_REGISTERS
                 : "l"(a), "l"(b), "r"(add));
}

#undef SUMS
#undef SUM_REGISTERS

}  // namespace hopper
