// 3 x 3 convolution for Hopper, stride 1 and zeros around the picture, + bias + residual: an implicit GEMM with warpgroup matrix multiplies.
// The same kernel with 2 x 2 taps is a convolution of a picture that was upsampled, without that picture.
//
//   x         tensor map over [height, width, channels] bf16: boxes of 64 channels (128-byte swizzle), WIDTH pixels, HEIGHT + TAPS - 1 rows
//   weight    tensor map over [outs, TAPS * TAPS, channels] bf16, taps ordered (ky, kx): boxes of 64 channels, one tap, OUTS outputs
//   bias      [outs] bf16, at a multiple of 4 bytes
//   residual  [height * width, outs] bf16, row stride ld_residual; may be null, may be out
//   out       [height * width, outs] bf16, row stride ld_out; rounded once
//   partial   [gridDim.x / ceil(outs / OUTS) * CONSUMERS, outs] float2, not where OUTS is 8: mean of the rounded values of a split of the pixels,
//             and the sum of squares about it; for a group norm, which then need not read `out` once more
//   counts    [as many] float: pixels of each split
//   Upsampled (TAPS = 2): weight [4 * outs, 4, channels], as `collapse_taps_bf16` below makes it; out [2 height * 2 width, outs].
//
// Mapping   A block for each multiprocessor takes tiles of WIDTH x HEIGHT pixels and OUTS outputs in turn; neighbouring blocks have the
//           outputs of one place, so that its pixels come from L2 but for the first. Warpgroup 0 fetches; the others own runs of the
//           tile's pixels, and multiply [pixels, 64] by [outs, 64]^T for every tap and 64 channels.
//           A box of pixels begins kx - 1 to the right of the tile and one row above it, in signed coordinates: TMA puts zeros
//           where the picture ends. It has rows for all ky: a tap is the same box, begun ky * WIDTH pixels later. So a pixel is fetched
//           TAPS times and not TAPS * TAPS times, and what limits a convolution from L2 otherwise, does not.
//           Pixels and weights have slots of their own, as one box of pixels serves TAPS boxes of weights.
// Upsampled Of a picture with every pixel four times, an output sees 2 x 2 different pixels; which of the 3 x 3 weights fall on one depends on
//           whether the output's row and column are even. So there are four sets of 2 x 2 weights, sums of the 3 x 3 ones; they round once
//           more, to bf16. A tile is of one set, and its outputs are two apart.
// Turns     What a consumer does with its sums hides behind the other's multiplies as far as the two are apart. So the second begins `lead` taps
//           after the first, and stays as far behind: while one stores, the other has the tensor cores to itself and catches up as much.
//           The slots of the weights, which both read, bound how far that can be.
// Residual  is read when a tile's multiplies are done, with little else to do meanwhile. So it is asked for, to L2, when the tile's first
//           pixels are, and loaded two steps before it is added: the compiler keeps a load behind the stores before it, as out may be residual.
// Moments   A consumer's pixels are one split, over all its tiles. Of a tile they are plain sums: bf16 has 8 digits and a square 16, so that up
//           to 256 values that are far from zero for their spread, and so of one exponent, lose nothing in the 24 of a float. Tiles, whose
//           number has no bound, are joined as means and sums of squares about them. All in a fixed order.
// Needs     sm_90a; channels % 8 == 0, outs % 8 == 0, rows 16-byte aligned. Channels are fetched 64 at a time: zeros behind the last.
//           gridDim.x is a multiple of ceil(outs / OUTS), so that a block's tiles are all of the same outputs; lead < WEIGHT_SLOTS and
//           lead < TAPS * PIXEL_SLOTS.
// Flops     2 * height * width * TAPS * TAPS * channels * outs (four times for upsampled).   512 x 512, 512 -> 512: 1237 GFLOP
// Bound     tensor cores. 1237 GFLOP at 989 TFLOP/s (H200, dense bf16) = 1251 us
// Measured  (not yet)
// Tried     by shape, standalone, us of 16x16x128, 16x8x256, 16x8x128: 512 x 512, 512 -> 512: 1488, 1562, 1629; 256 -> 256 with residual: 513,
//           513, 482; 1024 x 1024, 128 -> 128: 496, 979, 470; 64 x 64, 512 -> 512: 52, 52, 30; three consumers (16x24x128) spill and are
//           slower by 5 to 45% everywhere but once. im2col and cuBLASLt: 2632 us for the first, 1657 for 1024 x 1024, 128 -> 128.
//           A residual that is read where it is added: 1024 x 1024, 128 -> 128: 612 us, and 433 without residual
#include "common.cuh"
#include "moments.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "conv2d_sm90a.cuh"

