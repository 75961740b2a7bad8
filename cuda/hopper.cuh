// Hopper instructions without C++ names: mbarrier, bulk tensor copy (TMA), clusters, and those around warpgroup matrix
// multiplies, which are in multiply_sm90a.cuh. BLOCKS is the number of blocks of a cluster, one or two.

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

// Makes initialized barriers visible to TMA.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier at the same offset in another block of the cluster.
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
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

// Returns the rank of this block in its cluster.
template <int BLOCKS>
__device__ __forceinline__ uint32_t rank_in_cluster() {
    if constexpr (BLOCKS == 1) return 0;
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster.
template <int BLOCKS>
__device__ __forceinline__ void sync_cluster() {
    if constexpr (BLOCKS == 1) __syncthreads();
    else asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Ends a block: until all blocks are here, another one may still write to this one's shared memory.
template <int BLOCKS>
__device__ __forceinline__ void leave_cluster() {
    if constexpr (BLOCKS == 1) return;
    __syncwarp();
    sync_cluster<BLOCKS>();
}

// Copies the map's box that begins at (row, col) to shared memory, at the same offset in all blocks of the cluster;
// cells outside are zeros. Completes on `barrier` of each block.
template <int BLOCKS = 1>
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int row, int col, uint32_t barrier) {
    if constexpr (BLOCKS == 1)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
            ::"r"(to), "l"(&map), "r"(col), "r"(row), "r"(barrier)
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(&map), "r"(col), "r"(row), "r"(barrier),
            "h"((uint16_t)((1 << BLOCKS) - 1))
            : "memory");
}

// Returns an L2 policy for the lines of a copy: early eviction, or the default.
__device__ __forceinline__ uint64_t l2_policy(bool evict_first) {
    uint64_t policy;
    if (evict_first) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// As above in one block, with an L2 policy.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int row, int col, uint32_t barrier,
                                         uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(barrier), "l"(policy)
        : "memory");
}

// As above, in three axes: the box's first cell is (plane, row, col).
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int plane, int row, int col,
                                         uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(plane), "r"(barrier)
        : "memory");
}

// As above, in five axes: the box's first cell is (group, plane, set, row, col).
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int group, int plane, int set, int row,
                                         int col, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
        "[%7];" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(set), "r"(plane), "r"(group), "r"(barrier)
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

// Prevents the compiler from moving uses of the values before a wait, as if they may change here.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
}

// Returns the descriptor of a matrix in shared memory, in panels 128 bytes wide with the 128-byte swizzle; eight rows
// are `group_bytes` apart from the next eight, 1024 if nothing is between them. `panel_bytes` is used if the long axis
// is the wide one (values), and is ignored otherwise. The swizzle is that of the address: a matrix may begin at any
// row.
__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t panel_bytes, uint32_t group_bytes = 1024) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(panel_bytes >> 4) << 16 | uint64_t(group_bytes >> 4) << 32 |
           uint64_t(1) << 62;
}

// A 4 x 4 transpose among the four lanes of a row: lane l has pair l of four blocks of 8 columns, and gets pairs 0 .. 3
// of block l, 16 contiguous bytes. Its own inverse.
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

// Stores four 8 x 8 matrices of bf16, in a warp's layout of sums: lane l gives the address of row l % 8 of matrix l /
// 8, 16 bytes each.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// As store_matrices, each transposed.
__device__ __forceinline__ void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// Transposes an 8 x 8 matrix of bf16 in a warp's layout of sums.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t pair) {
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

// Orders this thread's accesses to shared memory before later TMA accesses that it issues itself or that a barrier
// orders after them.
__device__ __forceinline__ void show_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace hopper
