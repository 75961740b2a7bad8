// 3 x 3 convolution for Hopper, stride 1 and zeros around the image, + bias + residual: an implicit GEMM with warpgroup
// matrix multiplies. The same kernel with 2 x 2 taps (upsample_conv2d_sm90a.cu) convolves an upsampled image without
// making that image. With a stride of 2 it halves the image: zeros only behind the last row and column.
//
//   x         tensor map over [height, width, channels] bf16: boxes of 64 channels (128-byte swizzle), WIDTH pixels,
//             HEIGHT + TAPS - 1 rows. To halve, over [height, 2, width, 2, channels], where axes of 2 are the parities
//             of rows and columns: boxes of 64 channels, WIDTH pixels and HEIGHT + 1 rows of one parity each
//   weight    tensor map over [outs, TAPS * TAPS, channels] bf16, taps ordered (ky, kx): boxes of 64 channels, one tap,
//             OUTS outputs
//   residual  tensor map over [height, width, outs] bf16: boxes of 64 outputs (128-byte swizzle), WIDTH pixels, HEIGHT
//             rows; read only if `adds`, which must be 0 for an upsampled image and where OUTS is 8; may be of out
//   bias      [outs] bf16
//   out       [height * width, outs] bf16, row stride ld_out; rounded once
//   partial   [gridDim.x / ceil(outs / OUTS), outs] float2, not written where OUTS is 8: mean of the rounded values of
//             a split of the pixels, and the sum of squared distances from it; a group norm then need not read `out`
//             once more for its statistics
//   counts    [gridDim.x / ceil(outs / OUTS)] float: number of pixels of each split
//   carry     [gridDim.x, outputs and lanes of the warps that store] channel statistics; used only where several
//             launches do the bands of one image
// Upsampled (TAPS = 2): weight [4 * outs, 4, channels], as `upsample_conv2d_taps_bf16` makes it; out [2 height * 2
// width, outs].
//
// Mapping   A block for each multiprocessor takes tiles of WIDTH x HEIGHT pixels and OUTS outputs in turn. Neighbouring
//           blocks have the outputs of one place, so that only the first of them fetches its pixels from HBM, the
//           others from L2. Warpgroups 1 and 2 own 64 of the tile's outputs each, and multiply [64, 64] of weights by
//           [pixels, 64]^T for every tap and 64 channels. Warp 0 fetches for them.
//           A multiply reads both operands from shared memory: 320 rows for sums of 64 x 256; twice 64 x 128, as pixels
//           by outputs would be, takes 384. Together with what TMA writes, these are 108 or 124 bytes a cycle for
//           16x16x128, and shared memory can do 128. With eight outputs the pixels are the rows of sums, and a
//           warpgroup owns half of the pixels.
//           A box of pixels begins kx - 1 to the right of the tile and one row above it, in signed coordinates: TMA
//           fills in zeros where the image ends. The box has the rows for all ky: another tap is the same box, begun
//           ky * WIDTH pixels later. So a pixel is fetched TAPS times instead of TAPS * TAPS times, and L2, which
//           would limit the convolution otherwise, does not. Pixels and weights have separate stages, because one box
//           of pixels serves TAPS boxes of weights.
// Upsampled In an image that repeats every pixel four times, an output sees 2 x 2 different pixels; which of the 3 x 3
//           weights fall on each depends on whether the output's row and column are even. So there are four sets of
//           2 x 2 weights, sums of the 3 x 3 ones; the sums round once more, to bf16. A tile belongs to one set, and
//           its outputs are two pixels apart.
// Halved    Tap (ky, kx) of output (y, x) sees pixel (2 y + ky, 2 x + kx), which is pixel (y + ky / 2, x + kx / 2) of
//           the image of these parities. Two boxes, of even and of odd rows, are a stage, which again serves all ky.
//           height and width are those of the output.
// Stores    The warps that multiply only add bias and residual, and round into shared memory; warps 1 to 3 store from
//           there while the next tile is multiplied. The rounded half of a tile has the layout of a TMA box: 64
//           outputs of a pixel, swizzled. Where there is a residual, TMA loads it into this place as soon as the half
//           before is stored: each value is then replaced by its sum with the convolution. With eight outputs the warps
//           that multiply also store: four bytes per thread and row.
// Sums      For the channel statistics, a block's pixels are one split, over all its tiles. A lane that stores
//           accumulates those of eight outputs of each half, over its own pixels. Within a tile they are plain sums: a
//           bf16 value has 8 digits and its square 16, so the 24 digits of a float hold the sums of up to 256 values
//           exactly if these have one exponent, as values far from zero for their spread do. Tiles, whose number has
//           no bound, and at last lanes, are joined as means and sums of squared distances from them. The order is
//           always the same.
// Bands     A launch does tiles `first` to `end` of the image, whole rows of tiles, and its x has only the rows that
//           these see, from `first_row` on. A block takes the same tiles in the same order, however many launches do
//           them: from one launch to the next its statistics wait in `carry`. So bands do not change the result.
// Needs     sm_90a; channels % 8 == 0, outs % 8 == 0, rows 16-byte aligned. Channels are fetched 64 at a time, with
//           zeros behind the last. gridDim.x is a multiple of ceil(outs / OUTS), so that all tiles of a block are of
//           the same outputs.
// Flops     2 * height * width * TAPS * TAPS * channels * outs (four times for upsampled).   512 x 512, 512 -> 512:
//           1237 GFLOP
// Bound     tensor cores. 1237 GFLOP at 989 TFLOP/s (H200, dense bf16) = 1251 us
// Measured  us (TFLOP/s): 512 x 512, 512 -> 512: 1467 (843), 85% of bound; 512 -> 256: 750 (824); 256 -> 256: 380
//           (813), with residual 391 (791); 256 x 256, 512 -> 512: 375 (824), with residual 382 (810); 128 x 128: 101
//           (769); 1024 x 1024, 256 -> 128: 752 (823); 128 -> 128: 388 (798), with residual 413 (748); 128 -> 3: 145.
//           Upsampled from 512 x 512, 256: 742; from 256 x 256, 512: 682, each less than half of upsampling and
//           convolution. H200, driver 580.159, CUDA 13.0; `flux bench ops/`
// Tried     by shape, standalone, us of 16x16x128, 16x8x256, 16x8x128: 512 x 512, 512 -> 512: 1488, 1562, 1629; 256 ->
//           256 with residual: 513, 513, 482; 1024 x 1024, 128 -> 128: 496, 979, 470; 64 x 64, 512 -> 512: 52, 52, 30;
//           three consumers (16x24x128) spill and are slower by 5 to 45% everywhere but once. im2col and cuBLASLt: 2632
//           us for the first, 1657 for 1024 x 1024, 128 -> 128. Everything behind the multiplies in the warps that
//           multiply, us without statistics / with: 1024 x 1024, 128 -> 128: 433 / 462, with residual 612 / 630; 256 ->
//           256: 1524 / 1628; 512 x 512, 512 -> 512: 1477 / 1550; 256 -> 256: 393 / 415, with residual 480 / 492. To
//           prefetch the residual into L2, or let the second consumer begin up to 6 taps after the first: no difference
#pragma once