namespace conv2d {

using namespace hopper;

constexpr int CHANNELS = 64;  // of a box: 128 bytes
constexpr int CONSUMERS = 2;

template <int TAPS_, int WIDTH_, int HEIGHT_, int OUTS_, int PIXEL_SLOTS_, int WEIGHT_SLOTS_>
struct Shape {
    static constexpr int TAPS = TAPS_, WIDTH = WIDTH_, HEIGHT = HEIGHT_, OUTS = OUTS_, PIXEL_SLOTS = PIXEL_SLOTS_, WEIGHT_SLOTS = WEIGHT_SLOTS_;
    // Sets of weights: one, or one for each place in the square that a pixel becomes.
    static constexpr int PLACES = TAPS == 2 ? 4 : 1, SCALE = TAPS == 2 ? 2 : 1;
    static constexpr int PIXELS = WIDTH * HEIGHT / CONSUMERS;  // of a consumer
    static constexpr int PARTS = PIXELS / 64;
    static constexpr int PIXEL_BYTES = WIDTH * (HEIGHT + TAPS - 1) * CHANNELS * 2, WEIGHT_BYTES = OUTS * CHANNELS * 2;
    static constexpr int WEIGHTS = PIXEL_SLOTS * PIXEL_BYTES, SUMS = WEIGHTS + WEIGHT_SLOTS * WEIGHT_BYTES;
    // Moments: outputs in groups of 32, one for each lane; two groups of four warps' sums in shared memory.
    static constexpr int GROUPS = OUTS / 32, RUNNING = ceil_div(OUTS, 128), SUMS_BYTES = GROUPS > 0 ? 2 * 4 * 32 * sizeof(float2) : 0;
    static constexpr int BARRIERS = SUMS + CONSUMERS * SUMS_BYTES;
    static_assert(PARTS * 64 * CONSUMERS == WIDTH * HEIGHT, "whole multiplies");
    static_assert(GROUPS % 4 == 0 && PIXELS % WIDTH == 0 && PIXELS <= 256, "moments are of whole rows, and a thread's outputs 128 apart");
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
};

// Asks for the residual of the tile, by the lanes of a warp.
template <class S>
__device__ __forceinline__ void prefetch_residual(const Work& w, const bf16* residual, long long ld_residual, int height, int width, int outs) {
    const int bytes = min(S::OUTS, outs - w.out) * 2;
    for (int pixel = threadIdx.x % 32; pixel < S::WIDTH * S::HEIGHT; pixel += 32) {
        const int y = w.y + pixel / S::WIDTH, x = w.x + pixel % S::WIDTH;
        if (y < height && x < width) prefetch_to_l2(residual + (long long)(y * width + x) * ld_residual + w.out, bytes);
    }
}

// values[k] summed over the eight lanes of equal lane % 4, for the k whose binary digits are, the highest first, bits 2, 3 and 4 of the lane.
__device__ __forceinline__ float fold(float (&values)[8]) {
#pragma unroll
    for (int step = 4, half = 4; half > 0; step *= 2, half /= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int k = 0; k < half; k++) {
            const float got = __shfl_xor_sync(~0u, upper ? values[k] : values[k + half], step);
            values[k] = (upper ? values[k + half] : values[k]) + got;
        }
    }
    return values[0];
}

// Adds what a consumer's four warps have of a tile to its moments: thread t keeps those of outputs t, t + 128 and so on. `totals` are sums
// and sums of squares over a warp's pixels, of each group of 32 outputs that which `fold` gave this lane; `shared` is the consumer's.
template <class S>
__device__ __forceinline__ void join_tile(Moments (&running)[S::RUNNING], const float2 (&totals)[S::GROUPS], float2* shared, float count,
                                          int barrier) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int output = (lane / 4 % 2 * 2 + lane / 8 % 2) * 8 + lane % 4 * 2 + lane / 16;
#pragma unroll
    for (int group = 0; group < S::GROUPS; group++) {
        // A group's place is written again when all have been at the next group's barrier, and so are done with it.
        float2* place = shared + group % 2 * 128;
        place[warp * 32 + output] = totals[group];
        wait_turn(barrier, 128);
        if (warp != group % 4) continue;
        float2 total = place[lane];
#pragma unroll
        for (int i = 1; i < 4; i++) total.x += place[i * 32 + lane].x, total.y += place[i * 32 + lane].y;
        const float mean = total.x / fmaxf(count, 1.0f);
        running[group / 4] = join(running[group / 4], {count, mean, fmaxf(fmaf(-total.x, mean, total.y), 0.0f)});
    }
}

