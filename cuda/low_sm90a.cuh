// Signals between blocks of a launch that stored data is ready to be fetched: for `x down^T`, which kernels compute
// before they add it.

#pragma once
#include "hopper.cuh"

namespace low {

// Orders accesses to global memory of this thread before later TMA accesses, and vice versa.
__device__ __forceinline__ void order_global_and_tma() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ void signal(unsigned* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ __forceinline__ void wait_for(const unsigned* counter, unsigned value) {
    unsigned now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < value);
}

// At the end of a block: the last block resets the counters for the next launch.
__device__ __forceinline__ void leave_zeros(unsigned* counters, int count, unsigned* blocks_done) {
    if (threadIdx.x > 0) return;
    __threadfence();
    if (atomicAdd(blocks_done, 1) < gridDim.x - 1) return;
    for (int i = 0; i < count; i++) counters[i] = 0;
    *blocks_done = 0;
}

}  // namespace low
