// 3 x 3 convolution for Hopper, + bias + residual, as implicit GEMM: stride 1 with zeros around the image, or stride 2
// with zeros after the last row and column. TAPS = 2 (upsample_conv2d_sm90a.cu): of the upsampled image
//
//   x         tensor map over [height, width, channels] bf16: boxes of 64 channels (128-byte swizzle), WIDTH pixels,
//             HEIGHT + TAPS - 1 rows. Stride 2: over [height, 2, width, 2, channels], with axes of parities: HEIGHT + 1
//             rows; height and width are those of the output
//   weight    tensor map over [outs, TAPS * TAPS, channels] bf16, taps ordered (ky, kx): boxes of 64 channels, one tap,
//             OUTS outputs. TAPS = 2: [4 * outs, 4, channels] from collapse_taps.cu
//   residual  tensor map over [height, width, outs] bf16, read only if `adds` (not with TAPS = 2); may be out
//   bias, slopes  [outs] bf16; slopes of negative sums if `activates`, null for slopes of 0
//   out       [height * width, outs] bf16, row stride ld_out; rounded once. TAPS = 2: [2 height * 2 width, outs]
//   partial   [gridDim.x / ceil(outs / OUTS), outs] float2: mean of the rounded values of a split of the pixels, and
//             the sum of squared distances from it, for a group norm of `out`
//   counts    [gridDim.x / ceil(outs / OUTS)] float: number of pixels of each split
//   carry     [gridDim.x, outputs and lanes of the storing warps] channel statistics, used if several launches compute
//             one image
//
// Mapping   Blocks compute tiles of WIDTH x HEIGHT pixels and OUTS outputs in turn; the outputs of one place are in
//           neighbouring blocks. Two warpgroups multiply [64, 64] of weights by [pixels, 64]^T for every tap and 64
//           channels. A box of pixels has the rows for all ky, so a pixel is fetched TAPS times. Warps 1 to 3 store,
//           and sum the channel statistics of a block's tiles, while the next tile is multiplied.
// Bands     A launch computes tiles `first` to `end`, whole rows of tiles, and x has only the rows that these read,
//           from `first_row` on. Blocks get the same tiles in any number of launches, so bands don't change the result.
// Needs     sm_90a; channels % 8 == 0, outs % 8 == 0, rows 16-byte aligned; gridDim.x a multiple of ceil(outs / OUTS).
// Bound     tensor cores. 512 x 512, 512 -> 512: 1237 GFLOP at 989 TFLOP/s (H200, dense bf16) = 1251 us
// Measured  1467 us (843 TFLOP/s); docs/kernels-conv.md
#pragma once

#include "common.cuh"
#include "channel_statistics.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "mma.cuh"
#include "pipeline_sm90a.cuh"

namespace conv2d {

using namespace hopper;

constexpr int CHANNELS = 64;  // per box: 128 bytes
constexpr int ROW_BYTES = CHANNELS * 2;
constexpr int CONSUMERS = 2, STORERS = 3;  // multiplying warpgroups, storing warps
constexpr int OWN_OUTS = 64;               // per consumer: 128 bytes
constexpr int OUTS = CONSUMERS * OWN_OUTS;

template <int TAPS_, int WIDTH_, int HEIGHT_, int PIXEL_STAGES_, int WEIGHT_STAGES_, int STRIDE_ = 1>
struct Shape {
    static constexpr int TAPS = TAPS_, WIDTH = WIDTH_, HEIGHT = HEIGHT_, PIXEL_STAGES = PIXEL_STAGES_,
                         WEIGHT_STAGES = WEIGHT_STAGES_, STRIDE = STRIDE_;
    // Rows of a stage of pixels.
    static constexpr int ROWS = STRIDE == 1 ? HEIGHT + TAPS - 1 : 2 * (HEIGHT + 1);
    // Sets of weights: one, or one for each place in the square that a pixel becomes.
    static constexpr int PLACES = TAPS == 2 ? 4 : 1, SCALE = TAPS == 2 ? 2 : 1;
    static constexpr int PIXELS = WIDTH * HEIGHT;
    static constexpr int SUMS = PIXELS / 2;  // per thread
    static constexpr int PIXEL_BYTES = WIDTH * ROWS * ROW_BYTES, WEIGHT_BYTES = OUTS * ROW_BYTES;
    static constexpr int ROUNDED_BYTES = PIXELS * OWN_OUTS * 2;  // per consumer
    static constexpr int WEIGHTS = PIXEL_STAGES * PIXEL_BYTES, ROUNDED = WEIGHTS + WEIGHT_STAGES * WEIGHT_BYTES;
    static constexpr int BARRIERS = ROUNDED + CONSUMERS * ROUNDED_BYTES;
    // Returns the row of a stage at which the pixels for a ky begin. With stride 2, tap (ky, kx) of output (y, x) reads
    // pixel (y + ky / 2, x + kx / 2) of the image of its parities: a stage is two boxes, of even and of odd rows.
    __device__ static constexpr int row_of(int ky) { return STRIDE == 1 ? ky : ky % 2 * (HEIGHT + 1) + ky / 2; }
    static_assert(STRIDE == 1 || (STRIDE == 2 && TAPS == 3), "no other stride");
    static_assert(WIDTH % 8 == 0 && WEIGHT_BYTES % 1024 == 0, "boxes and taps begin where the swizzle does");
};

// A tile: its first pixel, its first output, and the set of weights.
struct Work {
    int x, y, out, place;

