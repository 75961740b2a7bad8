// low_rank: products with layers that have factors of low rank beside their weight, for Hopper
//
// out = x weight^T + low up^T, rounded to bf16 once; low = x down^T, rounded to bf16.
//
//   x       [rows, features] bf16, in one or two parts with a weight and factors each; tensor maps with boxes of 128
//           bytes of a row (swizzled), 128 rows
//   weight  [cols, features], up [cols, rank] bf16; maps with boxes of 128 rows, and of 16
//   down    [rank, features] bf16; boxes of 16 rows
//   x, weight and down may all be e4m3, with float32 scales [rows], [cols] and [down_rows], down_rows even
//   low     [rows, rank] bf16, written and then read by this kernel; boxes of 128 rows. rank is a multiple of 16 here:
//           what the maps of down and up do not have is zeros
//   out     [rows, cols] bf16, row stride ld_out; 16-byte aligned, cols % 8 == 0
//
// Mapping   The rows of down come in front of those of the weight, as if they were one matrix: x is read once, and low
//           is the first `rank` columns of its product. Two blocks, on two multiprocessors, make a tile of 256 rows and
//           256 columns, half of the rows each; a block fetches its own rows, and half of the weights for both.
//           Warpgroups 1 and 2 multiply, and store from registers; a thread of warpgroup 0 fetches. Clusters take tiles
//           in turn, first the column of tiles in which low is: when one of those has all features, its blocks store
//           low and count that in `ready`. The factors are more features of every tile, behind the others: by then low
//           is there, except in the first turn, where clusters wait some microseconds for each other. Last come narrow
//           tiles of 128, 96 or 32 columns, so that all clusters end at about the same time. Sums of e4m3 get their
//           scales in front of the factors, which have none.
// Needs     sm_90a; rank <= 128. All clusters run at once, or the rows of tiles are fewer than those that do: a cluster
//           that waits for low keeps its multiprocessors. One launch at a time on a module, because `ready` is its own.
// Flops     2 * rows * features * (cols + rank).   4608 x 12288 -> 3072, rank 32: 351 GFLOP
// Bound     tensor cores. 351 GFLOP at 989 TFLOP/s (H200, dense bf16) = 355 us
// Measured  rank 32: 4608 x 12288 -> 3072 481 us (733 TFLOP/s), cuBLASLt's three products 1.02 times as long; of two
//           streams (512 and 4096 rows) 9216 -> 3072 343 us (771), 1.09 times, 3072 -> 3072 131 us (680), 1.23 times.
//           H200, driver 580.159, CUDA 13.0; `flux bench ops/low_rank`. Back to back in a CUDA graph, where the clock
//           is lower, 509 us instead of 537 to 543, 400 instead of 427 to 443, 140 instead of 175; the product with the
//           weight alone, by cuBLASLt, 478 to 499, 364 to 383, 129. A step of 1024 x 1024 with a LoRA beside all
//           weights takes 3.0% longer than one without, instead of 3.9% to 4.3%; `flux bench adapters/`,
//           FLUX_LOW_RANK=base. In e4m3 on an H100 311 us where the composition takes 429, 243 (359), 100 (170); 1536 x
//           12288 -> 3072 on an H200 124 (177), where tiles of 32 columns come last: with 96 it took 131
// Tried     for 4608 x 12288 -> 3072: a kernel for low alone, 128 rows with the features split over 4 or 8 blocks that
//           sum in each other's memory, 32 us, cuBLASLt 35; it reads 4.1 TB/s but for 4.6 us around that. Whole tiles
//           alone, 613 us: 234 of them are four turns of 66 clusters, the last with 36. Three stages 572 us. Narrow
//           tiles of 128 525 us. 3, 6, 9 or 18 rows of tiles together: as long
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cluster_sm90a.cuh"
#include "low_sm90a.cuh"
#include "multiply_128_sm90a.cuh"
#include "multiply_32_sm90a.cuh"
#include "multiply_96_sm90a.cuh"
#include "multiply_wide_sm90a.cuh"

