// 3 x 3 convolution with at most 64 outputs for Hopper, + bias + residual, then a leaky ReLU: stride 1, with zeros
// around the image
//
//   x         tensor map over [height, width, channels] bf16: boxes of 64 channels (128-byte swizzle), WIDTH + 2
//             pixels, HEIGHT + 2 rows
//   weight    tensor map over [outs, 9, channels] bf16, taps ordered (ky, kx): boxes of 64 channels, one tap, OUTS
//             outputs
//   residual  [height * width, outs] bf16, row stride ld_residual, or null; may be out
//   bias, slopes  [outs] bf16; slopes of negative sums if `activates`, null for slopes of 0
//   out       [height * width, outs] bf16, row stride ld_out; rounded once
//
// Mapping   Blocks compute tiles of WIDTH x HEIGHT pixels and OUTS outputs in turn. Two warpgroups multiply [64, 64] of
//           pixels by [OUTS, 64]^T of weights, for every tap and 64 channels; 64 pixels are a square of 8 x 8. A box of
//           pixels serves all taps: a tap's pixels begin at another row of the box. So a pixel is fetched 1.2 times.
// Bands     A launch computes tiles `first` to `end`, whole rows of tiles, and x has only the rows that these read,
//           from `first_row` on.
// Needs     sm_90a; channels % 8 == 0, outs % 8 == 0, rows 16-byte aligned
// Bound     tensor cores; with fewer than 64 outputs, shared memory: a multiply by 32 outputs reads 3 KB in the time of
//           2 KB
// Measured  docs/kernels-conv.md
#pragma once

#include "conv2d_sm90a.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace conv2d::narrow {

constexpr int TAPS = 3, WIDTH = 32, HEIGHT = 16;  // of the kernel, and of a tile
constexpr int SIDE = 8;                           // of the square of pixels of a multiply
constexpr int COLUMNS = WIDTH + TAPS - 1, ROWS = HEIGHT + TAPS - 1;
constexpr int OWN_ROWS = HEIGHT / CONSUMERS, PARTS = WIDTH / SIDE;
constexpr int BOX_BYTES = COLUMNS * ROWS * ROW_BYTES, PIXEL_BYTES = ceil_div(BOX_BYTES, 1024) * 1024;
static_assert(OWN_ROWS == SIDE, "a consumer has one row of squares");

template <int OUTS_, int WEIGHT_STAGES_>
struct Shape {
    static constexpr int OUTS = OUTS_, PIXEL_STAGES = 2, WEIGHT_STAGES = WEIGHT_STAGES_;
    static constexpr int SUMS = OUTS / 2;  // per thread and square
    static constexpr int WEIGHT_BYTES = OUTS * ROW_BYTES;
    static constexpr int WEIGHTS = PIXEL_STAGES * PIXEL_BYTES, BARRIERS = WEIGHTS + WEIGHT_STAGES * WEIGHT_BYTES;
};

// A number of slices of 16 channels.
template <int COUNT_>
struct Slices {
    static constexpr int COUNT = COUNT_;
};

// A tile: its first pixel and its first output.
struct Work {
    int x, y, out;

    __device__ __forceinline__ Work(int index, int out_tiles, int columns, int tile_outs) {
        out = index % out_tiles * tile_outs;
        index /= out_tiles;
        x = index % columns * WIDTH;
        y = index / columns * HEIGHT;
    }
};

// The ops on the sums, and where they are stored. The launcher declares the same struct.
struct Arguments {
    const bf16* bias;
    const bf16* slopes;
    const bf16* residual;
    bf16* out;
    long long ld_residual;
    long long ld_out;
    int activates;
    int outs;
};

struct Epilogue : Arguments {
    // Returns the values of two outputs; zeros without values, or past the last output.
    __device__ __forceinline__ uint32_t pair_of(const bf16* values, int at) const {
        return values && at < outs ? *reinterpret_cast<const uint32_t*>(values + at) : 0;
    }

    __device__ __forceinline__ uint32_t finish(const float* sums, uint32_t biases, uint32_t slopes,
                                               uint32_t added) const {
        float first = sums[0] + low(biases) + low(added), second = sums[1] + high(biases) + high(added);
        if (activates) first = activated(first, low(slopes)), second = activated(second, high(slopes));
        return pack_pair(first, second);
    }

    // Stores the outputs from `first` on of a warp's pixels. A lane has outputs 8 n + lane % 4 * 2 and the next of two
    // pixels in each of the PARTS squares. `row_of` returns the row of a pixel, or -1 outside the image. Lanes of a
    // pixel exchange pairs, so that each stores 16 bytes.
    template <int N, class RowOf>
    __device__ __forceinline__ void store(const float (&sums)[PARTS][N], int first, RowOf row_of) const {
        constexpr int GROUP = N < 16 ? 1 : 4;  // eights of outputs at a time
        const int lane = threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < N / 4; n += GROUP) {
            uint32_t biases[GROUP], slopes_of[GROUP];
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                const int at = first + (n + i) * 8 + lane * 2;
                biases[i] = pair_of(bias, at), slopes_of[i] = pair_of(slopes, at);
            }
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                int rows[2];
                uint32_t added[2][GROUP] = {};
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    rows[half] = row_of(part, half);
                    if (!residual || rows[half] < 0) continue;
                    const bf16* from = residual + rows[half] * ld_residual;
#pragma unroll
                    for (int i = 0; i < GROUP; i++) added[half][i] = pair_of(from, first + (n + i) * 8 + lane * 2);
                }
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t pair[GROUP];
#pragma unroll
                    for (int i = 0; i < GROUP; i++)
                        pair[i] = finish(&sums[part][(n + i) * 4 + half * 2], biases[i], slopes_of[i], added[half][i]);
                    bf16* to = out + rows[half] * ld_out;
                    if constexpr (GROUP == 1) {
                        const int at = first + lane * 2;
                        if (rows[half] >= 0 && at < outs) *reinterpret_cast<uint32_t*>(to + at) = pair[0];
                    } else {
                        exchange_pairs(pair);
                        const int at = first + (n + lane) * 8;
                        if (rows[half] >= 0 && at < outs)
                            *reinterpret_cast<uint4*>(to + at) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
                    }
                }
            }
        }
    }
};

