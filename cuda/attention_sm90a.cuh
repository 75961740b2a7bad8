// Hopper instructions of attention_sm90a.cu: mbarrier, bulk tensor copy, warpgroup matrix multiply.

#pragma once
#include <stdint.h>

namespace hopper {

// A CUtensorMap, passed by value.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of parity `phase` is over.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier), "r"(phase)
        : "memory");
}

// Box of the map whose first cell is (row, col), to shared memory; cells outside are zeros. Completes on `barrier`.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int row, int col, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(col), "r"(row), "r"(barrier)
                 : "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Named barriers: `wait_turn` returns when the other party of `threads` has called `give_turn` as well.
__device__ __forceinline__ void wait_turn(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void give_turn(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Orders register writes before the matrix multiplies that follow.
__device__ __forceinline__ void begin_multiply() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_multiply() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_multiply() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The values are what they are after this point: keeps the compiler from moving their uses before a wait.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
}

// A matrix in shared memory, in panels 128 bytes wide with the 128-byte swizzle; eight rows are 1024 bytes.
// `panel_bytes` counts where the long axis is the wide one (values), and is ignored otherwise.
__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t panel_bytes) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(panel_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

#define REGISTERS_8(r, i) "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3]), "+f"(r[i + 4]), "+f"(r[i + 5]), "+f"(r[i + 6]), "+f"(r[i + 7])

// s [64, 176] = queries [64, 16] keys [176, 16]^T, added to s if `add`
__device__ __forceinline__ void multiply_keys(float (&s)[88], uint64_t queries, uint64_t keys, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %90, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
        "}, %88, %89, p, 1, 1, 0, 0;}\n"
        : REGISTERS_8(s, 0), REGISTERS_8(s, 8), REGISTERS_8(s, 16), REGISTERS_8(s, 24), REGISTERS_8(s, 32), REGISTERS_8(s, 40),
          REGISTERS_8(s, 48), REGISTERS_8(s, 56), REGISTERS_8(s, 64), REGISTERS_8(s, 72), REGISTERS_8(s, 80)
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
        : REGISTERS_8(o, 0), REGISTERS_8(o, 8), REGISTERS_8(o, 16), REGISTERS_8(o, 24), REGISTERS_8(o, 32), REGISTERS_8(o, 40),
          REGISTERS_8(o, 48), REGISTERS_8(o, 56)
        : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(values));
}

#undef REGISTERS_8

}  // namespace hopper