namespace low_rank {

using namespace hopper;

constexpr int ROWS = 128, COLS = 256;  // of a block's whole tile
constexpr int STEP_BYTES = 128, SLICE_BYTES = 32;  // of a row; what one multiply reads of it
constexpr int STEP = STEP_BYTES / 2, SLICE = SLICE_BYTES / 2;  // the same of low and up, in values
constexpr int STAGES = 4;
constexpr int CONSUMERS = 2, WARPS = 4 * CONSUMERS;  // warpgroups and warps that multiply
constexpr int BOX = 16;                              // rows of the boxes of tiles that are narrow or begin with down
constexpr int MAX_TILE_ROWS = 1024;
constexpr int X_BYTES = ROWS * STEP_BYTES, WEIGHT_BYTES = COLS * STEP_BYTES, STAGE_BYTES = X_BYTES + WEIGHT_BYTES;
constexpr int BARRIERS = STAGES * STAGE_BYTES;
constexpr int THREADS = 128 + 128 * CONSUMERS;

struct Arguments {
    TensorMap x[2];
    TensorMap weight[2];
    TensorMap weight_boxes[2];
    TensorMap down_boxes[2];
    TensorMap up[2];
    TensorMap up_boxes[2];
    TensorMap low[2];
    const float* x_scales[2];
    const float* weight_scales[2];
    const float* down_scales[2];
    int down_rows[2];
    bf16* low_rows;
    bf16* out;
    long long ld_out;
    int part_rows[2];
    int features;
    int cols;
    int rank;
    int whole_cols;     // columns of whole tiles, at least one
    int narrow_cols;    // columns of narrow tiles, behind them
    int narrow_width;   // 32, 96 or 128
    int rows_of_tiles;  // rows of whole tiles that are done together
};

// How many blocks of this launch are done, and how many warps of each block's share of a row of tiles have stored low.
// Zeros between launches.
__device__ unsigned blocks_done;
__device__ unsigned ready[2 * MAX_TILE_ROWS];

__device__ __forceinline__ int cluster_rows(int rows) { return ceil_div(rows, 2 * ROWS); }

// A block's share of a tile: the part of x and the first row in it, the tile's first column of out, which is negative
// where low is, the column behind its last, and what counts the warps that have stored low of these rows.
struct Work {
    int part, row, col, end;
    unsigned* low_ready;

    __device__ __forceinline__ Work(const Arguments& args, int tile_row, int col, int end, int rank)
        : col(col), end(end) {
        const int first_part = cluster_rows(args.part_rows[0]);
        part = tile_row >= first_part;
        row = (tile_row - (part ? first_part : 0)) * 2 * ROWS + rank * ROWS;
        low_ready = ready + 2 * tile_row + rank;
    }
};

// Columns of a tile, as a type.
template <int N>
struct Width {
    __device__ __forceinline__ constexpr int operator()() const { return N; }
};

struct Pipeline {
    uint32_t base, full, free;
    Ring<STAGES> ring;

