// 3 x 3 convolution with at most 64 outputs for Hopper, + bias + residual, then a leaky ReLU: stride 1, with zeros
// around the image. TAPS = 2 (upsample_conv2d_sm90a.cu): of the upsampled image
//
//   x         tensor map over [height, width, channels] bf16: boxes of 64 channels (128-byte swizzle), WIDTH + 2
//             pixels, HEIGHT + 2 rows
//   weight    tensor map over [outs, TAPS * TAPS, channels] bf16, taps ordered (ky, kx): boxes of 64 channels, one tap,
//             OUTS outputs. TAPS = 2: [4 * outs, 4, channels] from collapse_taps.cu
//   residual  [height * width, outs] bf16, row stride ld_residual, or null; may be out
//   bias, slopes  [outs] bf16; slopes of negative sums if `activates`, null for slopes of 0
//   out       [height * width, outs] bf16, row stride ld_out; rounded once. TAPS = 2: [2 height * 2 width, outs]
//
// Mapping   Blocks compute tiles of WIDTH x HEIGHT pixels in turn, with TAPS = 2 each place of a pixel's square by
//           itself. Two warpgroups multiply [64, 64] of pixels by [OUTS, 64]^T of weights, for every tap and 64
//           channels; 64 pixels are a square of 8 x 8. A box of pixels serves all taps: a tap's pixels begin at another
//           row of the box. So a pixel is fetched 1.2 times. Residuals are loaded during the last multiplies.
// Bands     A launch computes tiles `first` to `end`, whole rows of tiles, and x has only the rows that these read,
//           from `first_row` on.
// Needs     sm_90a; channels % 8 == 0, outs % 8 == 0, outs <= OUTS, rows 16-byte aligned
// Bound     tensor cores; with fewer than 64 outputs, shared memory: a multiply by 32 outputs reads 3 KB in the time of
//           2 KB
// Measured  docs/kernels-conv.md
#pragma once

#include "conv2d_sm90a.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace conv2d::narrow {

constexpr int WIDTH = 32, HEIGHT = 16;  // of a tile
constexpr int SIDE = 8;                 // of the square of pixels of a multiply
constexpr int COLUMNS = WIDTH + 2, ROWS = HEIGHT + 2;
constexpr int OWN_ROWS = HEIGHT / CONSUMERS, PARTS = WIDTH / SIDE;
constexpr int BOX_BYTES = COLUMNS * ROWS * ROW_BYTES, PIXEL_BYTES = ceil_div(BOX_BYTES, 1024) * 1024;
static_assert(OWN_ROWS == SIDE, "a consumer has one row of squares");

template <int OUTS_, int WEIGHT_STAGES_, int TAPS_ = 3>
struct Shape {
    static constexpr int OUTS = OUTS_, PIXEL_STAGES = 2, WEIGHT_STAGES = WEIGHT_STAGES_, TAPS = TAPS_;
    // Sets of weights: one, or one for each place in the square that a pixel becomes.
    static constexpr int PLACES = TAPS == 2 ? 4 : 1, SCALE = TAPS == 2 ? 2 : 1;
    static constexpr int SUMS = OUTS / 2;  // per thread and square
    static constexpr int WEIGHT_BYTES = OUTS * ROW_BYTES;
    static constexpr int WEIGHTS = PIXEL_STAGES * PIXEL_BYTES, BARRIERS = WEIGHTS + WEIGHT_STAGES * WEIGHT_BYTES;
};

// A number of slices of 16 channels.
template <int COUNT_>
struct Slices {
    static constexpr int COUNT = COUNT_;
};

// A tile: its first pixel, and its place among the outputs of a pixel.
struct Work {
    int x, y, place;

    template <class S>
    __device__ __forceinline__ static Work at(int index, int columns) {
        Work w;
        w.place = index % S::PLACES;
        index /= S::PLACES;
        w.x = index % columns * WIDTH;
        w.y = index / columns * HEIGHT;
        return w;
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
};

// The outputs of a warp's pixels. A lane has outputs 8 n + lane % 4 * 2 and the next of two pixels in each of the PARTS
// squares. Lanes of a pixel exchange pairs, so that each loads and stores 16 bytes.
template <int N>
struct Storer {
    static constexpr int EIGHTS = N / 4, GROUP = EIGHTS < 4 ? 1 : 4, GROUPS = EIGHTS / GROUP;
    const Epilogue& epilogue;
    const int lane = threadIdx.x % 4;
    uint32_t biases[EIGHTS], slopes[EIGHTS];
    uint4 added[PARTS][2];

    __device__ __forceinline__ explicit Storer(const Epilogue& epilogue) : epilogue(epilogue) {
#pragma unroll
        for (int n = 0; n < EIGHTS; n++) {
            biases[n] = epilogue.pair_of(epilogue.bias, n * 8 + lane * 2);
            slopes[n] = epilogue.pair_of(epilogue.slopes, n * 8 + lane * 2);
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++) added[part][0] = added[part][1] = {};
    }

