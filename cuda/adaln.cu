// adaln: out = (1 + scale) * layer_norm(x) + shift;  layer_norm: out = (x - mean) / sqrt(variance + eps)
//
//   x      [tokens, dim]  bf16, row stride ld_x
//   shift  [dim]          bf16
//   scale  [dim]          bf16
//   out    [tokens, dim]  bf16, row stride ld_out
//
// Mapping   one block per token; a thread holds up to 4 chunks of 8 values (16-byte loads), chunk i at thread + i * threads,
//           so x is read once and both passes (mean, variance) run from registers in f32. 3072: 128 threads, 3 chunks.
// Needs     dim % 8 == 0, dim <= 4 * 8 * 1024, rows and vectors 16-byte aligned. Otherwise `_any`: one value at a time,
//           x read three times, any size and alignment.
// Rounding  once, at the store.
// Bytes     tokens * dim * 2 read + tokens * dim * 2 written + dim * 4.   4608 x 3072: 56.6 MB
// Bound     HBM. 56.6 MB at 4.8 TB/s (H200) = 11.8 us
// Measured  20.5 us at 4608 x 3072, 2.76 TB/s, 58% of bound; composed 31.2 us; H200, driver 580.159, CUDA 13.0; tests/bench/runs/2026-11-21-h200
// Tried
#include "common.cuh"

static constexpr int MAX_CHUNKS = 4;

// MODULATED: adaln, otherwise layer_norm, which ignores shift and scale.
template <bool MODULATED>
__device__ __forceinline__ void layer_norm_vector(const bf16* x, long long ld_x, const bf16* shift, const bf16* scale, bf16* out, long long ld_out,
                                                  int dim, float eps) {
    const bf16* row = x + blockIdx.x * ld_x;
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
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        if (threadIdx.x + i * blockDim.x < chunks) {
#pragma unroll
            for (int j = 0; j < 8; j++) squares += (values[i][j] - mean) * (values[i][j] - mean);
        }
    }
    const float rstd = rsqrtf(block_sum(squares) / dim + eps);
    bf16* out_row = out + blockIdx.x * ld_out;
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
__device__ __forceinline__ void layer_norm_any(const bf16* x, long long ld_x, const bf16* shift, const bf16* scale, bf16* out, long long ld_out,
                                               int dim, float eps) {
    const bf16* row = x + blockIdx.x * ld_x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) sum += __bfloat162float(row[i]);
    const float mean = block_sum(sum) / dim;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        const float centred = __bfloat162float(row[i]) - mean;
        squares += centred * centred;
    }
    const float rstd = rsqrtf(block_sum(squares) / dim + eps);
    bf16* out_row = out + blockIdx.x * ld_out;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float result = (__bfloat162float(row[i]) - mean) * rstd;
        if constexpr (MODULATED) result = (1.0f + __bfloat162float(scale[i])) * result + __bfloat162float(shift[i]);
        out_row[i] = __float2bfloat16_rn(result);
    }
}

extern "C" __global__ void __launch_bounds__(1024) adaln_bf16(const bf16* x, long long ld_x, const bf16* shift, const bf16* scale, bf16* out,
                                                              long long ld_out, int dim, float eps) {
    layer_norm_vector<true>(x, ld_x, shift, scale, out, ld_out, dim, eps);
}

extern "C" __global__ void __launch_bounds__(256) adaln_bf16_any(const bf16* x, long long ld_x, const bf16* shift, const bf16* scale, bf16* out,
                                                                 long long ld_out, int dim, float eps) {
    layer_norm_any<true>(x, ld_x, shift, scale, out, ld_out, dim, eps);
}

extern "C" __global__ void __launch_bounds__(1024) layer_norm_bf16(const bf16* x, long long ld_x, bf16* out, long long ld_out, int dim, float eps) {
    layer_norm_vector<false>(x, ld_x, nullptr, nullptr, out, ld_out, dim, eps);
}

extern "C" __global__ void __launch_bounds__(256) layer_norm_bf16_any(const bf16* x, long long ld_x, bf16* out, long long ld_out, int dim,
                                                                      float eps) {
    layer_norm_any<false>(x, ld_x, nullptr, nullptr, out, ld_out, dim, eps);
}
