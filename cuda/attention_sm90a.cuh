// Warpgroup matrix multiplies of attention_sm90a.cu.

#pragma once
#include "hopper.cuh"

namespace hopper {

// s [64, 176] = queries [64, 16] keys [176, 16]^T, added to s if `add`
__device__ __forceinline__ void multiply(float (&s)[88], uint64_t queries, uint64_t keys, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %90, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
        "}, %88, %89, p, 1, 1, 0, 0;}\n"
        : REGISTERS_8(s, 0), REGISTERS_8(s, 8), REGISTERS_8(s, 16), REGISTERS_8(s, 24), REGISTERS_8(s, 32),
          REGISTERS_8(s, 40), REGISTERS_8(s, 48), REGISTERS_8(s, 56), REGISTERS_8(s, 64), REGISTERS_8(s, 72),
          REGISTERS_8(s, 80)
        : "l"(queries), "l"(keys), "r"(add));
}

// o [64, 128] += p [64, 16], in registers, times values [16, 128]
__device__ __forceinline__ void multiply_values(float (&o)[64], const uint32_t (&p)[4], uint64_t values) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}\n"
        : REGISTERS_8(o, 0), REGISTERS_8(o, 8), REGISTERS_8(o, 16), REGISTERS_8(o, 24), REGISTERS_8(o, 32),
          REGISTERS_8(o, 40), REGISTERS_8(o, 48), REGISTERS_8(o, 56)
        : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values));
}

}  // namespace hopper