// sums + bias + residual if ADDS, rounded, to out; `totals` as `join_tile` wants them. A warp's lane has outputs 8 n + lane % 4 * 2 and the next, of
// pixels lane / 4 and lane / 4 + 8. `finish` returns when the sums are there.
template <class S, bool ADDS, class Finish>
__device__ __forceinline__ void store_tile(const float (&sums)[S::PARTS][S::OUTS / 2], const Work& w, int first_pixel, const bf16* bias,
                                           const bf16* residual, long long ld_residual, bf16* out, long long ld_out, int height, int width,
                                           int outs, float2 (&totals)[S::GROUPS > 0 ? S::GROUPS : 1], Finish finish) {
    // Read anew for each tile: what follows from it shall not be kept in registers through the multiplies.
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const int lane = thread % 4;
    int pixels[S::PARTS][2];  // rows of out; -1 outside
#pragma unroll
    for (int i = 0; i < S::PARTS * 2; i++) {
        const int pixel = first_pixel + thread / 32 % 4 * 16 + thread % 32 / 4 + i / 2 * 64 + i % 2 * 8;
        const int y = w.y + pixel / S::WIDTH, x = w.x + pixel % S::WIDTH;
        const int out_y = y * S::SCALE + w.place / S::SCALE, out_x = x * S::SCALE + w.place % S::SCALE;
        pixels[i / 2][i % 2] = y < height && x < width ? out_y * (width * S::SCALE) + out_x : -1;
    }
    // By the path for what nobody writes: so the compiler need not wait for the stores before.
    const auto bias_at = [=](int at) { return at < outs ? __ldg(reinterpret_cast<const uint32_t*>(bias + at)) : 0; };
    const auto value_of = [](uint32_t pair, int i) { return __uint_as_float(i == 0 ? pair << 16 : pair & 0xffff0000u); };
    if constexpr (S::GROUPS > 0) {
        // The residual of some steps: a step is a group of a part.
        constexpr int STEPS = S::GROUPS * S::PARTS, AHEAD = 2;
        uint4 added[AHEAD + 1][2];
        const auto load_residual = [&](int step) {
            const int to = w.out + step / S::PARTS * 32 + lane * 8;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pixel = pixels[step % S::PARTS][half];
                uint4& value = added[step % (AHEAD + 1)][half];
                value = make_uint4(0, 0, 0, 0);
                if (pixel >= 0 && to < outs) value = *reinterpret_cast<const uint4*>(residual + pixel * ld_residual + to);
            }
        };
#pragma unroll
        for (int step = 0; step < AHEAD; step++)
            if (ADDS) load_residual(step);
        finish();
#pragma unroll
        for (int group = 0; group < S::GROUPS; group++) {
            const int to = w.out + group * 32 + lane * 8;  // the lane's eight outputs once pairs are exchanged
            uint32_t biases[4];
#pragma unroll
            for (int i = 0; i < 4; i++) biases[i] = bias_at(w.out + group * 32 + i * 8 + lane * 2);
            float total[8] = {}, total_squares[8] = {};
#pragma unroll
            for (int i = 0; i < S::PARTS * 2; i++) {
                const int part = i / 2, half = i % 2, step = group * S::PARTS + part, pixel = pixels[part][half];
                if (ADDS && half == 0 && step + AHEAD < STEPS) load_residual(step + AHEAD);
                const uint4 from = added[step % (AHEAD + 1)][half];
                uint32_t more[4] = {from.x, from.y, from.z, from.w}, pair[4];
                if (ADDS) exchange_pairs(more);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float both[2];
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        both[k] = sums[part][(group * 4 + j) * 4 + half * 2 + k] + value_of(biases[j], k);
                        if (ADDS) both[k] += value_of(more[j], k);
                    }
                    pair[j] = pack_bf16(both[0], both[1]);
                    const uint32_t counted = pixel >= 0 ? pair[j] : 0;
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const float value = value_of(counted, k);
                        total[j * 2 + k] += value;
                        total_squares[j * 2 + k] = fmaf(value, value, total_squares[j * 2 + k]);
                    }
                }
                exchange_pairs(pair);
                if (pixel >= 0 && to < outs) *reinterpret_cast<uint4*>(out + pixel * ld_out + to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
            }
            totals[group] = make_float2(fold(total), fold(total_squares));
        }
    } else {
        const auto pair_at = [](const bf16* from) { return *reinterpret_cast<const uint32_t*>(from); };
        finish();
#pragma unroll
        for (int n = 0; n < S::OUTS / 8; n++) {
            const int to = w.out + n * 8 + lane * 2;
            const uint32_t biases = bias_at(to);
#pragma unroll
            for (int i = 0; i < S::PARTS * 2; i++) {
                const int part = i / 2, half = i % 2, pixel = pixels[part][half];
                if (pixel < 0 || to >= outs) continue;
                float both[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    both[k] = sums[part][n * 4 + half * 2 + k] + value_of(biases, k);
                    if (ADDS) both[k] += value_of(pair_at(residual + pixel * ld_residual + to), k);
                }
                *reinterpret_cast<uint32_t*>(out + pixel * ld_out + to) = pack_bf16(both[0], both[1]);
            }
        }
    }
}

