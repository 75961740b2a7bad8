// Warpgroup matrix multiplies: sums [64, cols] = a [64, 32 bytes] b [cols, 32 bytes]^T. 32 bytes are 16 values of bf16
// or 32 of e4m3, whose sums have about 14 bits in the tensor cores.

#pragma once
#include "hopper.cuh"

namespace hopper {

// The sums of a thread as operands of asm: their numbers, and their registers.
#define SUMS_4 "%0, %1, %2, %3"
#define SUMS_16 SUMS_4 ", %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_32 SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_48 SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_56 SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SUMS_64 SUMS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_68 SUMS_64 ", %64, %65, %66, %67"
#define SUMS_88 SUMS_68                                                                    \
    ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
#define SUMS_112 SUMS_88                                                                   \
    ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103" \
    ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_128 SUMS_112                                                                  \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define EIGHT(i) FOUR(i), FOUR(i + 4)
#define REGISTERS_4 FOUR(0)
#define REGISTERS_16 EIGHT(0), EIGHT(8)
#define REGISTERS_32 REGISTERS_16, EIGHT(16), EIGHT(24)
#define REGISTERS_48 REGISTERS_32, EIGHT(32), EIGHT(40)
#define REGISTERS_56 REGISTERS_48, EIGHT(48)
#define REGISTERS_64 REGISTERS_56, EIGHT(56)
#define REGISTERS_68 REGISTERS_64, FOUR(64)
#define REGISTERS_88 REGISTERS_68, FOUR(68), EIGHT(72), EIGHT(80)
#define REGISTERS_112 REGISTERS_88, EIGHT(88), EIGHT(96), EIGHT(104)
#define REGISTERS_128 REGISTERS_112, EIGHT(112), EIGHT(120)

// Both operands are in shared memory; the product is added to sums if `add`. With BY_ROWS b is [16, cols], in bf16
// only. A thread has `count` sums; the operands after them continue the numbering.
#define MULTIPLY(cols, count, a_operand, b_operand, add_operand, by_rows_operand)                             \
    template <bool E4M3 = false, bool BY_ROWS = false>                                                        \
    __device__ __forceinline__ void multiply(float (&sums)[count], uint64_t a, uint64_t b, int add) {         \
        if constexpr (E4M3)                                                                                   \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #add_operand ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #cols "k32.f32.e4m3.e4m3 {" SUMS_##count "}, %"  \
                         #a_operand ", %" #b_operand ", p, 1, 1;}\n"                                          \
                         : REGISTERS_##count                                                                  \
                         : "l"(a), "l"(b), "r"(add));                                                         \
        else                                                                                                  \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #add_operand ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #cols "k16.f32.bf16.bf16 {" SUMS_##count "}, %"  \
                         #a_operand ", %" #b_operand ", p, 1, 1, 0, %" #by_rows_operand ";}\n"                \
                         : REGISTERS_##count                                                                  \
                         : "l"(a), "l"(b), "r"(add), "n"(BY_ROWS));                                           \
    }

MULTIPLY(8, 4, 4, 5, 6, 7)
MULTIPLY(32, 16, 16, 17, 18, 19)
MULTIPLY(64, 32, 32, 33, 34, 35)
MULTIPLY(96, 48, 48, 49, 50, 51)
MULTIPLY(112, 56, 56, 57, 58, 59)
MULTIPLY(128, 64, 64, 65, 66, 67)
MULTIPLY(176, 88, 88, 89, 90, 91)
MULTIPLY(224, 112, 112, 113, 114, 115)
MULTIPLY(256, 128, 128, 129, 130, 131)

// sums [64, 128] += a [64, 16], in registers, times b [16, 128]
__device__ __forceinline__ void multiply_values(float (&sums)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}\n"
                 : REGISTERS_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// sums [64, 136] = a [64, 32], in registers, times b [136, 32]^T in e4m3, added to sums if `add`
__device__ __forceinline__ void multiply_values(float (&sums)[68], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %73, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {" SUMS_68
                 "}, {%68, %69, %70, %71}, %72, p, 1, 1;}\n"
                 : REGISTERS_68
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

}  // namespace hopper
