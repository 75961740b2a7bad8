// What kernels with clusters of blocks share: how one block acts on the shared memory of another.

#pragma once
#include "hopper.cuh"

namespace hopper {

__device__ __forceinline__ uint32_t rank_in_cluster() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives at the barrier that lies at the same place in another block of the cluster.
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// As copy_box, to the same place in both blocks of a cluster of two; completes on the barrier of each.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const TensorMap& map, int row, int col,
                                                 uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(barrier), "h"((uint16_t)3)
        : "memory");
}

// What L2 does with the lines of a copy: as ever, or it gives them up before others.
__device__ __forceinline__ uint64_t evict_normal() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// As the other copy_box_to_both, with such a policy.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const TensorMap& map, int row, int col, uint32_t barrier,
                                                 uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
        "l"(&map), "r"(col), "r"(row), "r"(barrier), "h"((uint16_t)3), "l"(policy)
        : "memory");
}

}  // namespace hopper