template <class S>
__device__ __forceinline__ void convolve(const TensorMap& x, const TensorMap& weight, const bf16* bias, const bf16* residual, long long ld_residual,
                                         bf16* out, long long ld_out, int height, int width, int channels, int outs, float2* partial,
                                         float* counts, int lead) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    const uint32_t pixels_full = base + S::BARRIERS, pixels_free = pixels_full + 8 * S::PIXEL_SLOTS,
                   weights_full = pixels_free + 8 * S::PIXEL_SLOTS, weights_free = weights_full + 8 * S::WEIGHT_SLOTS;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < S::PIXEL_SLOTS; slot++) {
            init_barrier(pixels_full + 8 * slot, 1);
            init_barrier(pixels_free + 8 * slot, CONSUMERS * 4);
        }
        for (int slot = 0; slot < S::WEIGHT_SLOTS; slot++) {
            init_barrier(weights_full + 8 * slot, 1);
            init_barrier(weights_free + 8 * slot, CONSUMERS * 4);
        }
        publish_barriers();
    }
    __syncthreads();

    const int items = ceil_div(outs, S::OUTS) * S::PLACES * ceil_div(width, S::WIDTH) * ceil_div(height, S::HEIGHT);
    // 64 channels at one kx; they take TAPS boxes of weights.
    const int steps = ceil_div(channels, CHANNELS) * S::TAPS;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    Ring<S::PIXEL_SLOTS> pixel_ring;
    Ring<S::WEIGHT_SLOTS> weight_ring;
    if (warpgroup == 0) {
        give_registers<40>();
        if (threadIdx.x >= 32) return;
        for (int index = blockIdx.x; index < items; index += gridDim.x) {
            const Work w = Work::at<S>(index, width, outs);
            // Not before the tile's turn, for which the other lanes wait here.
            __syncwarp();
            if (S::PLACES == 1 && residual != nullptr) prefetch_residual<S>(w, residual, ld_residual, height, width, outs);
            if (threadIdx.x != 0) continue;
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
    } else {
        take_registers<232>();
        const int first_pixel = (warpgroup - 1) * S::PIXELS;
        const auto release = [&](uint32_t barrier) {
            if (threadIdx.x % 32 == 0) arrive(barrier);
        };
        // The second consumer begins when the first has done so many taps of its first tile.
        const int turn = min(lead, steps * S::TAPS);
        if (turn > 0 && warpgroup == 2) wait_turn(1 + CONSUMERS, 128 * CONSUMERS);
        Moments running[S::RUNNING] = {};
        for (int index = blockIdx.x; index < items; index += gridDim.x) {
            const Work w = Work::at<S>(index, width, outs);
            float sums[S::PARTS][S::OUTS / 2];
            int last_pixels = 0, last_weights = 0;
            for (int step = 0; step < steps; step++) {
                wait(pixels_full + 8 * pixel_ring.slot, pixel_ring.phase);
#pragma unroll
                for (int ky = 0; ky < S::TAPS; ky++) {
                    const uint64_t pixels = describe(base + pixel_ring.slot * S::PIXEL_BYTES + (first_pixel + ky * S::WIDTH) * CHANNELS * 2, 0);
                    const uint64_t weights = describe(base + S::WEIGHTS + weight_ring.slot * S::WEIGHT_BYTES, 0);
                    wait(weights_full + 8 * weight_ring.slot, weight_ring.phase);
                    begin_multiply();
#pragma unroll
                    for (int c = 0; c < CHANNELS; c += 16)
#pragma unroll
                        for (int part = 0; part < S::PARTS; part++)
                            multiply(sums[part], pixels + ((part * 64 * CHANNELS * 2 + c * 2) >> 4), weights + ((c * 2) >> 4), step + ky + c > 0);
                    commit_multiply();
                    // The multiplies before these are done, and what they read is free.
                    wait_multiply<1>();
                    if (step + ky > 0) {
                        release(weights_free + 8 * last_weights);
                        if (ky == 0) release(pixels_free + 8 * last_pixels);
                    }
                    last_weights = weight_ring.slot;
                    weight_ring.advance();
                    if (warpgroup == 1 && index == blockIdx.x && step * S::TAPS + ky + 1 == turn) give_turn(1 + CONSUMERS, 128 * CONSUMERS);
                }
                last_pixels = pixel_ring.slot;
                pixel_ring.advance();
            }
            const auto finish = [&] {
                wait_multiply<0>();
#pragma unroll
                for (int part = 0; part < S::PARTS; part++) pin(sums[part]);
                release(weights_free + 8 * last_weights);
                release(pixels_free + 8 * last_pixels);
            };
            const int rows = min(max(height - w.y - first_pixel / S::WIDTH, 0), S::PIXELS / S::WIDTH);
            const float count = rows * min(width - w.x, S::WIDTH);  // pixels; computed here, where registers are free
            float2 totals[S::GROUPS > 0 ? S::GROUPS : 1];
            if (S::PLACES == 1 && residual != nullptr)
                store_tile<S, true>(sums, w, first_pixel, bias, residual, ld_residual, out, ld_out, height, width, outs, totals, finish);
            else
                store_tile<S, false>(sums, w, first_pixel, bias, residual, ld_residual, out, ld_out, height, width, outs, totals, finish);
            if constexpr (S::GROUPS > 0) {
                const int consumer = warpgroup - 1;
                float2* place = reinterpret_cast<float2*>(shared + S::SUMS + consumer * S::SUMS_BYTES);
                join_tile<S>(running, totals, place, count, 1 + consumer);
            }
        }
        if constexpr (S::GROUPS > 0) {
            // All the block's tiles had these outputs, as the blocks are a multiple of what the outputs are divided into.
            const int out_tiles = ceil_div(outs, S::OUTS), thread = threadIdx.x % 128;
            const int split = blockIdx.x / out_tiles * CONSUMERS + warpgroup - 1, first_out = blockIdx.x % out_tiles * S::OUTS;
#pragma unroll
            for (int i = 0; i < S::RUNNING; i++) {
                const int output = first_out + i * 128 + thread;
                if (output < outs) partial[(long long)split * outs + output] = make_float2(running[i].mean, running[i].squares);
            }
            if (first_out == 0 && thread == 0) counts[split] = running[0].count;
        }
    }
}

}  // namespace conv2d

