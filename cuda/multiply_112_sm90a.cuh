// The warpgroup matrix multiply with 112 columns of sums.

#pragma once
#include "hopper.cuh"

namespace hopper {

// The sums of a warpgroup, [64, 112].
#define SUMS                                                                                            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
    "%48, %49, %50, %51, %52, %53, %54, %55}, "
#define SUM_REGISTERS                                                                         \
    REGISTERS_8(sums, 0), REGISTERS_8(sums, 8), REGISTERS_8(sums, 16), REGISTERS_8(sums, 24), \
        REGISTERS_8(sums, 32), REGISTERS_8(sums, 40), REGISTERS_8(sums, 48)

// sums [64, 112] = a [64, 32 bytes] b [112, 32 bytes]^T, added to sums if `add`: 16 values of bf16, or 32 of e4m3, of
// which the tensor cores keep about 14 bits of a sum.
template <bool E4M3 = false>
__device__ __forceinline__ void multiply(float (&sums)[56], uint64_t a, uint64_t b, int add) {
    if constexpr (E4M3) {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n112k32.f32.e4m3.e4m3 " SUMS "%56, %57, p, 1, 1;}\n"
                     : SUM_REGISTERS
                     : "l"(a), "l"(b), "r"(add));
    } else {
        asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 " SUMS "%56, %57, p, 1, 1, 0, 0;}\n"
                     : SUM_REGISTERS
                     : "l"(a), "l"(b), "r"(add));
    }
}

#undef SUMS
#undef SUM_REGISTERS

}  // namespace hopper
