// conv2d_taps: a convolution as a GEMM with a left operand that is gathered from the image, tap by tap
//
//   x       [pixels, channels]        element, row stride ld_x: as in im2col in conv2d.cu, with `first_y`, `above` and
//           `height`
//   weight  [out_channels, ld_weight] element: columns (ky, kx, channel)
//   bias    [out_channels]            element
//   slopes  none, or [out_channels]   element: slopes of negative results, if `activates`; 0 without slopes
//   residual  none, or [rows, out_channels] element, row stride ld_residual: added before the result is rounded
//   out     [rows, out_channels]      element, row stride ld_out, for output pixels first_row .. first_row + rows
//   doubled   1: the image repeats every pixel four times. `kernel` is 2 and `rows` are those of x: there is an output
//             for each place (py, px) of its square, and weight has 4 * out_channels rows; see collapse_taps.cu
//
// Mapping   A block of four warps computes 128 pixels of 128 output channels, a warp 64 x 64 of these; for images,
//           which have few channels, 128 pixels of 16, a warp 32. Each step multiplies STEP channels of one tap, which
//           cp.async fetched STAGES - 1 steps before; pixels outside the image are zeros. Blocks of the same pixels are
//           consecutive, so that x comes from L2.
// Needs     channels % STEP == 0, out_channels % 8 == 0, rows 16-byte aligned
// Measured  with residual 256 x 256, 512 -> 512 792 us, 390 TFLOP/s; 1024 x 1024, 128 -> 128 979 us, 316 TFLOP/s;
//           without 512 x 512, 512 -> 256 1482 us, 417 TFLOP/s; upsampled from 512 x 512, 256 1580 us; 128 -> 3 340 us,
//           with tiles of 128 output channels 880 (H200)
#include "mma.cuh"

namespace conv2d_taps {

constexpr int ROWS = 128, THREADS = 128;

struct Arguments {
    const element* x;
    const element* weight;
    const element* bias;
    const element* slopes;
    const element* residual;
    element* out;
    long long ld_x, ld_weight, ld_residual, ld_out;
    int first_row, rows, channels, out_channels, height, width, kernel, stride, pad_before, out_width, above, first_y,
        doubled, activates;
};

// Returns x, or slope * x if x is negative; with a slope of 0, 0.
__device__ __forceinline__ float activated(float x, float slope) {
    return x < 0.f ? (slope == 0.f ? 0.f : slope * x) : x;
}

template <int STEP>
struct Tile {
    static constexpr int CHUNKS = STEP / 8, ROW_BYTES = STEP * 2;