// Shared memory is `BARRIERS` of the shape and 16 bytes for each slot, which the launcher passes; it must agree with `Shape`.
#define CONV2D(name, ...)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128 + 128 * conv2d::CONSUMERS, 1) name(                                                       \
        const __grid_constant__ hopper::TensorMap x, const __grid_constant__ hopper::TensorMap weight, const bf16* bias, const bf16* residual, \
        long long ld_residual, bf16* out, long long ld_out, int height, int width, int channels, int outs, float2* partial, float* counts,     \
        int lead) {                                                                                                                            \
        conv2d::convolve<conv2d::Shape<__VA_ARGS__>>(x, weight, bias, residual, ld_residual, out, ld_out, height, width, channels, outs,       \
                                                     partial, counts, lead);                                                                   \
    }

// The shapes: taps, tile width, tile height, outputs, slots of pixels, slots of weights.
CONV2D(conv2d_bf16_16x16x128_sm90, 3, 16, 16, 128, 3, 7)
CONV2D(conv2d_bf16_16x8x256_sm90, 3, 16, 8, 256, 3, 5)
CONV2D(conv2d_bf16_16x8x128_sm90, 3, 16, 8, 128, 4, 8)
CONV2D(conv2d_bf16_32x8x8_sm90, 3, 32, 8, 8, 5, 15)
CONV2D(upsample_conv2d_bf16_16x16x128_sm90, 2, 16, 16, 128, 3, 7)
CONV2D(upsample_conv2d_bf16_16x8x128_sm90, 2, 16, 8, 128, 4, 9)

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
