// 3 x 3 convolution for Hopper, stride 1 and zeros around the picture, + bias + residual: an implicit GEMM with warpgroup matrix multiplies.
// The same kernel with 2 x 2 taps is a convolution of a picture that was upsampled, without that picture.
//
//   x         tensor map over [height, width, channels] bf16: boxes of 64 channels (128-byte swizzle), WIDTH pixels, HEIGHT + TAPS - 1 rows
//   weight    tensor map over [outs, TAPS * TAPS, channels] bf16, taps ordered (ky, kx): boxes of 64 channels, one tap, OUTS outputs
//   residual  tensor map over [height, width, outs] bf16: boxes of 64 outputs (128-byte swizzle), WIDTH pixels, HEIGHT / CONSUMERS rows; read
//             only if `adds`, which upsampled and where OUTS is 8 it may not be; may be of out
//   bias      [outs] bf16
//   out       [height * width, outs] bf16, row stride ld_out; rounded once
//   partial   [gridDim.x / ceil(outs / OUTS), outs] float2, not where OUTS is 8: mean of the rounded values of a split of the pixels, and the
//             sum of squares about it; for a group norm, which then need not read `out` once more
//   counts    [as many] float: pixels of each split
//   Upsampled (TAPS = 2): weight [4 * outs, 4, channels], as `collapse_taps_bf16` below makes it; out [2 height * 2 width, outs].
//
// Mapping   A block for each multiprocessor takes tiles of WIDTH x HEIGHT pixels and OUTS outputs in turn; neighbouring blocks have the
//           outputs of one place, so that its pixels come from L2 but for the first. Warpgroups 1 and 2 own a half of the tile's pixels each,
//           and multiply [pixels, 64] by [outs, 64]^T for every tap and 64 channels. Warp 0 fetches for them.
//           A box of pixels begins kx - 1 to the right of the tile and one row above it, in signed coordinates: TMA puts zeros
//           where the picture ends. It has rows for all ky: a tap is the same box, begun ky * WIDTH pixels later. So a pixel is fetched
//           TAPS times and not TAPS * TAPS times, and what limits a convolution from L2 otherwise, does not.
//           Pixels and weights have slots of their own, as one box of pixels serves TAPS boxes of weights.
// Upsampled Of a picture with every pixel four times, an output sees 2 x 2 different pixels; which of the 3 x 3 weights fall on one depends on
//           whether the output's row and column are even. So there are four sets of 2 x 2 weights, sums of the 3 x 3 ones; they round once
//           more, to bf16. A tile is of one set, and its outputs are two apart.
// Stores    The warps that multiply only add bias and residual, and round into shared memory; warps 1 to 3 store from there while the next
//           tile is multiplied. The rounded half of a tile lies as TMA would put it there: panels of 64 outputs, swizzled. And where there is a
//           residual, TMA does, as soon as the half before is stored: each value is then replaced by the sum with it.
//           With eight outputs the warps that multiply store: it is four bytes a thread and row.
// Moments   A block's pixels are one split, over all its tiles. A lane that stores keeps those of eight outputs and its pixels. Of a tile they
//           are plain sums: bf16 has 8 digits and a square 16, so that up to 256 values that are far from zero for their spread, and so of
//           one exponent, lose nothing in the 24 of a float. Tiles, whose number has no bound, and at last lanes, are joined as means and
//           sums of squares about them. All in a fixed order.
// Needs     sm_90a; channels % 8 == 0, outs % 8 == 0, rows 16-byte aligned. Channels are fetched 64 at a time: zeros behind the last.
//           gridDim.x is a multiple of ceil(outs / OUTS), so that a block's tiles are all of the same outputs.
// Flops     2 * height * width * TAPS * TAPS * channels * outs (four times for upsampled).   512 x 512, 512 -> 512: 1237 GFLOP
// Bound     tensor cores. 1237 GFLOP at 989 TFLOP/s (H200, dense bf16) = 1251 us
// Measured  (not yet)
// Tried     by shape, standalone, us of 16x16x128, 16x8x256, 16x8x128: 512 x 512, 512 -> 512: 1488, 1562, 1629; 256 -> 256 with residual: 513,
//           513, 482; 1024 x 1024, 128 -> 128: 496, 979, 470; 64 x 64, 512 -> 512: 52, 52, 30; three consumers (16x24x128) spill and are
//           slower by 5 to 45% everywhere but once. im2col and cuBLASLt: 2632 us for the first, 1657 for 1024 x 1024, 128 -> 128.
//           Everything behind the multiplies in the warps that multiply, us without moments / with: 1024 x 1024, 128 -> 128: 433 / 462, with
//           residual 612 / 630; 256 -> 256: 1524 / 1628; 512 x 512, 512 -> 512: 1477 / 1550; 256 -> 256: 393 / 415, with residual 480 / 492. To
//           ask for the residual in L2 ahead, or let the second consumer begin up to 6 taps after the first: no difference
#include "common.cuh"
#include "moments.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "conv2d_sm90a.cuh"

