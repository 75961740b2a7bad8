// attention_softmax: p = softmax(scale * s) over the first `visible` columns, zeros after them
//
//   s      [rows, cols]  f32, row stride ld_s: the scores of some queries of one head
//   p      [rows, cols]  element, plain values, row stride ld_p; columns up to the next multiple of 8 are written too
//   visible = cols, or min(first_token + row + 1, keys) if causal
//
// Mapping   one block per row. A thread holds up to HELD runs of 8 columns in registers, run i at thread + i * threads,
//           so that a row of up to 32 columns per thread is read once. Columns beyond that get an online maximum and
//           sum, and are read again to be written. Then a block has 1024 threads, one fits a multiprocessor, and 132
//           rows of 65536 columns (34 MB) stay in L2.
// Needs     ld_s and ld_p multiples of 8, s and p 32-byte aligned
// Rounding  once, at the store.
// Bytes     rows * cols * (4 + 2).   16384 x 16384: 1.6 GB
// Bound     HBM. 1.6 GB at 4.8 TB/s (H200) = 340 us
// Measured  with its two GEMMs, 16384 pixels x 512: 1.41 ms, 390 TFLOP/s; H200, driver 580.159, CUDA 13.0; `flux bench
//           ops/`
#include "common.cuh"

static constexpr int HELD = 4;

// Loads scaled scores of 8 columns; -inf for masked ones, whatever is stored there.
__device__ __forceinline__ void load_scores(const float* scores, int column, int visible, float scale,
                                            float (&values)[8]) {
    const float4 low = *reinterpret_cast<const float4*>(scores + column),
                 high = *reinterpret_cast<const float4*>(scores + column + 4);
    const float raw[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] = column + i < visible ? raw[i] * scale : -INFINITY;
}

__device__ __forceinline__ float greatest(const float (&values)[8], float other) {
#pragma unroll
    for (int i = 0; i < 8; i++) other = fmaxf(other, values[i]);
    return other;
}

extern "C" __global__ void __launch_bounds__(1024)
    attention_softmax(const float* s, long long ld_s, element* p, long long ld_p, int cols, float scale, int causal,
                      int first_token, int keys) {
    const float* scores = s + blockIdx.x * ld_s;
    element* to = p + blockIdx.x * ld_p;
    const int visible = causal ? min(first_token + (int)blockIdx.x + 1, keys) : cols;
    const float log2_scale = scale * 1.4426950408889634f;
    const int first = threadIdx.x * 8, step = blockDim.x * 8;

    float held[HELD][8];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int column = first + i * step;
        if (column < visible) {
            load_scores(scores, column, visible, log2_scale, held[i]);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) held[i][j] = -INFINITY;
        }
    }
    float maximum = -INFINITY, sum = 0.0f;
    for (int column = first + HELD * step; column < visible; column += step) {
        float values[8];
        load_scores(scores, column, visible, log2_scale, values);
        const float top = greatest(values, maximum);
        sum *= exp2f(maximum - top);
        maximum = top;
#pragma unroll
        for (int j = 0; j < 8; j++) sum += exp2f(values[j] - maximum);
    }

    float joint = maximum;
#pragma unroll
    for (int i = 0; i < HELD; i++) joint = greatest(held[i], joint);
    joint = block_max(joint);
    sum *= exp2f(maximum - joint);
#pragma unroll
    for (int i = 0; i < HELD; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) sum += held[i][j] = exp2f(held[i][j] - joint);
    const float inverse = 1.0f / block_sum(sum);

#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int column = first + i * step;
        if (column >= cols) break;
#pragma unroll
        for (int j = 0; j < 8; j++) held[i][j] *= inverse;
        store_plain(to + column, held[i]);
    }
    for (int column = first + HELD * step; column < cols; column += step) {
        float values[8];
        load_scores(scores, column, visible, log2_scale, values);
#pragma unroll
        for (int j = 0; j < 8; j++) values[j] = exp2f(values[j] - joint) * inverse;
        store_plain(to + column, values);
    }
}