#include "common.cuh"
#include "channel_statistics.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "conv2d_multiply_sm90a.cuh"

namespace conv2d {

using namespace hopper;

constexpr int CHANNELS = 64;  // of a box: 128 bytes
constexpr int ROW_BYTES = CHANNELS * 2;
constexpr int CONSUMERS = 2, STORERS = 3;  // warpgroups that multiply, warps that store
constexpr int OWN_OUTS = 64;               // of a consumer: 128 bytes

template <int TAPS_, int WIDTH_, int HEIGHT_, int OUTS_, int PIXEL_STAGES_, int WEIGHT_STAGES_, int STRIDE_ = 1>
struct Shape {
    static constexpr int TAPS = TAPS_, WIDTH = WIDTH_, HEIGHT = HEIGHT_, OUTS = OUTS_, PIXEL_STAGES = PIXEL_STAGES_,
                         WEIGHT_STAGES = WEIGHT_STAGES_, STRIDE = STRIDE_;
    // Rows of a stage of pixels.
    static constexpr int ROWS = STRIDE == 1 ? HEIGHT + TAPS - 1 : 2 * (HEIGHT + 1);
    // Sets of weights: one, or one for each place in the square that a pixel becomes.
    static constexpr int PLACES = TAPS == 2 ? 4 : 1, SCALE = TAPS == 2 ? 2 : 1;
    static constexpr int PIXELS = WIDTH * HEIGHT;
    // Whether consumers divide the tile's outputs and round them into shared memory. Otherwise they divide its pixels,
    // and store by themselves.
    static constexpr bool ROUNDS = OUTS == CONSUMERS * OWN_OUTS;
    static constexpr int PARTS = ROUNDS ? 1 : PIXELS / CONSUMERS / 64;  // multiplies of 64 rows
    static constexpr int SUMS = (ROUNDS ? PIXELS : OUTS) / 2;           // per thread and part
    static constexpr int PIXEL_BYTES = WIDTH * ROWS * ROW_BYTES, WEIGHT_BYTES = OUTS * ROW_BYTES;
    static constexpr int ROUNDED_BYTES = ROUNDS ? PIXELS * OWN_OUTS * 2 : 0;  // of a consumer
    static constexpr int WEIGHTS = PIXEL_STAGES * PIXEL_BYTES, ROUNDED = WEIGHTS + WEIGHT_STAGES * WEIGHT_BYTES;
    static constexpr int BARRIERS = ROUNDED + CONSUMERS * ROUNDED_BYTES;
    // The row of a stage where the pixels for a ky begin.
    __device__ static constexpr int row_of(int ky) { return STRIDE == 1 ? ky : ky % 2 * (HEIGHT + 1) + ky / 2; }
    static_assert(STRIDE == 1 || (STRIDE == 2 && TAPS == 3), "no other stride");
    static_assert(ROUNDS || PARTS * 64 * CONSUMERS == PIXELS, "whole multiplies");
    static_assert(WIDTH % 8 == 0 && WEIGHT_BYTES % 1024 == 0, "boxes and taps begin where the swizzle does");
};

// A tile: its first pixel, its first output, and the set of weights.
struct Work {
    int x, y, out, place;