namespace conv2d {

using namespace hopper;

constexpr int CHANNELS = 64;  // of a box: 128 bytes
constexpr int ROW_BYTES = CHANNELS * 2;
constexpr int CONSUMERS = 2, STORERS = 3;  // warpgroups that multiply, warps that store

template <int TAPS_, int WIDTH_, int HEIGHT_, int OUTS_, int PIXEL_SLOTS_, int WEIGHT_SLOTS_>
struct Shape {
    static constexpr int TAPS = TAPS_, WIDTH = WIDTH_, HEIGHT = HEIGHT_, OUTS = OUTS_, PIXEL_SLOTS = PIXEL_SLOTS_, WEIGHT_SLOTS = WEIGHT_SLOTS_;
    // Sets of weights: one, or one for each place in the square that a pixel becomes.
    static constexpr int PLACES = TAPS == 2 ? 4 : 1, SCALE = TAPS == 2 ? 2 : 1;
    static constexpr int PIXELS = WIDTH * HEIGHT / CONSUMERS;  // of a consumer
    static constexpr int PARTS = PIXELS / 64;
    static constexpr int PIXEL_BYTES = WIDTH * (HEIGHT + TAPS - 1) * ROW_BYTES, WEIGHT_BYTES = OUTS * ROW_BYTES;
    // What a consumer rounds, in panels of 64 outputs; none where it stores by itself.
    static constexpr int PANELS = OUTS / 64, PANEL_BYTES = PIXELS * ROW_BYTES, ROUNDED_BYTES = PANELS * PANEL_BYTES;
    static constexpr bool ROUNDS = PANELS > 0;
    static constexpr int WEIGHTS = PIXEL_SLOTS * PIXEL_BYTES, ROUNDED = WEIGHTS + WEIGHT_SLOTS * WEIGHT_BYTES;
    static constexpr int BIAS = ROUNDED + CONSUMERS * ROUNDED_BYTES, BARRIERS = BIAS + OUTS * sizeof(float);
    static_assert(PARTS * 64 * CONSUMERS == WIDTH * HEIGHT, "whole multiplies");
    static_assert(WIDTH % 8 == 0 && WEIGHT_BYTES % 1024 == 0, "boxes and taps begin where the swizzle does");
    static_assert(HEIGHT % CONSUMERS == 0 && PANEL_BYTES % 1024 == 0, "a consumer's residual is boxes, which begin where the swizzle does");
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