    __device__ __forceinline__ uint32_t stage() const { return base + ring.stage * STAGE_BYTES; }
};

// Calls tile(width, work) for each tile of this cluster, in the order of all tiles; width() is a constant.
template <class Tile>
__device__ __forceinline__ void each_tile(const Arguments& args, int rank, Tile tile) {
    const int rows = cluster_rows(args.part_rows[0]) + cluster_rows(args.part_rows[1]);
    const int together = args.rows_of_tiles * (args.whole_cols - 1);
    const int cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
    int index = cluster;
    for (; index < rows * args.whole_cols; index += clusters) {
        int row = index, col = 0;
        if (index >= rows) {
            const int rest = index - rows, first = rest / together * args.rows_of_tiles,
                      height = min(args.rows_of_tiles, rows - first);
            row = first + rest % together % height, col = 1 + rest % together / height;
        }
        tile(Width<COLS>(), Work(args, row, col * COLS - args.rank, args.cols, rank));
    }
    const auto narrow = [&](auto width) {
        for (index -= rows * args.whole_cols; index < rows * args.narrow_cols; index += clusters) {
            const int col = args.whole_cols * COLS - args.rank + index % args.narrow_cols * width();
            tile(width, Work(args, index / args.narrow_cols, col, min(args.cols, col + width()), rank));
        }
    };
    if (args.narrow_width == 128) narrow(Width<128>());
    else if (args.narrow_width == 96) narrow(Width<96>());
    else narrow(Width<32>());
}

// Values of x, weight and down that one step or one multiply reads of a row.
template <bool E4M3>
__host__ __device__ constexpr int values_of(int bytes) {
    return E4M3 ? bytes : bytes / 2;
}

// Fetches a block's rows of x and half of the N weights for both blocks, step by step, then low and up.
template <bool E4M3, int N>
__device__ __forceinline__ void fetch_tile(const Arguments& args, const Work& w, int rank, Pipeline& pipe) {
    const int first = w.col + rank * (N / 2);
    const auto begin = [&](const TensorMap& x, int k) {
        const uint32_t barrier = pipe.full + 8 * pipe.ring.stage;
        wait(pipe.free + 8 * pipe.ring.stage, pipe.ring.phase ^ 1);
        arrive_expecting(barrier, X_BYTES + N * STEP_BYTES);
        copy_box(pipe.stage(), x, w.row, k, barrier);
        return barrier;
    };
    const auto half = [&] { return pipe.stage() + X_BYTES + rank * (N / 2) * STEP_BYTES; };
    const auto weights = [&](const TensorMap& boxes, const TensorMap& narrow, int k, uint32_t barrier) {
        if constexpr (N == COLS) copy_box_to_both(half(), boxes, first, k, barrier);
        else
#pragma unroll
            for (int row = 0; row < N / 2; row += BOX)
                copy_box_to_both(half() + row * STEP_BYTES, narrow, first + row, k, barrier);
    };
    for (int k = 0; k < args.features; k += values_of<E4M3>(STEP_BYTES)) {
        const uint32_t barrier = begin(args.x[w.part], k);
        if (first >= 0) {
            weights(args.weight[w.part], args.weight_boxes[w.part], k, barrier);
        } else {
            for (int row = 0; row < N / 2; row += BOX) {
                const bool of_down = first + row < 0;
                const TensorMap& boxes = (of_down ? args.down_boxes : args.weight_boxes)[w.part];
                copy_box_to_both(half() + row * STEP_BYTES, boxes, of_down ? row : first + row, k, barrier);
            }
        }
        pipe.ring.advance();
    }
    low::wait_for(w.low_ready, WARPS);
    low::order_global_and_tma();
    for (int k = 0; k < args.rank; k += STEP) {
        const uint32_t barrier = begin(args.low[w.part], k);
        weights(args.up[w.part], args.up_boxes[w.part], k, barrier);
        pipe.ring.advance();
    }
}

// Stores those of N columns of a warp's 16 rows from `begin` to `end`; `to` is where column 0 of its first row goes.
template <int N>
__device__ __forceinline__ void store(const float (&sums)[N / 2], bf16* to, long long ld, int rows, int begin,
                                      int end) {
    const int lane = threadIdx.x % 32, row = lane / 4, first = lane % 4 * 8;
#pragma unroll
    for (int block = 0; block < N / 8; block += 4)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t pair[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                pair[i] = pack_pair(sums[(block + i) * 4 + half * 2], sums[(block + i) * 4 + half * 2 + 1]);
            const int at = block * 8 + first;
            exchange_pairs(pair);
            if (row + half * 8 < rows && at >= begin && at < end)
                *reinterpret_cast<uint4*>(to + (row + half * 8) * ld + at) =
                    make_uint4(pair[0], pair[1], pair[2], pair[3]);
        }
}

// sums = x weight^T of 32 bytes of each row, added to sums if `add`.
template <bool E4M3, int N>
__device__ __forceinline__ void multiply_slice(float (&sums)[N / 2], uint64_t x, uint64_t weight, int add) {
    if constexpr (!E4M3) multiply(sums, x, weight, add);
    else if constexpr (N == COLS) multiply<true>(sums, x, weight, add);
    else multiply_e4m3(sums, x, weight, add);
}

// Multiplies the sums of a warp's 16 rows, of which the part has `rows` from `row` on, by the scales of their rows and
// columns. What is outside of the part or of out is not stored, so any scale will do.
template <int N>
__device__ __forceinline__ void scale(const Arguments& args, const Work& w, int row, int rows, float (&sums)[N / 2]) {
    const int lane = threadIdx.x % 32, in_block = lane % 4 * 2;
    const float* of_rows = args.x_scales[w.part] + row;
    const float upper = of_rows[min(lane / 4, rows - 1)], lower = of_rows[min(lane / 4 + 8, rows - 1)];
#pragma unroll
    for (int block = 0; block < N / 8; block++) {
        const int at = block * 8 + in_block, col = w.col + at;
        const float* of_cols = col < 0 ? args.down_scales[w.part] + min(at, args.down_rows[w.part] - 2)
                                       : args.weight_scales[w.part] + min(col, args.cols - 2);
        const float2 pair = *reinterpret_cast<const float2*>(of_cols);
        sums[block * 4] *= upper * pair.x, sums[block * 4 + 1] *= upper * pair.y;
        sums[block * 4 + 2] *= lower * pair.x, sums[block * 4 + 3] *= lower * pair.y;
    }
}

// `registers` are for the sums of tiles of all widths: of arrays of their own the compiler knows no end.
template <bool E4M3, int N>
__device__ __forceinline__ void multiply_tile(const Arguments& args, const Work& w, Pipeline& pipe,
                                              float (&registers)[COLS / 2]) {
    const int consumer = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    const auto release = [&](int stage) {
        if (lane < 2) arrive_at(pipe.free + 8 * stage, lane);
    };
    const int row = w.row + consumer * (ROWS / CONSUMERS) + threadIdx.x / 32 % 4 * 16;
    const int rows = args.part_rows[w.part] - row;
    const long long out_row = (w.part ? args.part_rows[0] : 0) + row;
    auto& sums = reinterpret_cast<float(&)[N / 2]>(registers);
    int last = 0;
    for (int k = 0; k < args.features; k += values_of<E4M3>(STEP_BYTES)) {
        wait(pipe.full + 8 * pipe.ring.stage, pipe.ring.phase);
        const uint64_t x = describe(pipe.stage() + consumer * (X_BYTES / CONSUMERS), 0),
                       weight = describe(pipe.stage() + X_BYTES, 0);
        begin_multiply();
#pragma unroll
        for (int slice = 0; slice < STEP_BYTES; slice += SLICE_BYTES)
            multiply_slice<E4M3, N>(sums, x + (slice >> 4), weight + (slice >> 4), k + slice > 0);
        commit_multiply();
        // The multiplies before these are done, so the stage that they read is free.
        wait_multiply<1>();
        if (k > 0) release(last);
        last = pipe.ring.stage;
        pipe.ring.advance();
    }
    if constexpr (E4M3) {
        wait_multiply<0>();
        pin(sums);
        scale<N>(args, w, row, rows, sums);
    }
    if constexpr (N == COLS)
        if (w.col < 0) {
            wait_multiply<0>();
            pin(sums);
            // The columns of low add nothing below, for up has no such rows.
            store<N>(sums, args.low_rows + out_row * args.rank, args.rank, rows, 0, args.rank);
            __threadfence();
            low::order_global_and_tma();
            __syncwarp();
            if (lane == 0) low::signal(w.low_ready);
        }
    for (int k = 0; k < args.rank; k += STEP) {
        wait(pipe.full + 8 * pipe.ring.stage, pipe.ring.phase);
        const uint64_t low = describe(pipe.stage() + consumer * (X_BYTES / CONSUMERS), 0),
                       up = describe(pipe.stage() + X_BYTES, 0);
        // What lies behind the rank is zeros, and left out where it is two slices.
        for (int slice = 0; slice < min(STEP, args.rank - k); slice += 2 * SLICE) {
            begin_multiply();
            multiply(sums, low + (slice >> 3), up + (slice >> 3), 1);
            multiply(sums, low + ((slice + SLICE) >> 3), up + ((slice + SLICE) >> 3), 1);
        }
        commit_multiply();
        wait_multiply<1>();
        release(last);
        last = pipe.ring.stage;
        pipe.ring.advance();
    }
    wait_multiply<0>();
    pin(sums);
    release(last);
    store<N>(sums, args.out + out_row * args.ld_out + w.col, args.ld_out, rows, -w.col, w.end - w.col);
}

template <bool E4M3>
__device__ __forceinline__ void low_rank(const Arguments& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Pipeline pipe;
    pipe.base = uint32_t(__cvta_generic_to_shared(shared));
    pipe.full = pipe.base + BARRIERS, pipe.free = pipe.full + 8 * STAGES;
    const int rank = rank_in_cluster();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(pipe.full + 8 * stage, 1);
            // The consumers of both blocks free a stage, because a fetch writes to both.
            init_barrier(pipe.free + 8 * stage, 2 * WARPS);
        }
        publish_barriers();
    }
    sync_cluster();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        give_registers<56>();
        if (threadIdx.x == 0) {
            each_tile(args, rank,
                      [&](auto width, const Work& w) { fetch_tile<E4M3, width()>(args, w, rank, pipe); });
        }
    } else {
        take_registers<224>();
        float registers[COLS / 2];
        each_tile(args, rank,
                  [&](auto width, const Work& w) { multiply_tile<E4M3, width()>(args, w, pipe, registers); });
    }
    __syncwarp();
    // Until both blocks are here, the other one may still write to this one's shared memory.
    sync_cluster();
    const int shares = 2 * (cluster_rows(args.part_rows[0]) + cluster_rows(args.part_rows[1]));
    low::leave_zeros(ready, shares, &blocks_done);
}

}  // namespace low_rank

// Shared memory, which the launcher passes, is `BARRIERS` and 8 bytes for each barrier. The number of blocks must be
// even.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(low_rank::THREADS, 1)
    low_rank_sm90(const __grid_constant__ low_rank::Arguments args) {
    low_rank::low_rank<false>(args);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(low_rank::THREADS, 1)
    low_rank_e4m3_sm90(const __grid_constant__ low_rank::Arguments args) {
    low_rank::low_rank<true>(args);
}

#endif