    template <class S>
    __device__ __forceinline__ static Work at(int index, int width, int outs) {
        const int out_tiles = ceil_div(outs, S::OUTS), columns = ceil_div(width, S::WIDTH);
        Work w;
        w.out = index % out_tiles * S::OUTS;
        index /= out_tiles;
        w.place = index % S::PLACES;
        index /= S::PLACES;
        w.x = index % columns * S::WIDTH;
        w.y = index / columns * S::HEIGHT;
        return w;
    }

    // The row of out for a pixel of the tile; -1 outside the image.
    template <class S>
    __device__ __forceinline__ int row(uint32_t pixel, int height, int width) const {
        const int at_y = y + int(pixel / S::WIDTH), at_x = x + int(pixel % S::WIDTH);
        if (at_y >= height || at_x >= width) return -1;
        return (at_y * S::SCALE + place / S::SCALE) * (width * S::SCALE) + at_x * S::SCALE + place % S::SCALE;
    }
};

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Where 16 bytes of a pixel are in a consumer's half of the rounded tile.
__device__ __forceinline__ uint32_t chunk_at(uint32_t rounded, uint32_t pixel, uint32_t chunk) {
    return rounded + pixel * ROW_BYTES + ((chunk ^ pixel % 8) << 4);
}

// The bias of an output; 0 behind the last output.
__device__ __forceinline__ float bias_of(const bf16* bias, int out, int outs) {
    return out < outs ? __bfloat162float(bias[out]) : 0.0f;
}

// max(x, 0); what is not a number stays so.
__device__ __forceinline__ float rectified(float x) { return x < 0.0f ? 0.0f : x; }

// Rounds sums + biases into a consumer's half of the rounded tile; if ADDS, adds the residual, which lies there. A warp
// has 16 outputs: a lane has outputs lane / 4 and lane / 4 + 8, whose biases are `biases`, of pixels 8 n + lane % 4 * 2
// and the next.
template <class S, bool ADDS>
__device__ __forceinline__ void round_tile(const float (&sums)[S::SUMS], const float (&biases)[2], int relu,
                                           uint32_t rounded) {
    const int lane = threadIdx.x % 32;
    // The lane's pixel of the four matrices that a warp moves at once, and its chunk: both chunks of eight pixels, then
    // of the next eight.
    const uint32_t first = chunk_at(rounded, lane / 16 * 8 + lane % 8, threadIdx.x / 32 % 4 * 2 + lane / 8 % 2);
    // The swizzle repeats every eight pixels. The residual is loaded one step early.
    constexpr int STEPS = S::PIXELS / 16;
    uint32_t added[2][4];
    if (ADDS) load_transposed_matrices(first, added[0]);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const uint32_t place = first + step * 16 * ROW_BYTES;
        if (ADDS && step + 1 < STEPS) load_transposed_matrices(place + 16 * ROW_BYTES, added[(step + 1) % 2]);
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = &sums[(step * 4 + i) * 2];
            float values[2] = {pair[0] + biases[i % 2], pair[1] + biases[i % 2]};
            if (ADDS) values[0] += low(added[step % 2][i]), values[1] += high(added[step % 2][i]);
            if (relu) values[0] = rectified(values[0]), values[1] = rectified(values[1]);
            pairs[i] = pack_pair(values[0], values[1]);
        }
        store_transposed_matrices(place, pairs);
    }
}

