// group_norm: out = (x - mean) / sqrt(variance + eps) * weight + bias per group of channels, over all pixels;
// group_norm_silu: silu of it
//
//   x      [pixels, channels]  element, row stride ld_x
//   weight, bias [channels]    element
//   out    [pixels, channels]  element, row stride ld_out
//
// Three kernels, all sums in a fixed order:
// 1. stats   a block sums a split of the pixels per channel, relative to the channel's first value in the split, so
//    that a mean far from zero costs no digits; it writes (mean, sum of squared distances from it) to partial [splits,
//    channels], and the number of pixels of each split to counts [splits]. The splits are interleaved, a few pixels
//    each, so that all blocks end with the last pixels of the image. If conv2d_sm90a.cuh computed x, it has written
//    both already, and this kernel does not run.
// 2. merge   a block per group merges the splits and the group's channels (Chan's formula), and writes a factor and a
//    summand per channel to coefficients [channels].
// 3. apply   a thread holds the coefficients of its 8 channels and iterates over pixels; the last pixels come first,
//    because L2 still has them. Before a convolution of a large image, a launch computes one band of rows.
//
// Needs     channels % 8 == 0 and rows and vectors 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     pixels * channels * 6: read, read, written.   1048576 x 128: 805 MB
// Bound     HBM. 805 MB at 4.8 TB/s (H200) = 168 us; without the first kernel two thirds
// Measured  with silu, us (TB/s): 1024 x 1024 x 128: 233 (3.46), 72% of bound; x 256: 439 (3.67); 512 x 512 x 256: 132
//           (3.05); x 512: 239 (3.38); 256 x 256 x 512: 83 (2.42); 128 x 128 x 512: 36 (1.41); H200, driver 580.159,
//           CUDA 13.0; `flux bench ops/`, all three kernels
#include "common.cuh"
#include "channel_statistics.cuh"

static constexpr int THREADS = 256, MERGE_THREADS = 1024;

// Returns the number of pixels of a split, which has `height` of every `splits * height`.
__device__ __forceinline__ int split_pixels(int split, int splits, int height, int pixels) {
    const int round = splits * height, rest = pixels % round - split * height;
    return pixels / round * height + min(max(rest, 0), height);
}

template <int N>
__device__ __forceinline__ void group_norm_stats(const element* x, long long ld_x, float2* partial, float* counts,
                                                 int pixels, int channels) {
    __shared__ float2 sums[THREADS * N];
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    const long long first = blockIdx.x * blockDim.y, step = (long long)gridDim.x * blockDim.y;
    float sum[N], squares[N];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = squares[i] = 0.0f;
    if (channel < channels) {
        float origin[N];
        load(x + first * ld_x + channel, origin);
#pragma unroll 4
        for (long long pixel = first + threadIdx.y; pixel < pixels; pixel += step) {
            float values[N];
            load(x + pixel * ld_x + channel, values);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float shifted = values[i] - origin[i];
                sum[i] += shifted;
                squares[i] += shifted * shifted;
            }
        }
    }
    const int width = blockDim.x * N;
    const float count = (float)split_pixels(blockIdx.x, gridDim.x, blockDim.y, pixels);
    if (blockIdx.y == 0 && threadIdx.x == 0 && threadIdx.y == 0) counts[blockIdx.x] = count;
#pragma unroll
    for (int i = 0; i < N; i++) sums[threadIdx.y * width + threadIdx.x * N + i] = make_float2(sum[i], squares[i]);
    __syncthreads();
    for (int c = threadIdx.y * blockDim.x + threadIdx.x; c < width; c += blockDim.x * blockDim.y) {
        const int this_channel = blockIdx.y * width + c;
        if (this_channel >= channels) break;
        float total = 0.0f, total_squares = 0.0f;
        for (int y = 0; y < blockDim.y; y++) {
            total += sums[y * width + c].x;
            total_squares += sums[y * width + c].y;
        }
        const float origin = to_float(x[first * ld_x + this_channel]);
        partial[(long long)blockIdx.x * channels + this_channel] =
            make_float2(origin + total / count, fmaxf(total_squares - total * total / count, 0.0f));
    }
}

extern "C" __global__ void __launch_bounds__(MERGE_THREADS)
    group_norm_merge(const float2* partial, const float* counts, const element* weight, const element* bias,
                     float2* coefficients, int splits, int channels, int group_channels, float eps) {
    __shared__ ChannelStatistics shared[MERGE_THREADS];
    const int first_channel = blockIdx.x * group_channels;
    ChannelStatistics mine = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int item = threadIdx.x; item < splits * group_channels; item += MERGE_THREADS) {
        const int split = item / group_channels;
        const float2 part = partial[(long long)split * channels + first_channel + item % group_channels];
        mine = join(mine, {counts[split], part.x, part.y});
    }
    shared[threadIdx.x] = mine;
    for (int step = MERGE_THREADS / 2; step > 0; step >>= 1) {
        __syncthreads();
        if (threadIdx.x < step) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + step]);
    }
    __syncthreads();
    const float mean = shared[0].mean, scale = rsqrtf(shared[0].squares / shared[0].count + eps);
    for (int channel = first_channel + threadIdx.x; channel < first_channel + group_channels;
         channel += MERGE_THREADS) {
        const float slope = scale * to_float(weight[channel]);
        // This loses no digits of x: if the mean is so many deviations from 0 that it would, the values of x, which are
        // rounded, have lost them already.
        coefficients[channel] = make_float2(slope, to_float(bias[channel]) - mean * slope);
    }
}

template <int N, bool SILU>
__device__ __forceinline__ void group_norm_apply(const element* x, long long ld_x, const float2* coefficients,
                                                 element* out, long long ld_out, int pixels, int channels,
                                                 int pixels_per_block) {
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (channel >= channels) return;
    float2 line[N];
#pragma unroll
    for (int i = 0; i < N; i++) line[i] = coefficients[channel + i];
    const long long first = (long long)(gridDim.x - 1 - blockIdx.x) * pixels_per_block;
    const long long end = min(first + pixels_per_block, (long long)pixels);
#pragma unroll 4
    for (long long pixel = first + threadIdx.y; pixel < end; pixel += blockDim.y) {
        float values[N];
        load(x + pixel * ld_x + channel, values);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float normed = fmaf(values[i], line[i].x, line[i].y);
            values[i] = SILU ? silu(normed) : normed;
        }
        store(out + pixel * ld_out + channel, values);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    group_norm_stats(const element* x, long long ld_x, float2* partial, float* counts, int pixels, int channels) {
    group_norm_stats<8>(x, ld_x, partial, counts, pixels, channels);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    group_norm_stats_any(const element* x, long long ld_x, float2* partial, float* counts, int pixels, int channels) {
    group_norm_stats<1>(x, ld_x, partial, counts, pixels, channels);
}

#define GROUP_NORM_APPLY(NAME, N, SILU)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const element* x, long long ld_x, const float2* coefficients, element* out, long long ld_out, int pixels, \
             int channels, int pixels_per_block) {                                                                     \
        group_norm_apply<N, SILU>(x, ld_x, coefficients, out, ld_out, pixels, channels, pixels_per_block);             \
    }

GROUP_NORM_APPLY(group_norm, 8, false)
GROUP_NORM_APPLY(group_norm_any, 1, false)
GROUP_NORM_APPLY(group_norm_silu, 8, true)
GROUP_NORM_APPLY(group_norm_silu_any, 1, true)