template <class S>
__device__ __forceinline__ void convolve(const TensorMap& x, const TensorMap& weight, const Epilogue& epilogue,
                                         int height, int width, int channels, int first, int end, int first_row) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    Ring<S::PIXEL_STAGES> pixel_ring(base + S::BARRIERS);
    Ring<S::WEIGHT_STAGES> weight_ring(pixel_ring.full + pixel_ring.BARRIER_BYTES);
    if (threadIdx.x == 0) {
        pixel_ring.init(CONSUMERS * 4, 1);
        weight_ring.init(CONSUMERS * 4, 1);
        publish_barriers();
    }
    __syncthreads();

    const int out_tiles = ceil_div(epilogue.outs, S::OUTS), columns = ceil_div(width, WIDTH);
    const int begin = first + int(blockIdx.x), blocks = gridDim.x;
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (consumer == CONSUMERS) {
        give_registers<40>();
        if (threadIdx.x % 128 != 0) return;
        for (int index = begin; index < end; index += blocks) {
            const Work w(index, out_tiles, columns, S::OUTS);
            for (int channel = 0; channel < channels; channel += CHANNELS) {
                const uint32_t full = pixel_ring.fetch(BOX_BYTES);
                copy_box(base + pixel_ring.stage * PIXEL_BYTES, x, w.y - 1 - first_row, w.x - 1, channel, full);
                pixel_ring.advance();
                for (int tap = 0; tap < TAPS * TAPS; tap++) {
                    const uint32_t full = weight_ring.fetch(S::WEIGHT_BYTES);
                    copy_box(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES, weight, w.out, tap, channel,
                             full);
                    weight_ring.advance();
                }
            }
        }
        return;
    }
    take_registers<232>();
    for (int index = begin; index < end; index += blocks) {
        float sums[PARTS][S::SUMS];
        int last_pixels = 0, last_weights = 0;
        // Multiplies the pixels of a stage by the weights of all taps, SLICES times 16 channels.
        const auto multiply_stage = [&](auto slices, int channel) {
            pixel_ring.wait_full();
            const uint32_t own = base + pixel_ring.stage * PIXEL_BYTES + consumer * OWN_ROWS * COLUMNS * ROW_BYTES;
#pragma unroll
            for (int tap = 0; tap < TAPS * TAPS; tap++) {
                const uint32_t seen = own + (tap / TAPS * COLUMNS + tap % TAPS) * ROW_BYTES;
                const uint64_t pixels = describe(seen, 0, COLUMNS * ROW_BYTES);
                const uint64_t weights = describe(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES, 0);
                weight_ring.wait_full();
                begin_multiply();
#pragma unroll
                for (int slice = 0; slice < slices.COUNT; slice++)
#pragma unroll
                    for (int part = 0; part < PARTS; part++)
                        multiply(sums[part], pixels + ((part * SIDE * ROW_BYTES + slice * 32) >> 4),
                                 weights + (slice * 32 >> 4), channel + tap + slice > 0);
                commit_multiply();
                // The earlier multiplies are done, so the stages that they read are free.
                wait_multiply<1>();
                if (channel + tap > 0) {
                    weight_ring.release(last_weights);
                    if (tap == 0) pixel_ring.release(last_pixels);
                }
                last_weights = weight_ring.stage;
                weight_ring.advance();
            }
            last_pixels = pixel_ring.stage;
            pixel_ring.advance();
        };
        int channel = 0;
        for (; channel + CHANNELS / 2 < channels; channel += CHANNELS) multiply_stage(Slices<4>(), channel);
        // The last channels are at most half of a box.
        if (channel < channels) multiply_stage(Slices<2>(), channel);
        wait_multiply<0>();
#pragma unroll
        for (int part = 0; part < PARTS; part++) pin(sums[part]);
        weight_ring.release(last_weights);
        pixel_ring.release(last_pixels);

        const Work w(index, out_tiles, columns, S::OUTS);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const auto row_of = [&](int part, int half) {
            const int at_y = w.y + consumer * OWN_ROWS + warp * 2 + half, at_x = w.x + part * SIDE + lane / 4;
            return at_y < height && at_x < width ? at_y * width + at_x : -1;
        };
        epilogue.store(sums, w.out, row_of);
    }
}

}  // namespace conv2d::narrow

// The launcher passes the shared memory: `BARRIERS` of the shape and 16 bytes for each stage. The launcher's numbers
// must agree with `Shape`.
#define CONV2D_NARROW(name, ...)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128 + 128 * conv2d::CONSUMERS, 1)                                    \
        name(const __grid_constant__ hopper::TensorMap x, const __grid_constant__ hopper::TensorMap weight,           \
             const __grid_constant__ conv2d::narrow::Epilogue epilogue, int height, int width, int channels,          \
             int first, int end, int first_row) {                                                                     \
        conv2d::narrow::convolve<conv2d::narrow::Shape<__VA_ARGS__>>(x, weight, epilogue, height, width, channels,    \
                                                                     first, end, first_row);                          \
    }

#endif
