// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight over each run of n columns
//
//   x      [rows, runs * n]  element, row stride ld_x
//   weight [n]               element
//   out    [rows, runs * n]  element, row stride ld_out
//
// Mapping   one block per run of a row; a thread holds up to 4 chunks of 8 values (16-byte loads), so x is read once.
// Needs     n % 8 == 0, n <= 4 * 8 * 1024, rows and weight 16-byte aligned. Otherwise `_any`: one value at a time,
//           x read twice.
// Rounding  once, at the store. (Qwen3's reference rounds before the weight as well.)
// Bytes     rows * cols * 4.   512 x 2560: 5.2 MB
// Bound     launch latency at 512 rows; else HBM
// Measured  6.2 us at 512 x 2560, 0.84 TB/s: launch and latency; H200, driver 580.159, CUDA 13.0;
//           tests/bench/runs/2026-11-21-h200
#include "common.cuh"

static constexpr int MAX_CHUNKS = 4;

extern "C" __global__ void __launch_bounds__(1024)
    rms_norm(const element* x, long long ld_x, const element* weight, element* out, long long ld_out, int runs, int n,
             float eps) {
    const long long row = blockIdx.x / runs, run = blockIdx.x % runs;
    const element* from = x + row * ld_x + run * n;
    element* to = out + row * ld_out + run * n;
    const int chunks = n / 8;
    float values[MAX_CHUNKS][8];
    float squares = 0.0f;
    load_row(from, chunks, values);
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) squares += values[i][j] * values[i][j];
    }
    const float rstd = rsqrtf(block_sum(squares) / n + eps);
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        if (chunk >= chunks) break;
        float w[8];
        load(weight + chunk * 8, w);
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] *= values[i][j] * rstd;
        store(to + chunk * 8, w);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    rms_norm_any(const element* x, long long ld_x, const element* weight, element* out, long long ld_out, int runs,
                 int n, float eps) {
    const long long row = blockIdx.x / runs, run = blockIdx.x % runs;
    const element* from = x + row * ld_x + run * n;
    element* to = out + row * ld_out + run * n;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float value = to_float(from[i]);
        squares += value * value;
    }
    const float rstd = rsqrtf(block_sum(squares) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        to[i] = to_element(to_float(from[i]) * rstd * to_float(weight[i]));
    }
}