    // The row of out that the tile's pixel is; -1 outside of the picture.
    template <class S>
    __device__ __forceinline__ int row(uint32_t pixel, int height, int width) const {
        const int at_y = y + int(pixel / S::WIDTH), at_x = x + int(pixel % S::WIDTH);
        if (at_y >= height || at_x >= width) return -1;
        return (at_y * S::SCALE + place / S::SCALE) * (width * S::SCALE) + at_x * S::SCALE + place % S::SCALE;
    }
};

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Where 16 bytes of a consumer's pixel are, by the number of their eight outputs.
template <class S>
__device__ __forceinline__ uint32_t chunk_at(uint32_t rounded, uint32_t pixel, uint32_t chunk) {
    return rounded + chunk / 8 * S::PANEL_BYTES + pixel * ROW_BYTES + ((chunk % 8 ^ pixel % 8) << 4);
}

// sums + bias, + what lies in its place if ADDS, rounded, to a consumer's half of the rounded tile; by its warps, 16 pixels of each part each.
// A lane has outputs 8 n + lane % 4 * 2 and the next, of pixels lane / 4 and lane / 4 + 8.
template <class S, bool ADDS>
__device__ __forceinline__ void round_tile(const float (&sums)[S::PARTS][S::OUTS / 2], const float* bias, uint32_t rounded) {
    const int lane = threadIdx.x % 32;
    // The lane's row of the four matrices that a warp moves at once, and their first chunk: two are side by side.
    const uint32_t first = chunk_at<S>(rounded, threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8 + lane % 8, lane / 16);
    // A step is 16 outputs of a part. What it reads is on its way one step ahead.
    constexpr int STEPS = S::OUTS / 16 * S::PARTS;
    float2 biases[2][2];
    uint32_t added[2][4];
    // n is even, so chunks n and n + 1 of a row are where chunks 0 and 1 are, but for the bits of n.
    const auto place = [&](int step) {
        const int n = step / S::PARTS * 2;
        return (first ^ (n % 8 << 4)) + n / 8 * S::PANEL_BYTES + step % S::PARTS * 64 * ROW_BYTES;
    };
    const auto read = [&](int step) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            biases[step % 2][i] = *reinterpret_cast<const float2*>(bias + (step / S::PARTS * 2 + i) * 8 + lane % 4 * 2);
        if (ADDS) load_matrices(place(step), added[step % 2]);
    };
    read(0);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (step + 1 < STEPS) read(step + 1);
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = &sums[step % S::PARTS][(step / S::PARTS * 2 + i / 2) * 4 + i % 2 * 2];
            float values[2] = {pair[0] + biases[step % 2][i / 2].x, pair[1] + biases[step % 2][i / 2].y};
            if (ADDS) values[0] += low(added[step % 2][i]), values[1] += high(added[step % 2][i]);
            pairs[i] = pack_bf16(values[0], values[1]);
        }
        store_matrices(place(step), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// sums + bias, rounded, to out, by the warps that have them.
template <class S>
__device__ __forceinline__ void store_sums(const float (&sums)[S::PARTS][S::OUTS / 2], const float* bias, const Work& w, int consumer, bf16* out,
                                           long long ld_out, int height, int width, int outs) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::PARTS * 2; i++) {
        const int pixel = i / 2 * 64 + threadIdx.x / 32 % 4 * 16 + i % 2 * 8 + lane / 4;
        const int row = w.row<S>(consumer * S::PIXELS + pixel, height, width);
        if (row < 0) continue;
#pragma unroll
        for (int n = 0; n < S::OUTS / 8; n++) {
            const int at = n * 8 + lane % 4 * 2;
            if (w.out + at >= outs) continue;
            const float* pair = &sums[i / 2][n * 4 + i % 2 * 2];
            *reinterpret_cast<uint32_t*>(out + row * ld_out + w.out + at) = pack_bf16(pair[0] + bias[at], pair[1] + bias[at + 1]);
        }
    }
}

// What warps 1 to 3 do. A lane has the same eight outputs of every tile, and of each consumer's pixels every STRIDE-th.
template <class S>
struct Storer {
    static constexpr int CHUNKS = S::OUTS / 8, LANES = STORERS * 32, STRIDE = LANES / CHUNKS;
    static constexpr int AT_ONCE = 4;  // pixels of a lane that are on their way
    static_assert(LANES % CHUNKS == 0, "a lane keeps its outputs");
    static_assert(CONSUMERS * (S::PIXELS / STRIDE + 1) <= 256, "sums of squares are exact");
    static_assert(STRIDE * S::OUTS * sizeof(Moments) <= S::ROUNDED_BYTES, "moments of all lanes fit where the first half was");

    const uint32_t thread = threadIdx.x - 32, chunk = thread % CHUNKS, first_pixel = thread / CHUNKS;
    Moments running[8] = {};
    // Of the tile so far.
    float totals[8], squares[8];
    int count;