    template <class S>
    __device__ __forceinline__ static Work at(int index, int width, int outs) {
        const int out_tiles = ceil_div(outs, OUTS), columns = ceil_div(width, S::WIDTH);
        Work w;
        w.out = index % out_tiles * OUTS;
        index /= out_tiles;
        w.place = index % S::PLACES;
        index /= S::PLACES;
        w.x = index % columns * S::WIDTH;
        w.y = index / columns * S::HEIGHT;
        return w;
    }

    // Returns the row of out for a pixel of the tile; -1 outside the image.
    template <class S>
    __device__ __forceinline__ int row(uint32_t pixel, int height, int width) const {
        const int at_y = y + int(pixel / S::WIDTH), at_x = x + int(pixel % S::WIDTH);
        if (at_y >= height || at_x >= width) return -1;
        return (at_y * S::SCALE + place / S::SCALE) * (width * S::SCALE) + at_x * S::SCALE + place % S::SCALE;
    }
};

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Returns the address of 16 bytes of a pixel in a consumer's half of the rounded tile.
__device__ __forceinline__ uint32_t chunk_at(uint32_t rounded, uint32_t pixel, uint32_t chunk) {
    return rounded + pixel * ROW_BYTES + ((chunk ^ pixel % 8) << 4);
}

// Returns the bias of an output; 0 past the last output.
__device__ __forceinline__ float bias_of(const bf16* bias, int out, int outs) {
    return out < outs ? __bfloat162float(bias[out]) : 0.0f;
}

// Returns x, or slope * x if x is negative; with a slope of 0, 0. A NaN stays NaN.
__device__ __forceinline__ float activated(float x, float slope) {
    return x < 0.0f ? (slope == 0.0f ? 0.0f : slope * x) : x;
}

// Rounds sums + biases into a consumer's half of the rounded tile; with ADDS, adds the residual, which is stored there.
// A warp has 16 outputs: a lane has outputs lane / 4 and lane / 4 + 8, with `biases`, of pixels 8 n + lane % 4 * 2 and
// the next.
template <class S, bool ADDS>
__device__ __forceinline__ void round_tile(const float (&sums)[S::SUMS], const float (&biases)[2], int activates,
                                           const float (&slopes)[2], uint32_t rounded) {
    const int lane = threadIdx.x % 32;
    // The lane's pixel of the four matrices that a warp moves at once, and its chunk: both chunks of eight pixels, then
    // of the next eight.
    const uint32_t first = chunk_at(rounded, lane / 16 * 8 + lane % 8, threadIdx.x / 32 % 4 * 2 + lane / 8 % 2);
    // The swizzle repeats every eight pixels. The residual is loaded one step early.
    constexpr int STEPS = S::PIXELS / 16;
    uint32_t added[2][4];
    if (ADDS) load_matrices_transposed(added[0], first);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const uint32_t place = first + step * 16 * ROW_BYTES;
        if (ADDS && step + 1 < STEPS) load_matrices_transposed(added[(step + 1) % 2], place + 16 * ROW_BYTES);
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = &sums[(step * 4 + i) * 2];
            float values[2] = {pair[0] + biases[i % 2], pair[1] + biases[i % 2]};
            if (ADDS) values[0] += low(added[step % 2][i]), values[1] += high(added[step % 2][i]);
            if (activates)
                values[0] = activated(values[0], slopes[i % 2]), values[1] = activated(values[1], slopes[i % 2]);
            pairs[i] = pack_pair(values[0], values[1]);
        }
        store_transposed(place, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// The work of warps 1 to 3. A lane has the same eight outputs of every half, and every STRIDE-th pixel.
template <class S>
struct Storer {
    static constexpr int CHUNKS = OWN_OUTS / 8, LANES = STORERS * 32, STRIDE = LANES / CHUNKS;
    static constexpr int AT_ONCE = 4;  // pixels that a lane loads before it uses the first
    static_assert(LANES % CHUNKS == 0, "a lane keeps its outputs");
    static_assert(S::PIXELS / STRIDE + 1 <= 256, "sums of squares are exact");
    static_assert(STRIDE * OUTS * sizeof(ChannelStatistics) <= CONSUMERS * S::ROUNDED_BYTES,
                  "the statistics of all lanes fit where the rounded tile was");

    const uint32_t thread = threadIdx.x - 32, chunk = thread % CHUNKS, first_pixel = thread / CHUNKS;
    ChannelStatistics running[CONSUMERS][8] = {};

    __device__ __forceinline__ void store_half(const Work& w, int consumer, uint32_t rounded, bf16* out,
                                               long long ld_out, int height, int width, int outs) {
        const int first_out = w.out + consumer * OWN_OUTS + int(chunk) * 8;
        float totals[8] = {}, squares[8] = {};
        int count = 0;
        for (uint32_t first = first_pixel; first < S::PIXELS; first += AT_ONCE * STRIDE) {
            uint4 raw[AT_ONCE];
            // Past the last pixel, the last one is read again.
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                raw[i] = load_shared_16(chunk_at(rounded, min(first + i * STRIDE, S::PIXELS - 1u), chunk));
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const uint32_t pixel = first + i * STRIDE;
                const int row = w.row<S>(pixel, height, width);
                if (pixel >= S::PIXELS || row < 0) continue;
                if (first_out < outs) *reinterpret_cast<uint4*>(out + row * ld_out + first_out) = raw[i];
                float values[8];
                unpack(raw[i], values);
                count++;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    totals[j] += values[j];
                    squares[j] = fmaf(values[j], values[j], squares[j]);
                }
            }
        }
        const float pixels = count, share = __fdividef(1.0f, fmaxf(pixels, 1.0f));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // `rest` is the rounding error of `mean`, times the number of pixels.
            const float mean = totals[i] * share, rest = fmaf(-mean, pixels, totals[i]);
            const float about_mean = fmaf(-mean, rest, fmaf(-mean, totals[i], squares[i]));
            running[consumer][i] = join(running[consumer][i], {pixels, mean, fmaxf(about_mean, 0.0f)});
        }
    }

    // Returns the place of the statistics of output `i` of a lane and consumer between bands.
    __device__ __forceinline__ ChannelStatistics& waiting(ChannelStatistics* carry, int consumer, int i) const {
        return carry[((blockIdx.x * CONSUMERS + consumer) * 8 + i) * LANES + thread];
    }

    __device__ __forceinline__ void take_up(ChannelStatistics* carry) {
#pragma unroll
        for (int consumer = 0; consumer < CONSUMERS; consumer++)
#pragma unroll
            for (int i = 0; i < 8; i++) running[consumer][i] = waiting(carry, consumer, i);
    }

    __device__ __forceinline__ void put_down(ChannelStatistics* carry) const {
#pragma unroll
        for (int consumer = 0; consumer < CONSUMERS; consumer++)
#pragma unroll
            for (int i = 0; i < 8; i++) waiting(carry, consumer, i) = running[consumer][i];
    }

    // Merges the statistics of all lanes of an output, once they have stored their last tile, and writes them. `shared`
    // has room for those of every lane.
    __device__ __forceinline__ void write_statistics(ChannelStatistics* shared, float2* partial, float* counts,
                                                     int outs) {
        const int out_tiles = ceil_div(outs, OUTS), split = blockIdx.x / out_tiles,
                  first_out = blockIdx.x % out_tiles * OUTS;
#pragma unroll
        for (int consumer = 0; consumer < CONSUMERS; consumer++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                shared[first_pixel * OUTS + consumer * OWN_OUTS + chunk * 8 + i] = running[consumer][i];
        wait_turn(1, LANES);
        for (int i = int(thread); i < OUTS; i += LANES) {
            ChannelStatistics all = shared[i];
            for (int lane = 1; lane < STRIDE; lane++) all = join(all, shared[lane * OUTS + i]);
            if (first_out + i < outs)
                partial[(long long)split * outs + first_out + i] = make_float2(all.mean, all.squares);
            if (first_out + i == 0) counts[split] = all.count;
        }
    }
};

