// Hopper instructions that C++ has no names for: mbarrier, bulk tensor copy (TMA), and those around warpgroup matrix
// multiplies. The multiplies themselves are in the headers of their kernels, because each kernel has its own shapes.

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

// Makes initialised barriers known to TMA.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

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

// Copies the map's box that begins at (row, col) to shared memory; cells outside are zeros. Completes on `barrier`.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int row, int col, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(&map), "r"(col), "r"(row), "r"(barrier)
        : "memory");
}

// The same with a policy of L2.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int row, int col, uint32_t barrier,
                                         uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(barrier), "l"(policy)
        : "memory");
}

// The same in three axes: the box's first cell is (plane, row, col).
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int plane, int row, int col,
                                         uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(plane), "r"(barrier)
        : "memory");
}

// The same in five axes: the box's first cell is (group, plane, set, row, col).
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int group, int plane, int set, int row,
                                         int col, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
        "[%7];" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(set), "r"(plane), "r"(group), "r"(barrier)
        : "memory");
}

// Walks over the stages of a pipeline in turn: `stage`, and the parity of how often all of them were used.
template <int STAGES>
struct Ring {
    int stage = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Named barriers: `wait_turn` returns when the other party of `threads` has called `give_turn` as well.
__device__ __forceinline__ void wait_turn(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void give_turn(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders register writes before the matrix multiplies that follow.
__device__ __forceinline__ void begin_multiply() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_multiply() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_multiply() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Tells the compiler that the values may change here, so that it moves none of their uses before a wait.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
}

// A matrix in shared memory, in panels 128 bytes wide with the 128-byte swizzle; eight rows are 1024 bytes.
// `panel_bytes` counts where the long axis is the wide one (values), and is ignored otherwise.
__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t panel_bytes) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(panel_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
           uint64_t(1) << 62;
}

// A 4 x 4 transpose among the four lanes of a row: lane l has pair l of four blocks of 8 columns, and gets pairs 0 .. 3
// of block l, which are 16 bytes side by side. Its own inverse.
__device__ __forceinline__ void exchange_pairs(uint32_t (&pair)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            const uint32_t got = __shfl_xor_sync(~0u, upper ? pair[i] : pair[i + step], step);
            if (upper) pair[i] = got;
            else pair[i + step] = got;
        }
    }
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t from) {
    uint4 raw;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "r"(from)
                 : "memory");
    return raw;
}

// Stores four 8 x 8 matrices of bf16, held as a warp holds sums: lane l gives the address of row l % 8 of matrix l / 8,
// 16 bytes each.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// The same, each transposed.
__device__ __forceinline__ void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// An 8 x 8 matrix of bf16, held as a warp holds sums, transposed.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t pair) {
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

// Orders this thread's accesses to shared memory before later ones of TMA, which it issues itself or lets follow by a
// barrier.
__device__ __forceinline__ void show_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define REGISTERS_8(r, i)                                                                                       \
    "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3]), "+f"(r[i + 4]), "+f"(r[i + 5]), "+f"(r[i + 6]), \
        "+f"(r[i + 7])

}  // namespace hopper