// Stores sums + bias, rounded, to out from the warps that computed them, for half of the tile's pixels. A lane has
// pixels lane / 4 and lane / 4 + 8 of every 16, and outputs lane % 4 * 2 and the next.
template <class S>
__device__ __forceinline__ void store_sums(const float (&sums)[S::PARTS][S::SUMS], const bf16* bias, const Work& w,
                                           int consumer, bf16* out, long long ld_out, int height, int width, int outs) {
    static_assert(S::OUTS == 8, "two outputs a lane");
    const int lane = threadIdx.x % 32, at = w.out + lane % 4 * 2;
    const float biases[2] = {bias_of(bias, at, outs), bias_of(bias, at + 1, outs)};
#pragma unroll
    for (int i = 0; i < S::PARTS * 2; i++) {
        const int pixel = i / 2 * 64 + threadIdx.x / 32 % 4 * 16 + i % 2 * 8 + lane / 4;
        const int row = w.row<S>(consumer * (S::PIXELS / CONSUMERS) + pixel, height, width);
        if (row < 0 || at >= outs) continue;
        const float* pair = &sums[i / 2][i % 2 * 2];
        *reinterpret_cast<uint32_t*>(out + row * ld_out + at) = pack_pair(pair[0] + biases[0], pair[1] + biases[1]);
    }
}

// What warps 1 to 3 do. A lane has the same eight outputs of every half, and every STRIDE-th pixel.
template <class S>
struct Storer {
    static constexpr int CHUNKS = OWN_OUTS / 8, LANES = STORERS * 32, STRIDE = LANES / CHUNKS;
    static constexpr int AT_ONCE = 4;  // pixels that a lane loads before it uses the first
    static_assert(LANES % CHUNKS == 0, "a lane keeps its outputs");
    static_assert(S::PIXELS / STRIDE + 1 <= 256, "sums of squares are exact");
    static_assert(STRIDE * S::OUTS * sizeof(ChannelStatistics) <= CONSUMERS * S::ROUNDED_BYTES,
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
            // In place of pixels behind the last, the last is read again.
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
            // `rest` is what rounding took from `mean`, times the number of pixels.
            const float mean = totals[i] * share, rest = fmaf(-mean, pixels, totals[i]);
            const float about_mean = fmaf(-mean, rest, fmaf(-mean, totals[i], squares[i]));
            running[consumer][i] = join(running[consumer][i], {pixels, mean, fmaxf(about_mean, 0.0f)});
        }
    }

    // Where the statistics of output `i` of a lane and consumer wait for the next band.
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

    // Joins the statistics of all lanes of an output, once they have stored their last tile, and writes them. `shared`
    // has room for those of every lane.
    __device__ __forceinline__ void write_statistics(ChannelStatistics* shared, float2* partial, float* counts,
                                                     int outs) {
        const int out_tiles = ceil_div(outs, S::OUTS), split = blockIdx.x / out_tiles,
                  first_out = blockIdx.x % out_tiles * S::OUTS;
#pragma unroll
        for (int consumer = 0; consumer < CONSUMERS; consumer++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                shared[first_pixel * S::OUTS + consumer * OWN_OUTS + chunk * 8 + i] = running[consumer][i];
        wait_turn(1, LANES);
        for (int i = int(thread); i < S::OUTS; i += LANES) {
            ChannelStatistics all = shared[i];
            for (int lane = 1; lane < STRIDE; lane++) all = join(all, shared[lane * S::OUTS + i]);
            if (first_out + i < outs)
                partial[(long long)split * outs + first_out + i] = make_float2(all.mean, all.squares);
            if (first_out + i == 0) counts[split] = all.count;
        }
    }
};

