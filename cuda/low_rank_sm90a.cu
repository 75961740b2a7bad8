// low_rank: linear layers with low-rank factors, for Hopper: out = x weight^T + low up^T, rounded to bf16 once; low = x
// down^T, rounded to bf16
//
//   x       [rows, features] bf16, in one or two parts with a weight and factors each; tensor maps with boxes of 128
//           bytes of a row (swizzled), 128 rows
//   weight  [cols, features], up [cols, rank] bf16; maps with boxes of 128 rows, and of 16
//   down    [rank, features] bf16; boxes of 16 rows
//   x, weight and down may all be e4m3, with float32 scales [rows], [cols] and [down_rows], down_rows even
//   low     [rows, rank] bf16, written and then read by this kernel; boxes of 128 rows. rank is padded to a multiple of
//           16; cells outside of the maps of down and up are zeros
//   out     [rows, cols] bf16, row stride ld_out; 16-byte aligned, cols % 8 == 0
//
// Mapping   The rows of down precede those of the weight, as if they were one matrix: x is read once, and low is the
//           first `rank` columns of the result. Clusters of two blocks compute tiles of 256 rows and 256 columns, half
//           of the rows each; a block fetches its own rows, and half of the weights for both. The column of tiles with
//           low comes first: its blocks store low and count it in `ready`. The factors are additional features of every
//           tile, after the others. Narrow tiles of 128, 96 or 32 columns come last, so that all clusters end at about
//           the same time. Sums of e4m3 are scaled before the factors, which have no scales.
// Needs     sm_90a; rank <= 128. All clusters run at once, or there are fewer rows of tiles than running clusters: a
//           cluster that waits for low keeps its multiprocessors. One launch at a time per module, because of `ready`.
// Bound     tensor cores, 2 * rows * features * (cols + rank) flops. 4608 x 12288 -> 3072, rank 32: 351 GFLOP at 989
//           TFLOP/s (H200, dense bf16) = 355 us
// Measured  481 us (733 TFLOP/s), on an H100 in e4m3 311 us; docs/kernels-gemm.md
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "low_sm90a.cuh"
#include "pipeline_sm90a.cuh"

namespace low_rank {

using namespace hopper;

constexpr int ROWS = 128, COLS = 256;  // per block of a whole tile
constexpr int STEP = STEP_BYTES / 2;  // of low and up, in values
constexpr int STAGES = 4;
constexpr int CONSUMERS = 2, WARPS = 4 * CONSUMERS;  // multiplying warpgroups and warps
constexpr int BOX = 16;                              // box rows of tiles that are narrow or begin with down
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
    int narrow_cols;    // columns of narrow tiles, after them
    int narrow_width;   // 32, 96 or 128
    int rows_of_tiles;  // rows of whole tiles in a group
};

// The number of finished blocks of this launch, and the number of warps of each block's share of a row of tiles that
// have stored low. Zeros between launches.
__device__ unsigned blocks_done;
__device__ unsigned ready[2 * MAX_TILE_ROWS];

__device__ __forceinline__ int cluster_rows(int rows) { return ceil_div(rows, 2 * ROWS); }

// A block's share of a tile: the part of x and the first row in it, the tile's first column of out (negative in the
// columns of low), the column after its last, and the counter of warps that have stored low of these rows.
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

// Returns the values of x, weight and down in `bytes` bytes of a row.
template <bool E4M3>
__host__ __device__ constexpr int values_of(int bytes) {
    return E4M3 ? bytes : bytes / 2;
}

// Fetches a block's rows of x and half of the N weights for both blocks, step by step, then low and up.
template <bool E4M3, int N>
__device__ __forceinline__ void fetch_tile(const Arguments& args, const Work& w, int rank, uint32_t base,
                                           Ring<STAGES, 2>& ring) {
    const int first = w.col + rank * (N / 2);
    const auto begin = [&](const TensorMap& x, int k) {
        const uint32_t barrier = ring.fetch(X_BYTES + N * STEP_BYTES);
        copy_box(base + ring.stage * STAGE_BYTES, x, w.row, k, barrier);
        return barrier;
    };
    const auto half = [&] { return base + ring.stage * STAGE_BYTES + X_BYTES + rank * (N / 2) * STEP_BYTES; };
    const auto weights = [&](const TensorMap& boxes, const TensorMap& narrow, int k, uint32_t barrier) {
        if constexpr (N == COLS) copy_box<2>(half(), boxes, first, k, barrier);
        else
#pragma unroll
            for (int row = 0; row < N / 2; row += BOX)
                copy_box<2>(half() + row * STEP_BYTES, narrow, first + row, k, barrier);
    };
    for (int k = 0; k < args.features; k += values_of<E4M3>(STEP_BYTES)) {
        const uint32_t barrier = begin(args.x[w.part], k);
        if (first >= 0) {
            weights(args.weight[w.part], args.weight_boxes[w.part], k, barrier);
        } else {
            for (int row = 0; row < N / 2; row += BOX) {
                const bool of_down = first + row < 0;
                const TensorMap& boxes = (of_down ? args.down_boxes : args.weight_boxes)[w.part];
                copy_box<2>(half() + row * STEP_BYTES, boxes, of_down ? row : first + row, k, barrier);
            }
        }
        ring.advance();
    }
    low::wait_for(w.low_ready, WARPS);
    low::order_global_and_tma();
    for (int k = 0; k < args.rank; k += STEP) {
        const uint32_t barrier = begin(args.low[w.part], k);
        weights(args.up[w.part], args.up_boxes[w.part], k, barrier);
        ring.advance();
    }
}