    __device__ static __forceinline__ uint32_t at(int row, int chunk) { return swizzled<CHUNKS>(row, chunk); }
};

template <int STEP, int STAGES, int COLS>
__device__ __forceinline__ void convolve(const Arguments& args) {
    using T = Tile<STEP>;
    constexpr int X_BYTES = ROWS * T::ROW_BYTES, STAGE_BYTES = X_BYTES + COLS * T::ROW_BYTES;
    constexpr int AT_ONCE = THREADS / T::CHUNKS, COPIES = ROWS / AT_ONCE, WEIGHT_COPIES = ceil_div(COLS, AT_ONCE);
    constexpr int WARP_COLS = COLS < 64 ? COLS : 64, WARPS_IN_ROW = COLS / WARP_COLS;
    constexpr int WARP_ROWS = ROWS * WARPS_IN_ROW / (THREADS / 32);
    static_assert(AT_ONCE % 8 == 0 && WARP_COLS % 16 == 0, "chunks of all copies of a thread have one turn");
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int col_tiles = ceil_div(args.out_channels, COLS);
    const int places = args.doubled ? 4 : 1, place = int(blockIdx.x) / col_tiles % places;
    const int first_row = int(blockIdx.x) / (col_tiles * places) * ROWS, first_col = int(blockIdx.x) % col_tiles * COLS;

    // The pixels under a thread's rows of the first tap; rows past the last see nothing.
    const int my_row = threadIdx.x / T::CHUNKS, my_chunk = threadIdx.x % T::CHUNKS;
    short2 corner[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int row = first_row + my_row + i * AT_ONCE, pixel = args.first_row + row;
        const int y = args.above + pixel / args.out_width * args.stride - args.pad_before + place / 2;
        const int x = pixel % args.out_width * args.stride - args.pad_before + place % 2;
        corner[i] = row < args.rows ? make_short2(x, y) : make_short2(-16384, -16384);
    }
    const uint32_t my_copy = base + T::at(my_row, my_chunk);
    const element* weight =
        args.weight + (place * args.out_channels + first_col + my_row) * args.ld_weight + my_chunk * 8;
    const int steps_of_tap = args.channels / STEP, steps = args.kernel * args.kernel * steps_of_tap;
    const element* from[COPIES];
    unsigned inside = 0;
    int kx = 0, ky = 0, of_tap = 0;
    // With short steps each copy has a condition. With long ones a branch is faster: by 6% around the copies of each
    // operand than around those of both.
    constexpr bool BRANCHES = STEP >= 64;
    const auto copy = [](bool is_step, uint32_t to, const element* from, bool inside) {
        if constexpr (BRANCHES) copy_16(to, from, inside);
        else copy_16_if(is_step, to, from, inside);
    };
    const auto load_stage = [&](int step, int stage) {
        const bool is_step = step < steps;
        const uint32_t to = my_copy + stage * STAGE_BYTES;
        if (is_step && of_tap == 0) {
            inside = 0;
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                const int y = corner[i].y + ky, x = corner[i].x + kx;
                const bool is_inside = y >= 0 && y < args.height && x >= 0 && x < args.width;
                const int pixel = (y - args.first_y) * args.width + x;
                from[i] = args.x + (is_inside ? pixel : 0) * args.ld_x + my_chunk * 8;
                inside |= unsigned(is_inside) << i;
            }
        }
        if (!BRANCHES || is_step) {
#pragma unroll
            for (int i = 0; i < COPIES; i++)
                copy(is_step, to + i * AT_ONCE * T::ROW_BYTES, from[i] + of_tap * STEP, inside >> i & 1);
        }
        if (!BRANCHES || is_step) {
#pragma unroll
            for (int i = 0; i < WEIGHT_COPIES; i++) {
                const bool is_row = first_col + my_row + i * AT_ONCE < args.out_channels;
                // Memory past the tile belongs to the next stage.
                if (COLS % AT_ONCE == 0 || my_row + i * AT_ONCE < COLS)
                    copy(is_step, to + X_BYTES + i * AT_ONCE * T::ROW_BYTES,
                         weight + (is_row ? i * AT_ONCE * args.ld_weight + step * STEP : 0), is_row);
            }
            if (++of_tap == steps_of_tap) {
                of_tap = 0;
                if (++kx == args.kernel) kx = 0, ky++;
            }
        }
        commit_copies();  // also an empty group, so that the number of groups is the number of steps
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) load_stage(stage, stage);

    // Prefetch: it is in L2 by the time it is added.
    if (args.residual && first_row + int(threadIdx.x) < args.rows) {
        const element* row = args.residual + (first_row + threadIdx.x) * args.ld_residual + first_col;
#pragma unroll
        for (int col = 0; col < COLS; col += 64)
            if (first_col + col < args.out_channels) asm volatile("prefetch.global.L2 [%0];" ::"l"(row + col));
    }