    __device__ __forceinline__ void begin_tile() {
        count = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) totals[i] = squares[i] = 0.0f;
    }

    __device__ __forceinline__ void store_half(const Work& w, int consumer, uint32_t rounded, bf16* out, long long ld_out, int height, int width,
                                               int outs) {
        const int first_out = w.out + int(chunk) * 8;
        for (uint32_t first = first_pixel; first < S::PIXELS; first += AT_ONCE * STRIDE) {
            uint4 raw[AT_ONCE];
            // Behind the last pixel the last is read again.
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) raw[i] = load_shared_16(chunk_at<S>(rounded, min(first + i * STRIDE, S::PIXELS - 1u), chunk));
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const uint32_t pixel = first + i * STRIDE;
                const int row = w.row<S>(consumer * S::PIXELS + pixel, height, width);
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
    }

    __device__ __forceinline__ void end_tile() {
        const float pixels = count, share = __fdividef(1.0f, fmaxf(pixels, 1.0f));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // About `mean` as it was rounded: what it lacks, times the pixels, is the rest.
            const float mean = totals[i] * share, rest = fmaf(-mean, pixels, totals[i]);
            const float about_mean = fmaf(-mean, rest, fmaf(-mean, totals[i], squares[i]));
            running[i] = join(running[i], {pixels, mean, fmaxf(about_mean, 0.0f)});
        }
    }

    // Joins the lanes of an output, when all have stored their last tile. `shared` has room for all of them.
    __device__ __forceinline__ void leave_moments(Moments* shared, float2* partial, float* counts, int outs) {
        const int out_tiles = ceil_div(outs, S::OUTS), split = blockIdx.x / out_tiles, first_out = blockIdx.x % out_tiles * S::OUTS;
#pragma unroll
        for (int i = 0; i < 8; i++) shared[first_pixel * S::OUTS + chunk * 8 + i] = running[i];
        wait_turn(1, LANES);
        for (int i = int(thread); i < S::OUTS; i += LANES) {
            Moments all = shared[i];
            for (int lane = 1; lane < STRIDE; lane++) all = join(all, shared[lane * S::OUTS + i]);
            if (first_out + i < outs) partial[(long long)split * outs + first_out + i] = make_float2(all.mean, all.squares);
            if (first_out + i == 0) counts[split] = all.count;
        }
    }
};