// Stores the columns from `begin` to `end` of N columns of a warp's 16 rows; `to` is the destination of column 0 of its
// first row.
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

// Multiplies the sums of a warp's 16 rows by the scales of their rows and columns; the part has `rows` rows from `row`
// on. Cells outside of the part or of out are not stored, so any scale will do.
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

// `registers` hold the sums of tiles of all widths: for separate arrays the compiler sees no end of their lifetime.
template <bool E4M3, int N>
__device__ __forceinline__ void multiply_tile(const Arguments& args, const Work& w, uint32_t base,
                                              Ring<STAGES, 2>& ring, float (&registers)[COLS / 2]) {
    const int consumer = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    const int row = w.row + consumer * (ROWS / CONSUMERS) + threadIdx.x / 32 % 4 * 16;
    const int rows = args.part_rows[w.part] - row;
    const long long out_row = (w.part ? args.part_rows[0] : 0) + row;
    auto& sums = reinterpret_cast<float(&)[N / 2]>(registers);
    Multiplies<STAGE_BYTES, STAGE_BYTES, STAGES> multiplies{ring, base + consumer * (X_BYTES / CONSUMERS),
                                                            base + X_BYTES};
    multiplies.template features<E4M3>(sums, args.features, values_of<E4M3>(STEP_BYTES));
    if constexpr (E4M3) {
        wait_multiply<0>();
        pin(sums);
        scale<N>(args, w, row, rows, sums);
    }
    if constexpr (N == COLS)
        if (w.col < 0) {
            wait_multiply<0>();
            pin(sums);
            // The columns of low add nothing below, because up has no such rows.
            store<N>(sums, args.low_rows + out_row * args.rank, args.rank, rows, 0, args.rank);
            __threadfence();
            low::order_global_and_tma();
            __syncwarp();
            if (lane == 0) low::signal(w.low_ready);
        }
    multiplies.factors(sums, args.rank);
    multiplies.end(sums);
    store<N>(sums, args.out + out_row * args.ld_out + w.col, args.ld_out, rows, -w.col, w.end - w.col);
}

template <bool E4M3>
__device__ __forceinline__ void low_rank(const Arguments& args) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    Ring<STAGES, 2> ring(base + BARRIERS);
    const int rank = rank_in_cluster<2>();
    if (threadIdx.x == 0) {
        ring.init(WARPS, 1);
        publish_barriers();
    }
    sync_cluster<2>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        give_registers<56>();
        if (threadIdx.x == 0) {
            each_tile(args, rank,
                      [&](auto width, const Work& w) { fetch_tile<E4M3, width()>(args, w, rank, base, ring); });
        }
    } else {
        take_registers<224>();
        float registers[COLS / 2];
        each_tile(args, rank,
                  [&](auto width, const Work& w) { multiply_tile<E4M3, width()>(args, w, base, ring, registers); });
    }
    leave_cluster<2>();
    const int shares = 2 * (cluster_rows(args.part_rows[0]) + cluster_rows(args.part_rows[1]));
    low::leave_zeros(ready, shares, &blocks_done);
}

}  // namespace low_rank

// The launcher passes the shared memory, `BARRIERS` and 8 bytes for each barrier. The number of blocks must be even.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(low_rank::THREADS, 1)
    low_rank_sm90(const __grid_constant__ low_rank::Arguments args) {
    low_rank::low_rank<false>(args);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(low_rank::THREADS, 1)
    low_rank_e4m3_sm90(const __grid_constant__ low_rank::Arguments args) {
    low_rank::low_rank<true>(args);
}

#endif
