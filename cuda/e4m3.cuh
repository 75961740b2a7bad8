// Rows quantized to e4m3: 8-bit floats with one f32 scale per row, value = e4m3 * scale.
//
// scale = amax / 448, with the row's largest magnitude as amax, so that the largest value becomes the largest e4m3;
// values round to nearest even and saturate. A NaN stays NaN, so that damaged weights still end in an error. For
// weights, larger scales are tried too, see quantize_weight.cu. For activations they are not: these are quantized in
// every step, and a try takes 7 instructions per value.
#pragma once

#include <cuda_fp8.h>

#include "common.cuh"

typedef __nv_fp8_storage_t e4m3;

static constexpr float E4M3_MAX = 448.0f;
// The min amax, so that a row of zeros does not divide by zero; no value of a model is that small.
static constexpr float LEAST_AMAX = 1e-30f;

// The same for keys of a tile: values divided by a near-zero scale would not fit the scale of the next tile.
static constexpr float LEAST_TILE_AMAX = 1e-12f;

struct RowScale {
    float scale, inverse;
};

__device__ __forceinline__ RowScale row_scale(float amax) {
    amax = fmaxf(amax, LEAST_AMAX);
    return {amax / E4M3_MAX, E4M3_MAX / amax};
}

// Packs four values.
__device__ __forceinline__ uint32_t pack_four_e4m3(const float* v, float inverse) {
    const unsigned low =
        __nv_cvt_float2_to_fp8x2(make_float2(v[0] * inverse, v[1] * inverse), __NV_SATFINITE, __NV_E4M3);
    const unsigned high =
        __nv_cvt_float2_to_fp8x2(make_float2(v[2] * inverse, v[3] * inverse), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

__device__ __forceinline__ uint2 pack_e4m3(const float (&values)[8], float inverse) {
    return make_uint2(pack_four_e4m3(values, inverse), pack_four_e4m3(values + 4, inverse));
}

// N = 8 is one 8-byte store to an address that must be a multiple of 8; N = 1 takes any address.
template <int N>
__device__ __forceinline__ void store_e4m3(e4m3* to, const float (&values)[N], float inverse) {
    static_assert(N == 1 || N == 8, "one value or 8 bytes");
    if constexpr (N == 8) {
        *reinterpret_cast<uint2*>(to) = pack_e4m3(values, inverse);
    } else {
        *to = __nv_cvt_float_to_fp8(values[0] * inverse, __NV_SATFINITE, __NV_E4M3);
    }
}

// Loads chunk `chunk` of 8 values of a row, 16-byte aligned; zeros past the end of the row.
__device__ __forceinline__ uint4 load_chunk(const bf16* row, int chunk, int chunks) {
    return chunk < chunks ? reinterpret_cast<const uint4*>(row)[chunk] : make_uint4(0, 0, 0, 0);
}

// Returns the largest magnitude of this thread's part of a row.
template <int N>
__device__ __forceinline__ float chunks_max(const uint4 (&chunks)[N]) {
    float amax = 0.0f, values[8];
#pragma unroll
    for (int i = 0; i < N; i++) {
        unpack(chunks[i], values);
#pragma unroll
        for (int j = 0; j < 8; j++) amax = fmaxf(amax, fabsf(values[j]));
    }
    return amax;
}

// Stores a row of bf16 that the block holds, chunk threadIdx.x + i * blockDim.x in chunks[i] and zeros past its end:
// its scale, and `out_chunks` chunks of 8 bytes.
template <int N>
__device__ __forceinline__ void store_row(const uint4 (&chunks)[N], RowScale row, int out_chunks, e4m3* out,
                                          float* scale) {
    float values[8];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        unpack(chunks[i], values);
        if (chunk < out_chunks) store_e4m3(out + chunk * 8, values, row.inverse);
    }
    if (threadIdx.x == 0) *scale = row.scale;
}

template <int N>
__device__ __forceinline__ void quantize_row(const uint4 (&chunks)[N], int out_chunks, e4m3* out, float* scale) {
    store_row(chunks, row_scale(block_max(chunks_max(chunks))), out_chunks, out, scale);
}

// As chunks_max and store_row, for a row of any size and alignment: both compute value(i), and zeros fill the columns
// from `cols` to `out_cols`.
template <class Value>
__device__ __forceinline__ float values_max(int cols, Value value) {
    float amax = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) amax = fmaxf(amax, fabsf(value(i)));
    return amax;
}

template <class Value>
__device__ __forceinline__ void store_row_any(int cols, RowScale row, int out_cols, e4m3* out, float* scale,
                                              Value value) {
    for (int i = threadIdx.x; i < out_cols; i += blockDim.x) {
        const float one[1] = {i < cols ? value(i) : 0.0f};
        store_e4m3(out + i, one, row.inverse);
    }
    if (threadIdx.x == 0) *scale = row.scale;
}

template <class Value>
__device__ __forceinline__ void quantize_row_any(int cols, int out_cols, e4m3* out, float* scale, Value value) {
    store_row_any(cols, row_scale(block_max(values_max(cols, value))), out_cols, out, scale, value);
}