    // Loads the residual of a group of outputs of pixel `row`, if it is inside the image.
    __device__ __forceinline__ void load(int part, int half, int group, int row) {
        if (!epilogue.residual || row < 0) return;
        const bf16* from = epilogue.residual + row * epilogue.ld_residual;
        if constexpr (GROUP == 1) {
            added[part][half].x = epilogue.pair_of(from, lane * 2);
        } else {
            const int at = (group * 4 + lane) * 8;
            if (at < epilogue.outs) added[part][half] = *reinterpret_cast<const uint4*>(from + at);
        }
    }

    template <class RowOf>
    __device__ __forceinline__ void load_first(RowOf row_of) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int half = 0; half < 2; half++) load(part, half, 0, row_of(part, half));
    }

    // `row_of` returns the row of a pixel, or -1 outside the image.
    template <class RowOf>
    __device__ __forceinline__ void store(const float (&sums)[PARTS][N], RowOf row_of) {
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = row_of(part, half);
                    const uint4 raw = added[part][half];
                    uint32_t more[4] = {raw.x, raw.y, raw.z, raw.w}, pair[GROUP];
                    if constexpr (GROUP == 4)
                        if (epilogue.residual) exchange_pairs(more);
                    if (group + 1 < GROUPS) load(part, half, group + 1, row);
#pragma unroll
                    for (int i = 0; i < GROUP; i++) {
                        const int n = group * GROUP + i;
                        pair[i] = epilogue.finish(&sums[part][n * 4 + half * 2], biases[n], slopes[n], more[i]);
                    }
                    bf16* to = epilogue.out + row * epilogue.ld_out;
                    if constexpr (GROUP == 1) {
                        const int at = lane * 2;
                        if (row >= 0 && at < epilogue.outs) *reinterpret_cast<uint32_t*>(to + at) = pair[0];
                    } else {
                        exchange_pairs(pair);
                        const int at = (group * 4 + lane) * 8;
                        if (row >= 0 && at < epilogue.outs)
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

    const int columns = ceil_div(width, WIDTH);
    const int begin = first + int(blockIdx.x), blocks = gridDim.x;
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (consumer == CONSUMERS) {
        give_registers<40>();
        if (threadIdx.x % 128 != 0) return;
        for (int index = begin; index < end; index += blocks) {
            const Work w = Work::at<S>(index, columns);
            for (int channel = 0; channel < channels; channel += CHANNELS) {
                const uint32_t full = pixel_ring.fetch(BOX_BYTES);
                copy_box(base + pixel_ring.stage * PIXEL_BYTES, x, w.y - 1 - first_row, w.x - 1, channel, full);
                pixel_ring.advance();
                for (int tap = 0; tap < S::TAPS * S::TAPS; tap++) {
                    const uint32_t full = weight_ring.fetch(S::WEIGHT_BYTES);
                    copy_box(base + S::WEIGHTS + weight_ring.stage * S::WEIGHT_BYTES, weight,
                             w.place * epilogue.outs, tap, channel, full);
                    weight_ring.advance();
                }
            }
        }
        return;
    }
    take_registers<232>();
    Storer<S::SUMS> storer(epilogue);
    for (int index = begin; index < end; index += blocks) {
        float sums[PARTS][S::SUMS];
        const Work w = Work::at<S>(index, columns);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const auto row_of = [&](int part, int half) {
            const int at_y = w.y + consumer * OWN_ROWS + warp * 2 + half, at_x = w.x + part * SIDE + lane / 4;
            if (at_y >= height || at_x >= width) return -1;
            return (at_y * S::SCALE + w.place / S::SCALE) * (width * S::SCALE) + at_x * S::SCALE + w.place % S::SCALE;
        };
        int last_pixels = 0, last_weights = 0;
        // Multiplies the pixels of a stage by the weights of all taps, SLICES times 16 channels.
        const auto multiply_stage = [&](auto slices, int channel) {
            pixel_ring.wait_full();
            const int row = consumer * OWN_ROWS + w.place / S::SCALE, column = w.place % S::SCALE;
            const uint32_t own = base + pixel_ring.stage * PIXEL_BYTES + (row * COLUMNS + column) * ROW_BYTES;
#pragma unroll
            for (int tap = 0; tap < S::TAPS * S::TAPS; tap++) {
                const uint32_t seen = own + (tap / S::TAPS * COLUMNS + tap % S::TAPS) * ROW_BYTES;
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
        storer.load_first(row_of);
        wait_multiply<0>();
#pragma unroll
        for (int part = 0; part < PARTS; part++) pin(sums[part]);
        weight_ring.release(last_weights);
        pixel_ring.release(last_pixels);
        storer.store(sums, row_of);
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
