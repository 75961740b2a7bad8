// The warpgroup matrix multiply with 32 columns of sums.

#pragma once
#include "hopper.cuh"

namespace hopper {

// The sums of a warpgroup, [64, 32].
#define SUMS "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define SUM_REGISTERS REGISTERS_8(sums, 0), REGISTERS_8(sums, 8)

// sums [64, 32] = a [64, 16] b [32, 16]^T, added to sums if `add`
__device__ __forceinline__ void multiply(float (&sums)[16], uint64_t a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " SUMS "%16, %17, p, 1, 1, 0, 0;}\n"
                 : SUM_REGISTERS
                 : "l"(a), "l"(b), "r"(add));
}

// sums [64, 32] = a [64, 32] b [32, 32]^T in e4m3, added to sums if `add`
__device__ __forceinline__ void multiply_e4m3(float (&sums)[16], uint64_t a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 " SUMS "%16, %17, p, 1, 1;}\n"
                 : SUM_REGISTERS
                 : "l"(a), "l"(b), "r"(add));
}

#undef SUMS
#undef SUM_REGISTERS

}  // namespace hopper
