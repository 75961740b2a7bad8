// Warpgroup matrix multiplies with 112, 224 and 256 columns of sums, which several kernels share.

#pragma once
#include "hopper.cuh"

namespace hopper {

// The sums of a thread, as operands of asm.
#define SUMS_56                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55"
#define SUMS_112 SUMS_56                                                                   \
    ", %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "   \
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, "     \
    "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_128 SUMS_112                                                                              \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define REGISTERS_56                                                                          \
    REGISTERS_8(sums, 0), REGISTERS_8(sums, 8), REGISTERS_8(sums, 16), REGISTERS_8(sums, 24), \
    REGISTERS_8(sums, 32), REGISTERS_8(sums, 40), REGISTERS_8(sums, 48)
#define REGISTERS_112 REGISTERS_56,                                                             \
    REGISTERS_8(sums, 56), REGISTERS_8(sums, 64), REGISTERS_8(sums, 72), REGISTERS_8(sums, 80), \
    REGISTERS_8(sums, 88), REGISTERS_8(sums, 96), REGISTERS_8(sums, 104)
#define REGISTERS_128 REGISTERS_112,               \
    REGISTERS_8(sums, 112), REGISTERS_8(sums, 120)

// sums [64, cols] = x [64, 32 bytes] weight [cols, 32 bytes]^T, added to sums if `add`: 16 values of bf16, or 32 of
// e4m3, of which the tensor cores keep about 14 bits of a sum. A thread has `count` sums; the operands behind them are
// numbered on.
#define MULTIPLY(cols, count, x_operand, weight_operand, add_operand)                                       \
    template <bool E4M3 = false>                                                                            \
    __device__ __forceinline__ void multiply(float (&sums)[count], uint64_t x, uint64_t weight, int add) {  \
        if constexpr (E4M3) {                                                                               \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #add_operand ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #cols "k32.f32.e4m3.e4m3 {" SUMS_##count "}, " \
                         "%" #x_operand ", %" #weight_operand ", p, 1, 1;}\n"                               \
                         : REGISTERS_##count                                                                \
                         : "l"(x), "l"(weight), "r"(add));                                                  \
        } else {                                                                                            \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #add_operand ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.bf16.bf16 {" SUMS_##count "}, " \
                         "%" #x_operand ", %" #weight_operand ", p, 1, 1, 0, 0;}\n"                         \
                         : REGISTERS_##count                                                                \
                         : "l"(x), "l"(weight), "r"(add));                                                  \
        }                                                                                                   \
    }

MULTIPLY(112, 56, 56, 57, 58)
MULTIPLY(224, 112, 112, 113, 114)
MULTIPLY(256, 128, 128, 129, 130)

#undef MULTIPLY
#undef SUMS_56
#undef SUMS_112
#undef SUMS_128
#undef REGISTERS_56
#undef REGISTERS_112
#undef REGISTERS_128

}  // namespace hopper
