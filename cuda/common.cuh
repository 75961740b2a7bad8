// Shared by all kernels: representation of values in memory, loads and stores of 16 bytes or one value, reductions,
// ceil_div.
//
// Every kernel except those for Hopper is compiled for two types of `element`: bf16, and with ELEMENT_F16 fp16, for
// GPUs without bf16 tensor cores. The max of fp16 is 65504, and residual streams may exceed it. So activations are
// stored in units of UNIT, a power of two: only values below 2^-14 units are rounded, and values beyond 65504 units are
// clamped and set `saturated`, which the host reads. Plain values have no unit: weights, and operands that are
// multiplied with activations and added up. Sums are linear, so matrix multiplications, convolutions and the sums of
// attention take plain values and stored activations, and return stored activations.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;
#ifdef ELEMENT_F16
typedef __half element;
#else
typedef bf16 element;
#endif

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

#ifdef ELEMENT_F16

// `F16_UNIT` in backend/cuda/element.rs.
static constexpr float UNIT = 32.0f, LARGEST = 65504.0f;

// Set if an activation of this file's kernels was clamped.
extern "C" {
__device__ unsigned saturated;
}

// Clamps an activation; a NaN stays NaN.
__device__ __forceinline__ float within_range(float value) {
    if (fabsf(value) > LARGEST) {
        saturated = 1;
        return copysignf(LARGEST, value);
    }
    return value;
}

// A stored product that was too large is infinite.
__device__ __forceinline__ float of_units(float value) { return within_range(value) * UNIT; }
__device__ __forceinline__ float in_units(float value) { return within_range(value * (1.0f / UNIT)); }

// Converts one plain value, rounded to nearest even, and back.
__device__ __forceinline__ element to_plain(float value) { return __float2half_rn(value); }
__device__ __forceinline__ float from_plain(element value) { return __half2float(value); }

// Packs two plain values, `low` in the low half, and back.
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void unpack_pair(uint32_t pair, float& low, float& high) {
    const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    low = values.x, high = values.y;
}

#else

static constexpr float UNIT = 1.0f;

__device__ __forceinline__ float of_units(float value) { return value; }
__device__ __forceinline__ float in_units(float value) { return value; }

// Converts one plain value, rounded to nearest even, and back.
__device__ __forceinline__ element to_plain(float value) { return __float2bfloat16_rn(value); }
__device__ __forceinline__ float from_plain(element value) { return __bfloat162float(value); }

// Packs two plain values, `low` in the low half, and back.
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ void unpack_pair(uint32_t pair, float& low, float& high) {
    // A bf16 is the upper half of an f32.
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
}

#endif

// Converts one activation to f32, and back, rounded to nearest even.
__device__ __forceinline__ float to_float(element value) { return of_units(from_plain(value)); }
__device__ __forceinline__ element to_element(float value) { return to_plain(in_units(value)); }

// Converts eight activations to f32, and back, rounded to nearest even.
__device__ __forceinline__ void unpack(uint4 raw, float (&values)[8]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low, high;
        unpack_pair(words[i], low, high);
        values[2 * i] = of_units(low);
        values[2 * i + 1] = of_units(high);
    }
}

__device__ __forceinline__ uint4 pack_plain(const float (&values)[8]) {
    return make_uint4(pack_pair(values[0], values[1]), pack_pair(values[2], values[3]), pack_pair(values[4], values[5]),
                      pack_pair(values[6], values[7]));
}

__device__ __forceinline__ uint4 pack(const float (&values)[8]) {
    if constexpr (UNIT == 1.0f) {
        return pack_plain(values);
    } else {
        float scaled[8];
#pragma unroll
        for (int i = 0; i < 8; i++) scaled[i] = in_units(values[i]);
        return pack_plain(scaled);
    }
}

// Loads N activations as f32: N = 8 is one 16-byte load from an address that must be a multiple of 16; N = 1 takes any
// address.
template <int N>
__device__ __forceinline__ void load(const element* from, float (&values)[N]) {
    static_assert(N == 1 || N == 8, "one value or 16 bytes");
    if constexpr (N == 8) {
        unpack(*reinterpret_cast<const uint4*>(from), values);
    } else {
        values[0] = to_float(*from);
    }
}

// Loads a row of `chunks` chunks of 8 values, spread over the block: chunk threadIdx.x + i * blockDim.x goes to
// values[i], zeros past the end of the row.
template <int N>
__device__ __forceinline__ void load_row(const element* row, int chunks, float (&values)[N][8]) {
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

// Rounds activations to nearest even and stores them; addresses as for load.
template <int N>
__device__ __forceinline__ void store(element* to, const float (&values)[N]) {
    static_assert(N == 1 || N == 8, "one value or 16 bytes");
    if constexpr (N == 8) {
        *reinterpret_cast<uint4*>(to) = pack(values);
    } else {
        *to = to_element(values[0]);
    }
}

// Unpacks eight plain values.
__device__ __forceinline__ void unpack_plain(uint4 raw, float (&values)[8]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) unpack_pair(words[i], values[2 * i], values[2 * i + 1]);
}

// As store, for eight plain values.
__device__ __forceinline__ void store_plain(element* to, const float (&values)[8]) {
    *reinterpret_cast<uint4*>(to) = pack_plain(values);
}

// Returns an activation rounded as by a store.
__device__ __forceinline__ float round_to_element(float value) { return to_float(to_element(value)); }

// The fast division is accurate to two units in the last place of an f32; an exact one costs a dozen instructions per
// value.
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
// `nothing` is the neutral value.
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

// Returns the sum over such a block; the order of additions is fixed.
__device__ __forceinline__ float block_sum(float value) {
    return block_reduce(value, 0.0f, [](float v) { return warp_sum(v); });
}

// Returns the maximum over such a block.
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