template <class S>
__device__ __forceinline__ void convolve(const TensorMap& x, const TensorMap& weight, const TensorMap& residual, int adds, const bf16* bias,
                                         bf16* out, long long ld_out, int height, int width, int channels, int outs, float2* partial,
                                         float* counts) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    const uint32_t pixels_full = base + S::BARRIERS, pixels_free = pixels_full + 8 * S::PIXEL_SLOTS,
                   weights_full = pixels_free + 8 * S::PIXEL_SLOTS, weights_free = weights_full + 8 * S::WEIGHT_SLOTS,
                   open = weights_free + 8 * S::WEIGHT_SLOTS, rounded = open + 8 * CONSUMERS;
    float* biases = reinterpret_cast<float*>(shared + S::BIAS);
    // All the block's tiles have these outputs, as the blocks are a multiple of what the outputs are divided into.
    const int first_out = blockIdx.x % ceil_div(outs, S::OUTS) * S::OUTS;
    for (int i = threadIdx.x; i < S::OUTS; i += blockDim.x) biases[i] = first_out + i < outs ? __bfloat162float(bias[first_out + i]) : 0.0f;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < S::PIXEL_SLOTS; slot++) {
            init_barrier(pixels_full + 8 * slot, 1);
            init_barrier(pixels_free + 8 * slot, CONSUMERS * 4);
        }
        for (int slot = 0; slot < S::WEIGHT_SLOTS; slot++) {
            init_barrier(weights_full + 8 * slot, 1);
            init_barrier(weights_free + 8 * slot, CONSUMERS * 4);
        }
        for (int consumer = 0; consumer < CONSUMERS; consumer++) {
            init_barrier(open + 8 * consumer, 1);
            init_barrier(rounded + 8 * consumer, 4);
        }
        publish_barriers();
    }
    __syncthreads();

    const int items = ceil_div(outs, S::OUTS) * S::PLACES * ceil_div(width, S::WIDTH) * ceil_div(height, S::HEIGHT);
    // 64 channels at one kx; they take TAPS boxes of weights.
    const int steps = ceil_div(channels, CHANNELS) * S::TAPS;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const auto half_of = [&](int consumer) { return base + S::ROUNDED + consumer * S::ROUNDED_BYTES; };
    Ring<S::PIXEL_SLOTS> pixel_ring;
    Ring<S::WEIGHT_SLOTS> weight_ring;
    Ring<1> turn;
    if (warp == 0) {
        if (threadIdx.x != 0) return;
        for (int index = blockIdx.x; index < items; index += gridDim.x) {
            const Work w = Work::at<S>(index, width, outs);
            // One pixel before the tile; upsampled, outputs in odd places see the pixel behind instead of the one before.
            const int from_x = w.x - 1 + (S::SCALE - 1) * (w.place % S::SCALE), from_y = w.y - 1 + (S::SCALE - 1) * (w.place / S::SCALE);
            for (int step = 0; step < steps; step++) {
                const int channel = step / S::TAPS * CHANNELS, kx = step % S::TAPS;
                const uint32_t full = pixels_full + 8 * pixel_ring.slot;
                wait(pixels_free + 8 * pixel_ring.slot, pixel_ring.phase ^ 1);
                arrive_expecting(full, S::PIXEL_BYTES);
                copy_box(base + pixel_ring.slot * S::PIXEL_BYTES, x, from_y, from_x + kx, channel, full);
                pixel_ring.advance();
#pragma unroll
                for (int ky = 0; ky < S::TAPS; ky++) {
                    const uint32_t full = weights_full + 8 * weight_ring.slot;
                    wait(weights_free + 8 * weight_ring.slot, weight_ring.phase ^ 1);
                    arrive_expecting(full, S::WEIGHT_BYTES);
                    copy_box(base + S::WEIGHTS + weight_ring.slot * S::WEIGHT_BYTES, weight, w.place * outs + w.out, ky * S::TAPS + kx, channel,
                             full);
                    weight_ring.advance();
                }
            }
        }
    } else if (warpgroup == 0) {
        if constexpr (S::ROUNDS) {
            // Lets a consumer round its half of a tile: the half before is stored, and the residual is on its way to where it was.
            const auto open_half = [&](int consumer, int index) {
                if (threadIdx.x != 32 || index >= items) return;
                const uint32_t barrier = open + 8 * consumer;
                if (!adds) {
                    arrive(barrier);
                    return;
                }
                const Work w = Work::at<S>(index, width, outs);
                arrive_expecting(barrier, S::ROUNDED_BYTES);
                for (int panel = 0; panel < S::PANELS; panel++)
                    copy_box(half_of(consumer) + panel * S::PANEL_BYTES, residual, w.y + consumer * (S::HEIGHT / CONSUMERS), w.x,
                             w.out + panel * 64, barrier);
            };
            Storer<S> storer;
            for (int consumer = 0; consumer < CONSUMERS; consumer++) open_half(consumer, blockIdx.x);
            for (int index = blockIdx.x; index < items; index += gridDim.x) {
                const Work w = Work::at<S>(index, width, outs);
                storer.begin_tile();
                for (int consumer = 0; consumer < CONSUMERS; consumer++) {
                    wait(rounded + 8 * consumer, turn.phase);
                    storer.store_half(w, consumer, half_of(consumer), out, ld_out, height, width, outs);
                    wait_turn(1, storer.LANES);
                    open_half(consumer, index + gridDim.x);
                }
                storer.end_tile();
                turn.advance();
            }
            storer.leave_moments(reinterpret_cast<Moments*>(shared + S::ROUNDED), partial, counts, outs);
        }
    } else {
        const int consumer = warpgroup - 1, first_pixel = consumer * S::PIXELS;
        const auto release = [&](uint32_t barrier) {
            if (threadIdx.x % 32 == 0) arrive(barrier);
        };
        for (int index = blockIdx.x; index < items; index += gridDim.x) {
            float sums[S::PARTS][S::OUTS / 2];
            int last_pixels = 0, last_weights = 0;
            for (int step = 0; step < steps; step++) {
                wait(pixels_full + 8 * pixel_ring.slot, pixel_ring.phase);
#pragma unroll
                for (int ky = 0; ky < S::TAPS; ky++) {
                    const uint64_t pixels = describe(base + pixel_ring.slot * S::PIXEL_BYTES + (first_pixel + ky * S::WIDTH) * ROW_BYTES, 0);
                    const uint64_t weights = describe(base + S::WEIGHTS + weight_ring.slot * S::WEIGHT_BYTES, 0);
                    wait(weights_full + 8 * weight_ring.slot, weight_ring.phase);
                    begin_multiply();
#pragma unroll
                    for (int c = 0; c < CHANNELS; c += 16)
#pragma unroll
                        for (int part = 0; part < S::PARTS; part++)
                            multiply(sums[part], pixels + ((part * 64 * ROW_BYTES + c * 2) >> 4), weights + ((c * 2) >> 4), step + ky + c > 0);
                    commit_multiply();
                    // The multiplies before these are done, and what they read is free.
                    wait_multiply<1>();
                    if (step + ky > 0) {
                        release(weights_free + 8 * last_weights);
                        if (ky == 0) release(pixels_free + 8 * last_pixels);
                    }
                    last_weights = weight_ring.slot;
                    weight_ring.advance();
                }
                last_pixels = pixel_ring.slot;
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
                    round_tile<S, true>(sums, biases, half_of(consumer));
                    // TMA writes there next.
                    show_to_tma();
                } else {
                    round_tile<S, false>(sums, biases, half_of(consumer));
                }
                __syncwarp();
                release(rounded + 8 * consumer);
            } else {
                store_sums<S>(sums, biases, Work::at<S>(index, width, outs), consumer, out, ld_out, height, width, outs);
            }
        }
    }
}

}  // namespace conv2d

