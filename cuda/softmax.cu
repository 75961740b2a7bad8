// softmax: p = softmax(scale * s) over the first `visible` columns, zeros behind them
//
//   s      [rows, cols]  f32, row stride ld_s: the scores of some queries of one head
//   p      [rows, cols]  bf16, row stride ld_p
//   visible = cols, or min(first_token + row + 1, keys) where causal
//
// Mapping   one block per row; each thread keeps a running maximum and sum, the block joins them, and a second pass writes.
// Rounding  once, at the store.
// Bytes     rows * cols * (4 + 4 + 2), the second read from L2.   16384 x 16384: 2.7 GB
// Bound     HBM. 1.6 GB at 4.8 TB/s (H200) = 340 us
// Measured  with its two GEMMs, 16384 pixels x 512: 2.27 ms, 242 TFLOP/s; H200, driver 580.159, CUDA 13.0; `cargo bench`
// Tried
#include "common.cuh"

// exp of the difference to the maximum, in powers of two; a thread that saw nothing has the maximum -inf and the sum 0.
__device__ __forceinline__ float scaled(float sum, float maximum, float joint) { return maximum == joint ? sum : sum * exp2f(maximum - joint); }

extern "C" __global__ void __launch_bounds__(256) softmax_f32_bf16(const float* s, long long ld_s, bf16* p, long long ld_p, int cols, float scale, int causal,
                                                                   int first_token, int keys) {
    __shared__ float maxima[8], sums[8];
    const float* scores = s + blockIdx.x * ld_s;
    bf16* to = p + blockIdx.x * ld_p;
    const int visible = causal ? min(first_token + (int)blockIdx.x + 1, keys) : cols;
    const float log2_scale = scale * 1.4426950408889634f;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    float maximum = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < visible; i += blockDim.x) {
        const float value = scores[i] * log2_scale;
        if (value > maximum) {
            sum = scaled(sum, maximum, value);
            maximum = value;
        }
        sum += exp2f(value - maximum);
    }
    float joint = warp_max(maximum);
    sum = warp_sum(scaled(sum, maximum, joint));
    if (lane == 0) maxima[warp] = joint, sums[warp] = sum;
    __syncthreads();
    const int warps = blockDim.x >> 5;
    maximum = lane < warps ? maxima[lane] : -INFINITY;
    joint = warp_max(maximum);
    sum = warp_sum(lane < warps ? scaled(sums[lane], maximum, joint) : 0.0f);

    const float inverse = 1.0f / sum;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        const float value = i < visible ? exp2f(scores[i] * log2_scale - joint) * inverse : 0.0f;
        to[i] = __float2bfloat16_rn(value);
    }
}
