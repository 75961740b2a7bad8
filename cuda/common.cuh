// Shared by all kernels: bf16 loads and stores of 16 bytes or one value, reductions, ceil_div.
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Two values as a bf16 pair, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Eight bf16 values as f32, and back, rounded to nearest even.
__device__ __forceinline__ void unpack(uint4 raw, float (&values)[8]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // A bf16 is the upper half of an f32.
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint4 pack(const float (&values)[8]) {
    return make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]), pack_bf16(values[4], values[5]),
                      pack_bf16(values[6], values[7]));
}

// N bf16 values as f32: N = 8 is one 16-byte load, whose address must be a multiple of 16; N = 1 takes any address.
template <int N>
__device__ __forceinline__ void load(const bf16* from, float (&values)[N]) {
    static_assert(N == 1 || N == 8, "one value or 16 bytes");
    if constexpr (N == 8) {
        unpack(*reinterpret_cast<const uint4*>(from), values);
    } else {
        values[0] = __bfloat162float(*from);
    }
}

// A row of `chunks` chunks of 8 values, spread over the block: chunk threadIdx.x + i * blockDim.x goes to values[i],
// zeros where the row has ended.
template <int N>
__device__ __forceinline__ void load_row(const bf16* row, int chunks, float (&values)[N][8]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        if (chunk < chunks) {
            load(row + chunk * 8, values[i]);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) values[i][j] = 0.0f;
        }
    }
}

// Rounds to nearest even and stores; addresses as for load.
template <int N>
__device__ __forceinline__ void store(bf16* to, const float (&values)[N]) {
    static_assert(N == 1 || N == 8, "one value or 16 bytes");
    if constexpr (N == 8) {
        *reinterpret_cast<uint4*>(to) = pack(values);
    } else {
        *to = __float2bfloat16_rn(values[0]);
    }
}

__device__ __forceinline__ float round_to_bf16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

// The fast division is right to two units in the last place of an f32; an exact one costs a dozen instructions a value.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

// Extends `reduce`, which reduces over a warp, to a one-dimensional block of whole warps; every thread gets the result.
// `nothing` is the value that does not change a result.
template <class Reduce>
__device__ __forceinline__ float block_reduce(float value, float nothing, Reduce reduce) {
    __shared__ float partial[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    value = reduce(value);
    if (blockDim.x == 32) return value;
    __syncthreads();  // the previous call's reads of `partial` are over
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    return reduce(lane < (blockDim.x >> 5) ? partial[lane] : nothing);
}

// The sum over such a block; the order of additions is always the same.
__device__ __forceinline__ float block_sum(float value) {
    return block_reduce(value, 0.0f, [](float v) { return warp_sum(v); });
}

// The maximum over such a block.
__device__ __forceinline__ float block_max(float value) {
    return block_reduce(value, -INFINITY, [](float v) { return warp_max(v); });
}

// Calls body(row, column) for every run of N columns of [rows, cols]. Launched with blocks of (runs of a row, rows);
// see `row_tiles` in backend/cuda/launch.rs.
template <int N, class Body>
__device__ __forceinline__ void for_each_run(int rows, int cols, Body body) {
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    for (int column = threadIdx.x * N; column < cols; column += blockDim.x * N) body(row, column);
}