template <class S>
__device__ __forceinline__ void convolve(const TensorMap& x, const TensorMap& weight, const TensorMap& residual,
                                         int adds, int activates, const bf16* bias, const bf16* slopes, bf16* out,
                                         long long ld_out, int height, int width, int channels, int outs,
                                         float2* partial, float* counts, int first, int end, int first_row,
                                         ChannelStatistics* carry) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    Ring<S::PIXEL_STAGES> pixel_ring(base + S::BARRIERS);
    Ring<S::WEIGHT_STAGES> weight_ring(pixel_ring.full + pixel_ring.BARRIER_BYTES);
    // Each consumer's half of the rounded tile: `full` when it may be rounded, `free` when it is.
    const Ring<CONSUMERS> halves(weight_ring.full + weight_ring.BARRIER_BYTES);
    if (threadIdx.x == 0) {
        pixel_ring.init(CONSUMERS * 4, 1);
        weight_ring.init(CONSUMERS * 4, 1);
        halves.init(4, 1);
        publish_barriers();
    }
    __syncthreads();

    const int items = ceil_div(outs, OUTS) * S::PLACES * ceil_div(width, S::WIDTH) * ceil_div(height, S::HEIGHT);
    // This block's first tile of the band.
    const int blocks = gridDim.x, begin = first + (int(blockIdx.x) - first % blocks + blocks) % blocks;
    // A step is 64 channels at one kx: a box of pixels and TAPS boxes of weights.
    const int steps = ceil_div(channels, CHANNELS) * S::TAPS;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const auto half_of = [&](int consumer) { return base + S::ROUNDED + consumer * S::ROUNDED_BYTES; };
    Cursor<1> turn;
    if (warp == 0) {
        if (threadIdx.x != 0) return;
        for (int index = begin; index < end; index += blocks) {
            const Work w = Work::at<S>(index, width, outs);
            // The box begins one pixel before the tile; in an upsampled image, outputs in odd places read the pixel
            // after instead of the one before.
            const int from_x = w.x - 1 + (S::SCALE - 1) * (w.place % S::SCALE),
                      from_y = w.y - 1 + (S::SCALE - 1) * (w.place / S::SCALE);
            for (int step = 0; step < steps; step++) {
                const int channel = step / S::TAPS * CHANNELS, kx = step % S::TAPS;
                const uint32_t full = pixel_ring.fetch(S::PIXEL_BYTES);
                const uint32_t to = base + pixel_ring.stage * S::PIXEL_BYTES;
                if constexpr (S::STRIDE == 1) {
                    copy_box(to, x, from_y - first_row, from_x + kx, channel, full);
                } else {
#pragma unroll
                    for (int odd = 0; odd < 2; odd++)
                        copy_box(to + odd * (S::PIXEL_BYTES / 2), x, w.y, odd, w.x + kx / 2, kx % 2, channel, full);
                }
                pixel_ring.advance();
#pragma unroll
                for (int ky = 0; ky < S::TAPS; ky++) {
                    const uint32_t full = weight_ring.fetch(S::WEIGHT_BYTES);
                    copy_box(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES, weight, w.place * outs + w.out,
                             ky * S::TAPS + kx, channel, full);
                    weight_ring.advance();
                }
            }
        }
    } else if (warpgroup == 0) {
        // Lets a consumer round its half of a tile: the half before is stored, and the residual, if any, is being
        // loaded into its place.
        const auto open_half = [&](int consumer, int index) {
            if (threadIdx.x != 32 || index >= end) return;
            const uint32_t barrier = halves.full + 8 * consumer;
            if (!adds) {
                arrive(barrier);
                return;
            }
            const Work w = Work::at<S>(index, width, outs);
            arrive_expecting(barrier, S::ROUNDED_BYTES);
            copy_box(half_of(consumer), residual, w.y, w.x, w.out + consumer * OWN_OUTS, barrier);
        };
        Storer<S> storer;
        if (first > 0) storer.take_up(carry);
        for (int consumer = 0; consumer < CONSUMERS; consumer++) open_half(consumer, begin);
        for (int index = begin; index < end; index += blocks) {
            const Work w = Work::at<S>(index, width, outs);
#pragma unroll
            for (int consumer = 0; consumer < CONSUMERS; consumer++) {
                wait(halves.free + 8 * consumer, turn.phase);
                storer.store_half(w, consumer, half_of(consumer), out, ld_out, height, width, outs);
                wait_turn(1, storer.LANES);
                open_half(consumer, index + blocks);
            }
            turn.advance();
        }
        if (end < items) {
            storer.put_down(carry);
        } else {
            storer.write_statistics(reinterpret_cast<ChannelStatistics*>(shared + S::ROUNDED), partial, counts,
                                    outs);
        }
    } else {
        const int consumer = warpgroup - 1;
        const uint32_t own_weights = consumer * OWN_OUTS * ROW_BYTES;
        float biases[2], own_slopes[2] = {0.0f, 0.0f};
        // All tiles of the block have these outputs, because the number of blocks is a multiple of the number of
        // output tiles.
        const int first_own = blockIdx.x % ceil_div(outs, OUTS) * OUTS + consumer * OWN_OUTS;
        if (first_own >= outs) {
            // It has no outputs: the other consumer has the tensor cores to itself.
            for (int index = begin; index < end; index += blocks) {
                for (int step = 0; step < steps; step++) {
                    pixel_ring.wait_full();
                    for (int ky = 0; ky < S::TAPS; ky++) {
                        weight_ring.wait_full();
                        weight_ring.release(weight_ring.stage);
                        weight_ring.advance();
                    }
                    pixel_ring.release(pixel_ring.stage);
                    pixel_ring.advance();
                }
                wait(halves.full + 8 * consumer, turn.phase);
                turn.advance();
                halves.release(consumer);
            }
            return;
        }
        const int out = first_own + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        biases[0] = bias_of(bias, out, outs), biases[1] = bias_of(bias, out + 8, outs);
        if (slopes) own_slopes[0] = bias_of(slopes, out, outs), own_slopes[1] = bias_of(slopes, out + 8, outs);
        for (int index = begin; index < end; index += blocks) {
            float sums[S::SUMS];
            int last_pixels = 0, last_weights = 0;
            for (int step = 0; step < steps; step++) {
                pixel_ring.wait_full();
#pragma unroll
                for (int ky = 0; ky < S::TAPS; ky++) {
                    const uint64_t pixels = describe(base + pixel_ring.stage * S::PIXEL_BYTES +
                                                         S::row_of(ky) * S::WIDTH * ROW_BYTES,
                                                     0);
                    const uint64_t weights =
                        describe(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES + own_weights, 0);
                    weight_ring.wait_full();
                    begin_multiply();
#pragma unroll
                    for (int c = 0; c < CHANNELS; c += 16)
                        multiply(sums, weights + (c * 2 >> 4), pixels + (c * 2 >> 4), step + ky + c > 0);
                    commit_multiply();
                    // The earlier multiplies are done, so the stages that they read are free.
                    wait_multiply<1>();
                    if (step + ky > 0) {
                        weight_ring.release(last_weights);
                        if (ky == 0) pixel_ring.release(last_pixels);
                    }
                    last_weights = weight_ring.stage;
                    weight_ring.advance();
                }
                last_pixels = pixel_ring.stage;
                pixel_ring.advance();
            }
            wait_multiply<0>();
            pin(sums);
            weight_ring.release(last_weights);
            pixel_ring.release(last_pixels);
            wait(halves.full + 8 * consumer, turn.phase);
            turn.advance();
            if (adds) {
                round_tile<S, true>(sums, biases, activates, own_slopes, half_of(consumer));
                // TMA writes the next residual there.
                show_to_tma();
            } else {
                round_tile<S, false>(sums, biases, activates, own_slopes, half_of(consumer));
            }
            __syncwarp();
            halves.release(consumer);
        }
    }
}

}  // namespace conv2d

// The launcher passes the shared memory: `BARRIERS` of the shape and 16 bytes for each stage and each consumer. The
// launcher's numbers must agree with `Shape`.
#define CONV2D(name, ...)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128 + 128 * conv2d::CONSUMERS, 1)                                   \
        name(const __grid_constant__ hopper::TensorMap x, const __grid_constant__ hopper::TensorMap weight,          \
             const __grid_constant__ hopper::TensorMap residual, int adds, int activates, const bf16* bias,          \
             const bf16* slopes, bf16* out, long long ld_out, int height, int width, int channels, int outs,         \
             float2* partial, float* counts, int first, int end, int first_row, ChannelStatistics* carry) {          \
        conv2d::convolve<conv2d::Shape<__VA_ARGS__>>(x, weight, residual, adds, activates, bias, slopes, out,        \
                                                     ld_out, height, width, channels, outs, partial, counts, first,  \
                                                     end, first_row, carry);                                         \
    }

#endif
