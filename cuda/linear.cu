// linear: out = x weight^T + bias + residual, for shapes that cuBLASLt declines
//
//   x        [m, k]  element, row stride ld_x; or e4m3, scaled by x_scales
//   x_scales [m]     f32, for e4m3
//   weight   [n, k]  as x, row stride ld_weight, scaled by weight_scales; or [k, n] if `weight_is_kn`, without scales
//   weight_scales [n]  f32, for e4m3
//   bias     [n]     element or null
//   residual [m, n]  element, row stride ld_residual, or null; may be out
//   out      [m, n]  element or, if `out_f32`, f32; row stride ld_out
//
// Mapping   a block of 256 threads computes a tile of 64 x 64, 4 x 4 values per thread, through tiles of 16 columns in
//           shared memory.
// Needs     nothing: any size, any alignment.
// Rounding  once, at the store; sums and scales are float32.
// Flops     2 m n k, without tensor cores: correct, not fast. cuBLASLt takes every shape of the real models.
#include "common.cuh"
#ifndef ELEMENT_F16
#include "e4m3.cuh"
#endif

static constexpr int TILE = 64, DEPTH = 16;

static __device__ __forceinline__ float value_of(element x) { return from_plain(x); }
#ifndef ELEMENT_F16
static __device__ __forceinline__ float value_of(e4m3 x) { return __half2float(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)); }
#endif

template <typename T>
static __device__ void linear_tile(const T* x, long long ld_x, const float* x_scales, const T* weight,
                                   long long ld_weight, const float* weight_scales, const element* bias,
                                   const element* residual, long long ld_residual, void* out, long long ld_out, int m,
                                   int n, int k, int weight_is_kn, int out_f32) {
    __shared__ float tile_x[DEPTH][TILE + 1], tile_w[DEPTH][TILE + 1];
    const long long row0 = (long long)blockIdx.x * TILE, col0 = (long long)blockIdx.y * TILE;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            const int r = i / DEPTH, d = i % DEPTH;
            const bool in_k = k0 + d < k;
            tile_x[d][r] = in_k && row0 + r < m ? value_of(x[(row0 + r) * ld_x + k0 + d]) : 0.0f;
            const long long at = weight_is_kn ? (k0 + d) * ld_weight + col0 + r : (col0 + r) * ld_weight + k0 + d;
            tile_w[d][r] = in_k && col0 + r < n ? value_of(weight[at]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] += tile_x[d][ty + 16 * i] * tile_w[d][tx + 16 * j];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;
            if (row >= m || col >= n) continue;
            float value = sums[i][j];
            if (x_scales != nullptr) value *= x_scales[row] * weight_scales[col];
            if (bias != nullptr) value += from_plain(bias[col]);
            if (residual != nullptr) value += from_plain(residual[row * ld_residual + col]);
            if (out_f32) {
                static_cast<float*>(out)[row * ld_out + col] = value;
            } else {
                static_cast<element*>(out)[row * ld_out + col] = to_plain(value);
            }
        }
    }
}

#define LINEAR_KERNEL(NAME, T)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
        NAME(const T* x, long long ld_x, const float* x_scales, const T* weight, long long ld_weight,                 \
             const float* weight_scales, const element* bias, const element* residual, long long ld_residual,         \
             void* out, long long ld_out, int m, int n, int k, int weight_is_kn, int out_f32) {                       \
        linear_tile<T>(x, ld_x, x_scales, weight, ld_weight, weight_scales, bias, residual, ld_residual, out, ld_out, \
                       m, n, k, weight_is_kn, out_f32);                                                               \
    }

LINEAR_KERNEL(linear_any, element)
#ifndef ELEMENT_F16
LINEAR_KERNEL(linear_e4m3_any, e4m3)
#endif