// Shared memory is `BARRIERS` of the shape, 16 bytes for each slot and for each consumer, which the launcher passes; it must agree with `Shape`.
#define CONV2D(name, ...)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128 + 128 * conv2d::CONSUMERS, 1) name(                                                       \
        const __grid_constant__ hopper::TensorMap x, const __grid_constant__ hopper::TensorMap weight,                                         \
        const __grid_constant__ hopper::TensorMap residual, int adds, const bf16* bias, bf16* out, long long ld_out, int height, int width,    \
        int channels, int outs, float2* partial, float* counts) {                                                                              \
        conv2d::convolve<conv2d::Shape<__VA_ARGS__>>(x, weight, residual, adds, bias, out, ld_out, height, width, channels, outs, partial,     \
                                                     counts);                                                                                  \
    }

// The shapes: taps, tile width, tile height, outputs, slots of pixels, slots of weights.
CONV2D(conv2d_bf16_16x16x128_sm90, 3, 16, 16, 128, 2, 5)
CONV2D(conv2d_bf16_16x8x256_sm90, 3, 16, 8, 256, 3, 3)
CONV2D(conv2d_bf16_16x8x128_sm90, 3, 16, 8, 128, 4, 6)
CONV2D(conv2d_bf16_32x8x8_sm90, 3, 32, 8, 8, 5, 15)
CONV2D(upsample_conv2d_bf16_16x16x128_sm90, 2, 16, 16, 128, 3, 3)
CONV2D(upsample_conv2d_bf16_16x8x128_sm90, 2, 16, 8, 128, 4, 7)

// weight [outs, 9 * channels], row stride ld_weight -> out [4 * outs, 4 * channels], dense: for place (py, px) of a square and output o,
// row (2 py + px) * outs + o holds taps (dy, dx) ordered so. channels % 8 == 0.
extern "C" __global__ void __launch_bounds__(256) collapse_taps_bf16(const bf16* weight, long long ld_weight, bf16* out, int outs, int channels) {
    for_each_run<8>(16 * outs, channels, [=](long long row, int column) {
        const int tap = row % 4, o = row / 4 % outs, place = row / 4 / outs;
        // Tap 0 of an even place is ky 0, tap 1 is ky 1 and 2; of an odd place they are 0 and 1, and 2.
        const auto first = [](int odd, int tap) { return tap == 0 ? 0 : 1 + odd; };
        const auto last = [](int odd, int tap) { return tap == 0 ? odd : 2; };
        float sums[8] = {};
        for (int ky = first(place / 2, tap / 2); ky <= last(place / 2, tap / 2); ky++)
            for (int kx = first(place % 2, tap % 2); kx <= last(place % 2, tap % 2); kx++) {
                float values[8];
                load(weight + o * ld_weight + (ky * 3 + kx) * channels + column, values);
#pragma unroll
                for (int i = 0; i < 8; i++) sums[i] += values[i];
            }
        store(out + row * channels + column, sums);
    });
}

#endif
