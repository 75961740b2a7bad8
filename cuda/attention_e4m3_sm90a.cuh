// Warpgroup matrix multiplies of attention_e4m3_sm90a.cu.

#pragma once
#include "hopper.cuh"

namespace hopper {

// s [64, 128] = queries [64, 32] keys [128, 32]^T in e4m3, added to s if `add`
__device__ __forceinline__ void multiply_keys(float (&s)[64], uint64_t queries, uint64_t keys, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1;}\n"
        : REGISTERS_8(s, 0), REGISTERS_8(s, 8), REGISTERS_8(s, 16), REGISTERS_8(s, 24), REGISTERS_8(s, 32),
          REGISTERS_8(s, 40), REGISTERS_8(s, 48), REGISTERS_8(s, 56)
        : "l"(queries), "l"(keys), "r"(add));
}

// o [64, 136] = p [64, 32], in registers, times values [136, 32]^T in e4m3, added to o if `add`
__device__ __forceinline__ void multiply_values(float (&o)[68], const uint32_t (&p)[4], uint64_t values, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %73, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67"
        "}, {%68, %69, %70, %71}, %72, p, 1, 1;}\n"
        : REGISTERS_8(o, 0), REGISTERS_8(o, 8), REGISTERS_8(o, 16), REGISTERS_8(o, 24), REGISTERS_8(o, 32),
          REGISTERS_8(o, 40), REGISTERS_8(o, 48), REGISTERS_8(o, 56), "+f"(o[64]), "+f"(o[65]), "+f"(o[66]),
          "+f"(o[67])
        : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values), "r"(add));
}

__device__ __forceinline__ void store_shared_16(uint32_t to, uint32_t word) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(word) : "memory");
}

}  // namespace hopper
