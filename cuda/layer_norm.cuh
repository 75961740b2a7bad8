// Shared code of adaln.cu, layer_norm.cu and gated_add_adaln.cu: the norm of a row by its block.
#pragma once

#include "common.cuh"

static constexpr int MAX_CHUNKS = 4;

// Returns 1 / sqrt(variance + eps) of a row of `chunks` chunks, spread as by load_row.
template <int N>
__device__ __forceinline__ float rstd_of_row(const float (&values)[N][8], int chunks, float mean, int dim, float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (threadIdx.x + i * blockDim.x < chunks) {
#pragma unroll
            for (int j = 0; j < 8; j++) squares += (values[i][j] - mean) * (values[i][j] - mean);
        }
    }
    return rsqrtf(block_sum(squares) / dim + eps);
}

// MODULATED: adaln, otherwise layer_norm, which ignores shift and scale.
template <bool MODULATED>
__device__ __forceinline__ void layer_norm_vector(const element* x, long long ld_x, const element* shift,
                                                  const element* scale, element* out, long long ld_out, int dim,
                                                  float eps) {
    const element* row = x + blockIdx.x * ld_x;
    const int chunks = dim / 8;
    float values[MAX_CHUNKS][8];
    float sum = 0.0f;
    load_row(row, chunks, values);
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) sum += values[i][j];
    }
    const float mean = block_sum(sum) / dim;
    const float rstd = rstd_of_row(values, chunks, mean, dim, eps);
    element* out_row = out + blockIdx.x * ld_out;
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        if (chunk >= chunks) break;
        float result[8];
#pragma unroll
        for (int j = 0; j < 8; j++) result[j] = (values[i][j] - mean) * rstd;
        if constexpr (MODULATED) {
            float s[8], b[8];
            load(scale + chunk * 8, s);
            load(shift + chunk * 8, b);
#pragma unroll
            for (int j = 0; j < 8; j++) result[j] = (1.0f + s[j]) * result[j] + b[j];
        }
        store(out_row + chunk * 8, result);
    }
}

template <bool MODULATED>
__device__ __forceinline__ void layer_norm_any(const element* x, long long ld_x, const element* shift,
                                               const element* scale, element* out, long long ld_out, int dim,
                                               float eps) {
    const element* row = x + blockIdx.x * ld_x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) sum += to_float(row[i]);
    const float mean = block_sum(sum) / dim;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        const float centred = to_float(row[i]) - mean;
        squares += centred * centred;
    }
    const float rstd = rsqrtf(block_sum(squares) / dim + eps);
    element* out_row = out + blockIdx.x * ld_out;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float result = (to_float(row[i]) - mean) * rstd;
        if constexpr (MODULATED) result = (1.0f + to_float(scale[i])) * result + to_float(shift[i]);
        out_row[i] = to_element(result);
    }
}
