// The warpgroup matrix multiply with 96 columns of sums.

#pragma once
#include "hopper.cuh"

namespace hopper {

// The sums of a warpgroup, [64, 96].
#define SUMS                                                                                            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define SUM_REGISTERS                                                                                   \
    REGISTERS_8(sums, 0), REGISTERS_8(sums, 8), REGISTERS_8(sums, 16), REGISTERS_8(sums, 24),           \
        REGISTERS_8(sums, 32), REGISTERS_8(sums, 40)

// sums [64, 96] = x [64, 16] weight [96, 16]^T, added to sums if `add`
__device__ __forceinline__ void multiply(float (&sums)[48], uint64_t x, uint64_t weight, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 " SUMS "%48, %49, p, 1, 1, 0, 0;}\n"
                 : SUM_REGISTERS
                 : "l"(x), "l"(weight), "r"(add));
}

// sums [64, 96] = x [64, 32] weight [96, 32]^T in e4m3, added to sums if `add`
__device__ __forceinline__ void multiply_e4m3(float (&sums)[48], uint64_t x, uint64_t weight, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 " SUMS "%48, %49, p, 1, 1;}\n"
                 : SUM_REGISTERS
                 : "l"(x), "l"(weight), "r"(add));
}

#undef SUMS
#undef SUM_REGISTERS

}  // namespace hopper