    const int warp_row = warp / WARPS_IN_ROW * WARP_ROWS, warp_col = warp % WARPS_IN_ROW * WARP_COLS;
    const uint32_t x_lane = base + T::at(warp_row + (lane & 15), lane >> 4);
    const uint32_t w_lane = base + X_BYTES + T::at(warp_col + (lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
    float sums[WARP_ROWS / 16][WARP_COLS / 8][4] = {};
    int stage = 0;
    for (int step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const uint32_t x_tile = x_lane + stage * STAGE_BYTES, w_tile = w_lane + stage * STAGE_BYTES;
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) {
            uint32_t a[WARP_ROWS / 16][4], b[WARP_COLS / 16][4];
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; m++) load_matrices(a[m], (x_tile ^ (k * 32)) + m * 16 * T::ROW_BYTES);
#pragma unroll
            for (int n = 0; n < WARP_COLS / 16; n++) load_matrices(b[n], (w_tile ^ (k * 32)) + n * 16 * T::ROW_BYTES);
            // After the first loads, for which multiplies wait. All warps have read that stage: they have synchronized
            // since.
            if (k == 0) load_stage(step + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; m++)
#pragma unroll
                for (int n = 0; n < WARP_COLS / 8; n++)
                    multiply_add(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // Stores through shared memory, so that loads and stores are 16 bytes wide. Rows of 256 bytes are two adjacent
    // tiles.
    wait_copies<0>();
    __syncthreads();
    using O = Tile<64>;
    const auto at = [](int row, int col) {
        return col / 64 * (ROWS * O::ROW_BYTES) + O::at(row, col % 64 / 8) + col % 8 * 2;
    };
    const auto each_chunk = [&](auto body) {
#pragma unroll 4
        for (int i = threadIdx.x; i < ROWS * COLS / 8; i += THREADS) {
            const int row = i / (COLS / 8), col = i % (COLS / 8) * 8;
            if (first_row + row < args.rows && first_col + col < args.out_channels)
                body(first_row + row, first_col + col, reinterpret_cast<uint4*>(shared + at(row, col)));
        }
    };
    if (args.residual) {
        each_chunk([&](long long row, int col, uint4* to) {
            *to = *reinterpret_cast<const uint4*>(args.residual + row * args.ld_residual + col);
        });
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < WARP_COLS / 8; n++) {
        const int col = warp_col + n * 8 + lane % 4 * 2;
        float bias[2] = {0.f, 0.f};
        if (args.bias && first_col + col < args.out_channels)
            unpack_pair(*reinterpret_cast<const uint32_t*>(args.bias + first_col + col), bias[0], bias[1]);
        float slope[2] = {0.f, 0.f};
        if (args.slopes && first_col + col < args.out_channels)
            slope[0] = to_float(args.slopes[first_col + col]), slope[1] = to_float(args.slopes[first_col + col + 1]);
#pragma unroll
        for (int m = 0; m < WARP_ROWS / 16; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = warp_row + m * 16 + half * 8 + lane / 4;
                uint32_t* place = reinterpret_cast<uint32_t*>(shared + at(row, col));
                float pair[2] = {sums[m][n][half * 2] + bias[0], sums[m][n][half * 2 + 1] + bias[1]};
                if (args.residual) {
                    float more[2];
                    unpack_pair(*place, more[0], more[1]);
                    pair[0] += more[0], pair[1] += more[1];
                }
                // NaN stays NaN.
                if (args.activates) pair[0] = activated(pair[0], slope[0]), pair[1] = activated(pair[1], slope[1]);
                *place = pack_pair(pair[0], pair[1]);
            }
    }
    __syncthreads();
    const auto out_row = [&](int row) {
        if (!args.doubled) return row;
        const int y = row / args.width * 2 + place / 2, x = row % args.width * 2 + place % 2;
        return y * args.width * 2 + x;
    };
    each_chunk([&](int row, int col, uint4* from) {
        *reinterpret_cast<uint4*>(args.out + out_row(row) * args.ld_out + col) = *from;
    });
}

}  // namespace conv2d_taps

// Three stages of 16 KiB: two blocks fit on a multiprocessor with 100 KiB of shared memory. With stages of 32 KiB, two
// fit in 228 KiB.
extern "C" __global__ void __launch_bounds__(128, 2)
    conv2d_taps_32(const __grid_constant__ conv2d_taps::Arguments args) {
    conv2d_taps::convolve<32, 3, 128>(args);
}

extern "C" __global__ void __launch_bounds__(128, 2)
    conv2d_taps_64(const __grid_constant__ conv2d_taps::Arguments args) {
    conv2d_taps::convolve<64, 3, 128>(args);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    conv2d_taps_narrow(const __grid_constant__ conv2d_taps::Arguments args) {
    conv2d_taps::convolve<32, 3, 16>(args);
}
