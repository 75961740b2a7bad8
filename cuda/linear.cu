// linear: out = x weight^T + bias + residual, for the shapes that cuBLASLt declines
//
//   x        [m, k]  bf16, row stride ld_x
//   weight   [n, k]  bf16, row stride ld_weight; or [k, n] where `weight_is_kn`
//   bias     [n]     bf16 or null
//   residual [m, n]  bf16, row stride ld_residual, or null; may be out
//   out      [m, n]  bf16 or, where `out_f32`, f32; row stride ld_out
//
// Mapping   a block of 256 threads makes a tile of 64 x 64, 4 x 4 values a thread, through tiles of 16 columns in
//           shared memory.
// Needs     nothing: any size, any alignment.
// Rounding  once, at the store.
// Flops     2 m n k, without tensor cores: correct, not fast. cuBLASLt takes every shape of the real models.
#include "common.cuh"

static constexpr int TILE = 64, DEPTH = 16;

extern "C" __global__ void __launch_bounds__(256)
    linear_any(const bf16* x, long long ld_x, const bf16* weight, long long ld_weight, const bf16* bias,
               const bf16* residual, long long ld_residual, void* out, long long ld_out, int m, int n, int k,
               int weight_is_kn, int out_f32) {
    __shared__ float tile_x[DEPTH][TILE + 1], tile_w[DEPTH][TILE + 1];
    const long long row0 = (long long)blockIdx.x * TILE, col0 = (long long)blockIdx.y * TILE;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            const int r = i / DEPTH, d = i % DEPTH;
            const bool in_k = k0 + d < k;
            tile_x[d][r] = in_k && row0 + r < m ? __bfloat162float(x[(row0 + r) * ld_x + k0 + d]) : 0.0f;
            const long long at = weight_is_kn ? (k0 + d) * ld_weight + col0 + r : (col0 + r) * ld_weight + k0 + d;
            tile_w[d][r] = in_k && col0 + r < n ? __bfloat162float(weight[at]) : 0.0f;
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
            if (bias != nullptr) value += __bfloat162float(bias[col]);
            if (residual != nullptr) value += __bfloat162float(residual[row * ld_residual + col]);
            if (out_f32) {
                static_cast<float*>(out)[row * ld_out + col] = value;
            } else {
                static_cast<bf16*>(out)[row * ld_out + col] = __float2bfloat16_rn(value);
            }
        }
    }
}