template <class S>
__device__ __forceinline__ void convolve(const TensorMap& x, const TensorMap& weight, const TensorMap& residual,
                                         int adds, int relu, const bf16* bias, bf16* out, long long ld_out, int height,
                                         int width, int channels, int outs, float2* partial, float* counts, int first,
                                         int end, int first_row, ChannelStatistics* carry) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    const uint32_t pixels_full = base + S::BARRIERS, pixels_free = pixels_full + 8 * S::PIXEL_STAGES,
                   weights_full = pixels_free + 8 * S::PIXEL_STAGES, weights_free = weights_full + 8 * S::WEIGHT_STAGES,
                   open = weights_free + 8 * S::WEIGHT_STAGES, rounded = open + 8 * CONSUMERS;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < S::PIXEL_STAGES; stage++) {
            init_barrier(pixels_full + 8 * stage, 1);
            init_barrier(pixels_free + 8 * stage, CONSUMERS * 4);
        }
        for (int stage = 0; stage < S::WEIGHT_STAGES; stage++) {
            init_barrier(weights_full + 8 * stage, 1);
            init_barrier(weights_free + 8 * stage, CONSUMERS * 4);
        }
        for (int consumer = 0; consumer < CONSUMERS; consumer++) {
            init_barrier(open + 8 * consumer, 1);
            init_barrier(rounded + 8 * consumer, 4);
        }
        publish_barriers();
    }
    __syncthreads();

    const int items = ceil_div(outs, S::OUTS) * S::PLACES * ceil_div(width, S::WIDTH) * ceil_div(height, S::HEIGHT);
    // This block's first tile of the band.
    const int blocks = gridDim.x, begin = first + (int(blockIdx.x) - first % blocks + blocks) % blocks;
    // A step is 64 channels at one kx: a box of pixels and TAPS boxes of weights.
    const int steps = ceil_div(channels, CHANNELS) * S::TAPS;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const auto half_of = [&](int consumer) { return base + S::ROUNDED + consumer * S::ROUNDED_BYTES; };
    Ring<S::PIXEL_STAGES> pixel_ring;
    Ring<S::WEIGHT_STAGES> weight_ring;
    Ring<1> turn;
    if (warp == 0) {
        if (threadIdx.x != 0) return;
        for (int index = begin; index < end; index += blocks) {
            const Work w = Work::at<S>(index, width, outs);
            // The box begins one pixel before the tile; of an upsampled image, outputs in odd places see the pixel
            // after instead of the one before.
            const int from_x = w.x - 1 + (S::SCALE - 1) * (w.place % S::SCALE),
                      from_y = w.y - 1 + (S::SCALE - 1) * (w.place / S::SCALE);
            for (int step = 0; step < steps; step++) {
                const int channel = step / S::TAPS * CHANNELS, kx = step % S::TAPS;
                const uint32_t full = pixels_full + 8 * pixel_ring.stage;
                wait(pixels_free + 8 * pixel_ring.stage, pixel_ring.phase ^ 1);
                arrive_expecting(full, S::PIXEL_BYTES);
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
                    const uint32_t full = weights_full + 8 * weight_ring.stage;
                    wait(weights_free + 8 * weight_ring.stage, weight_ring.phase ^ 1);
                    arrive_expecting(full, S::WEIGHT_BYTES);
                    copy_box(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES, weight, w.place * outs + w.out,
                             ky * S::TAPS + kx, channel, full);
                    weight_ring.advance();
                }
            }
        }
    } else if (warpgroup == 0) {
        if constexpr (S::ROUNDS) {
            // Lets a consumer round its half of a tile: the half before is stored, and the residual, if any, is being
            // loaded into its place.
            const auto open_half = [&](int consumer, int index) {
                if (threadIdx.x != 32 || index >= end) return;
                const uint32_t barrier = open + 8 * consumer;
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
                    wait(rounded + 8 * consumer, turn.phase);
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
        }
    } else {
        const int consumer = warpgroup - 1;
        // This warpgroup's share of the rows of weights, or of pixels.
        const uint32_t own_weights = S::ROUNDS ? consumer * OWN_OUTS * ROW_BYTES : 0;
        const uint32_t own_pixels = S::ROUNDS ? 0 : consumer * (S::PIXELS / CONSUMERS) * ROW_BYTES;
        const auto release = [&](uint32_t barrier) {
            if (threadIdx.x % 32 == 0) arrive(barrier);
        };
        float biases[2];
        if constexpr (S::ROUNDS) {
            // All tiles of the block have these outputs, because the number of blocks is a multiple of that of the
            // output tiles.
            const int first_own = blockIdx.x % ceil_div(outs, S::OUTS) * S::OUTS + consumer * OWN_OUTS;
            if (first_own >= outs) {
                // There are none: the other consumer has the tensor cores to itself.
                for (int index = begin; index < end; index += blocks) {
                    for (int step = 0; step < steps; step++) {
                        wait(pixels_full + 8 * pixel_ring.stage, pixel_ring.phase);
                        for (int ky = 0; ky < S::TAPS; ky++) {
                            wait(weights_full + 8 * weight_ring.stage, weight_ring.phase);
                            release(weights_free + 8 * weight_ring.stage);
                            weight_ring.advance();
                        }
                        release(pixels_free + 8 * pixel_ring.stage);
                        pixel_ring.advance();
                    }
                    wait(open + 8 * consumer, turn.phase);
                    turn.advance();
                    release(rounded + 8 * consumer);
                }
                return;
            }
            const int out = first_own + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
            biases[0] = bias_of(bias, out, outs), biases[1] = bias_of(bias, out + 8, outs);
        }
        for (int index = begin; index < end; index += blocks) {
            float sums[S::PARTS][S::SUMS];
            int last_pixels = 0, last_weights = 0;
            for (int step = 0; step < steps; step++) {
                wait(pixels_full + 8 * pixel_ring.stage, pixel_ring.phase);
#pragma unroll
                for (int ky = 0; ky < S::TAPS; ky++) {
                    const uint64_t pixels =
                        describe(base + pixel_ring.stage * S::PIXEL_BYTES + own_pixels + S::row_of(ky) * S::WIDTH * ROW_BYTES,
                                 0);
                    const uint64_t weights =
                        describe(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES + own_weights, 0);
                    wait(weights_full + 8 * weight_ring.stage, weight_ring.phase);
                    begin_multiply();
#pragma unroll
                    for (int c = 0; c < CHANNELS; c += 16)
#pragma unroll
                        for (int part = 0; part < S::PARTS; part++) {
                            const uint64_t pixels_at = pixels + ((part * 64 * ROW_BYTES + c * 2) >> 4),
                                           weights_at = weights + ((c * 2) >> 4);
                            multiply(sums[part], S::ROUNDS ? weights_at : pixels_at, S::ROUNDS ? pixels_at : weights_at,
                                     step + ky + c > 0);
                        }
                    commit_multiply();
                    // The multiplies before these are done, so the stages that they read are free.
                    wait_multiply<1>();
                    if (step + ky > 0) {
                        release(weights_free + 8 * last_weights);
                        if (ky == 0) release(pixels_free + 8 * last_pixels);
                    }
                    last_weights = weight_ring.stage;
                    weight_ring.advance();
                }
                last_pixels = pixel_ring.stage;
                pixel_ring.advance();
            }
            wait_multiply<0>();
#pragma unroll
            for (int part = 0; part < S::PARTS; part++) pin(sums[part]);
            release(weights_free + 8 * last_weights);
            release(pixels_free + 8 * last_pixels);
            if constexpr (S::ROUNDS) {
                wait(open + 8 * consumer, turn.phase);
                turn.advance();
                if (adds) {
                    round_tile<S, true>(sums[0], biases, relu, half_of(consumer));
                    // TMA writes the next residual there.
                    show_to_tma();
                } else {
                    round_tile<S, false>(sums[0], biases, relu, half_of(consumer));
                }
                __syncwarp();
                release(rounded + 8 * consumer);
            } else {
                store_sums<S>(sums, bias, Work::at<S>(index, width, outs), consumer, out, ld_out, height, width, outs);
            }
        }
    }
}

}  // namespace conv2d

// Shared memory, which the launcher passes, is `BARRIERS` of the shape and 16 bytes for each stage and each consumer.
// The launcher's numbers must agree with `Shape`.
#define CONV2D(name, ...)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128 + 128 * conv2d::CONSUMERS, 1)                                   \
        name(const __grid_constant__ hopper::TensorMap x, const __grid_constant__ hopper::TensorMap weight,          \
             const __grid_constant__ hopper::TensorMap residual, int adds, int relu, const bf16* bias, bf16* out,    \
             long long ld_out, int height, int width, int channels, int outs, float2* partial, float* counts,        \
             int first, int end, int first_row, ChannelStatistics* carry) {                                          \
        conv2d::convolve<conv2d::Shape<__VA_ARGS__>>(x, weight, residual, adds, relu, bias, out, ld_out, height,     \
                                                     width, channels, outs, partial, counts, first, end, first_row,  \
                                                     carry);                                                         \
    }

#endif
