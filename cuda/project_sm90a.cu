// project: the projections before attention and inside a gated MLP, for Hopper: a product whose columns are normed,
// rotated and gated before they are stored
//
// y = x weight^T, rounded to bf16; the weight's rows are k, v and q (dim rows each), then gate and up (mlp rows each);
// dim or mlp may be 0. Of a layer with factors of low rank, y = x weight^T + low up^T, where low is x down^T.
// out = [rope(rms_norm(k)) | v | rope(rms_norm(q)) | silu(gate) * up]; norm and rotation are per head of 128, of pairs
// (2 i, 2 i + 1).
//
//   x       [rows, features] bf16, in one or two parts with a weight each; tensor maps with boxes of 128 bytes of a row
//           (swizzled), a quarter of a tile's rows
//   weight  [3 * dim + 2 * mlp, features] bf16; the same with boxes of 64 rows
//   x and weight may both be e4m3, with float32 scales [rows] of x and [3 * dim + 2 * mlp] of the weight
//   down    [rank, features] like the weight, in each part that has factors. In e4m3 with scales [down_rows]
//   up      [3 * dim + 2 * mlp, rank] bf16; the boxes of the weight. Beside e4m3 each row is divided by the scale of
//           the weight's
//   low     [rows, ld_low] bf16, written and then read by this kernel; the boxes of x. In e4m3 it has the scales of
//           down, and not those of x
//   norms   [128] bf16: for q and k, of text rows (row < txt_rows) and of image rows
//   cos, sin  [txt + img, 64] f32, row stride ld_table; a row's token as in qk_norm_rope.cu
//   out     [rows, 3 * dim + mlp] bf16, row stride ld_out; the first rows may be keys only, and keep what lies behind
//           v. k and q may be e4m3 where x and weight are: the 128 values of a head are the first half of its 256
//           bytes, to the scale that makes `bound_of_heads` of q or k 448
//
// Mapping   Two blocks, on two multiprocessors, make a tile of 256 or 224 rows and 256 columns, half of the columns
//           each: a head, or 64 of gate and the same 64 of up. Each block fetches its own weights, and half of the rows
//           of x for both: a third less comes from L2 than for two single blocks. That saves power, and power is what
//           limits products of this kind that run one after the other. Warpgroups 1 and 2 multiply 128 bytes of 64
//           rows of the weight by those of all rows of x, so that sums are columns by rows: rows come in eights then,
//           and columns in 64s. They are rounded into shared memory, row by row. Warp 0 fetches; warps 1 to 3 take the
//           rounded rows from there, norm, rotate or gate them, and store them, while the next tile is multiplied.
//           Clusters take tiles in turn: some rows of tiles at a time, whose x stays in L2 while weights pass. Where
//           that is all rows of tiles, L2 gives up weights first, and has room for what the ops after this one read.
//           Factors of low rank are more features: their boxes come behind those of x. low comes first: rows of tiles
//           by 128 columns of it take half the time of a tile, so it is there, and counted in `low_warps`, when the
//           others ask for it. Where the last tile of a part has half of its rows or fewer, it is a short one. These
//           come last, so that clusters end together, and take nearly as long as whole ones, because L2 no longer has
//           their weights. Where at most half of the clusters would have a whole tile in the last round, these are made
//           as two short ones each. The launcher takes the height of tiles with which the last clusters end first.
// Needs     sm_90a; heads of 128, dim % 256 == 0, mlp % 128 == 0, features % 8 == 0, rows and vectors 16-byte aligned.
//           With factors all clusters run at once, or those that make low before the others; and one launch at a time
//           on a module, because `low_warps` is its own.
// Rounding  as the composition: y once (in e4m3 before the scales instead of after), then the result once. y is summed
//           in another order than by cuBLASLt.
// Flops     2 * rows * features * (3 * dim + 2 * mlp).   4608 x 3072 -> 27648: 783 GFLOP
// Bound     tensor cores. 783 GFLOP at 989 TFLOP/s (H200, dense bf16) = 791 us
// Measured  us of 3072 -> 27648, launches in a row at the limit of power, tiles of 256 and of 224 rows: 1344 rows 381
//           and 348, 1536 366 and 388, 2624 681 and 660, 4416 1145 and 1129, 4608 1142 and 1183. By tiles of 256 rows
//           whose columns were the short side of multiplies: 384, 367, 681, 1136, 1171. By those, each by itself:
//           4608 x 3072 -> 27648 970 us (807 TFLOP/s), cuBLASLt and the kernels behind it 1.14 times as long; of two
//           streams (512 and 4096 rows) kvq 341 us (766), 1.07 times, mlp 653 us (799), 1.12 times. In e4m3 545 us
//           (1436), 209 (1250), 364 (1433), 1.14 to 1.17 times. A step of 1024 x 1024 takes 52.3 ms instead of
//           54.2, in fp8 34.8 instead of 35.5. H200, driver 580.159, CUDA 13.0; `flux bench ops/project`
// Tried     rows stored one after the other instead of four in step: in e4m3 kvq and mlp 724 us, where the composition
//           takes 645; two in step, with the angles of the next loaded while these are computed: as long. Groups of 3,
//           6 or 18 rows of tiles (18 also in e4m3, whose x L2 would hold), stores past L2, TMA's hints that x should
//           stay in L2 and weights need not: a step of 1024 x 1024, whose weights pass twice, takes as long, within 1%.
//           Columns from the last to the first, so that keys are in L2 for attention: as long. Standalone, sums stored
//           by the warps that multiply, launches back to back, each way 8 times in turn on one GPU, +- 0.3%, TFLOP/s:
//           128 x 256 with the weights for two blocks 679, its sums by TMA 686; 192 x 256, by three warpgroups, which
//           leaves no room for rounded rows, 691, with hints for L2 702; 192 x 192 670; a tile for each warpgroup, 128
//           x 176 or 192, 667 and 670; four blocks together 656 (120 blocks find room); 8 columns of tiles together
//           673; cuBLASLt's 176 x 128 694 to 709. 12288 -> 3072 in tiles of 192 x 192 680, cuBLASLt's 692. Back to back
//           the GPU is at its power limit: 1500 MHz instead of 1980. There 804 without any fetching, 770 without the
//           weights, 710 with the weights of one tile (L2 has them), 713 with nothing stored
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cluster_sm90a.cuh"
#include "low_sm90a.cuh"
#include "multiply_128_sm90a.cuh"
#include "multiply_wide_sm90a.cuh"
#include "project_store_sm90a.cuh"

namespace project {

using namespace hopper;

// How many blocks of this launch are done, and how many warps have stored their part of low. Zeros between launches.
__device__ unsigned blocks_done;
__device__ unsigned low_warps;

// The values of bf16 that one multiply reads of a row, and those of a box.
constexpr int SLICE = 16, BOX = STEP_BYTES / 2;

// sums [64, 2 N] = a [64, 32 bytes] b [2 N, 32 bytes]^T, added to sums if `add`.
template <bool E4M3, int N>
__device__ __forceinline__ void multiply_slice(float (&sums)[N], uint64_t a, uint64_t b, int add) {
    if constexpr (N != 64) multiply<E4M3>(sums, a, b, add);
    else if constexpr (E4M3) multiply_e4m3(sums, a, b, add);
    else multiply(sums, a, b, add);
}

// Two sums of this lane, of a matrix of 8 rows of the weight, of which a warp has 16, by 8 rows of x.
template <int N>
__device__ __forceinline__ uint32_t pair_of(const float (&sums)[N], int eight_of_x, int eight_of_weight) {
    return pack_pair(sums[eight_of_x * 4 + eight_of_weight * 2], sums[eight_of_x * 4 + eight_of_weight * 2 + 1]);
}

// Rounds sums of ROWS rows of x, from FIRST on, into shared memory, where `to` is this lane's chunk of the first rows.
template <int FIRST, int ROWS, int N>
__device__ __forceinline__ void round_rows(const float (&sums)[N], uint32_t to) {
#pragma unroll
    for (int n = FIRST / 8; n < (FIRST + ROWS) / 8; n += 2)
        store_transposed(to + n * 8 * ROW_BYTES, pair_of(sums, n, 0), pair_of(sums, n, 1), pair_of(sums, n + 1, 0),
                         pair_of(sums, n + 1, 1));
}

// Stores what a warpgroup has summed of low: 64 columns of half of a tile's rows.
template <bool E4M3, int ROWS>
__device__ __forceinline__ void store_low(const Arguments& args, const Work<ROWS>& w, int half,
                                          float (&sums)[ROWS / 4]) {
    const int lane = threadIdx.x % 32, first_col = w.col + threadIdx.x / 32 % 4 * 16;
    const int rows = w.rows_of(args, half);
    const long long row = (w.part ? args.part_rows[0] : 0) + w.row + half * (ROWS / 2);
    bf16* to = args.low_rows + row * args.ld_low;
#pragma unroll
    for (int eight_of_weight = 0; eight_of_weight < 2; eight_of_weight++) {
        const int col = first_col + eight_of_weight * 8;
        if (col >= args.ld_low) break;
        // Behind the rows of down are zeros, so any scale will do.
        float scale = 1.0f;
        if constexpr (E4M3) scale = args.down_scales[w.part][min(col + lane / 4, args.down_rows[w.part] - 1)];
#pragma unroll
        for (int eight_of_x = 0; eight_of_x < ROWS / 16; eight_of_x++) {
            if constexpr (E4M3)
#pragma unroll
                for (int i = 0; i < 2; i++) sums[eight_of_x * 4 + eight_of_weight * 2 + i] *= scale;
            const uint32_t pair = transpose_matrix(pair_of(sums, eight_of_x, eight_of_weight));
            const int at = eight_of_x * 8 + lane / 4;
            if (at < rows) *reinterpret_cast<uint32_t*>(to + at * args.ld_low + col + lane % 4 * 2) = pair;
        }
    }
}

template <bool E4M3, bool LOW_RANK, int ROWS>
__device__ __forceinline__ void project(const Arguments& args) {
    using Work = Work<ROWS>;
    constexpr int X_BYTES = ROWS * STEP_BYTES, X_BOX = ROWS / 4, HALF_BYTES = ROWS / 2 * ROW_BYTES;
    constexpr int X = STAGES * WEIGHT_BYTES, ROUNDED = X + STAGES * X_BYTES, BARRIERS = ROUNDED + 2 * HALF_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    const uint32_t full = base + BARRIERS, free = full + 8 * STAGES, rounded_full = free + 8 * STAGES,
                   rounded_free = rounded_full + 8 * 2;
    const int rank = rank_in_cluster();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(full + 8 * stage, 1);
            // The consumers of both blocks free a stage, because a fetch writes to both.
            init_barrier(free + 8 * stage, 2 * CONSUMERS * 4);
        }
        for (int half = 0; half < 2; half++) {
            init_barrier(rounded_full + 8 * half, CONSUMERS * 4);
            init_barrier(rounded_free + 8 * half, STORERS);
        }
        publish_barriers();
    }
    sync_cluster();

    constexpr int FEATURES = E4M3 ? STEP_BYTES : STEP_BYTES / 2;
    const typename Work::Counts counts = Work::template counts<LOW_RANK>(args, gridDim.x / 2);
    const int steps = ceil_div(args.features, FEATURES);
    const auto tile = [&](int turn) { return Work::tile_of(counts, blockIdx.x / 2, gridDim.x / 2, turn); };
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    Ring<STAGES> ring;
    Ring<1> turn;
    if (warp == 0) {
        if (threadIdx.x == 0) {
            bool low_is_there = false;
            const uint64_t policy = Work::weights_pass_once(args) ? evict_first() : evict_normal();
            for (int at = 0, index; (index = tile(at)) >= 0; at++) {
                const Work w = Work::at(args, counts, index, rank);
                const int boxes = w.is_short ? 1 : 2;
                // Half of the rows of x for both blocks, and the block's own boxes of weights.
                const auto fetch = [&](const TensorMap& x, const TensorMap& weight, int feature) {
                    const uint32_t barrier = full + 8 * ring.stage, to = base + ring.stage * WEIGHT_BYTES;
                    wait(free + 8 * ring.stage, ring.phase ^ 1);
                    const bool is_low = LOW_RANK && w.kind == LOW;
                    arrive_expecting(barrier, boxes * (X_BYTES / 2) + (is_low ? BOX_BYTES : WEIGHT_BYTES));
                    for (int box = rank * boxes; box < (rank + 1) * boxes; box++)
                        copy_box_to_both(base + X + ring.stage * X_BYTES + box * X_BOX * STEP_BYTES, x,
                                         w.row + box * X_BOX, feature, barrier);
                    copy_box(to, weight, w.weight, feature, barrier, policy);
                    if (!is_low) copy_box(to + BOX_BYTES, weight, w.weight + w.second, feature, barrier, policy);
                    ring.advance();
                };
                if constexpr (LOW_RANK)
                    if (w.kind == LOW) {
                        for (int step = 0; step < steps; step++)
                            fetch(args.x[w.part], args.down[w.part], step * FEATURES);
                        continue;
                    }
                for (int step = 0; step < steps; step++) fetch(args.x[w.part], args.weight[w.part], step * FEATURES);
                if constexpr (LOW_RANK) {
                    if (!low_is_there && args.ranks[w.part] > 0) {
                        low::wait_for(&low_warps, counts.low * LOW_WARPS);
                        low::order_global_and_tma();
                        low_is_there = true;
                    }
                    for (int k = 0; k < args.ranks[w.part]; k += BOX) fetch(args.low[w.part], args.up[w.part], k);
                }
            }
        }
    } else if (warpgroup == 0) {
        for (int at = 0, index; (index = tile(at)) >= 0; at++) {
            const Work w = Work::at(args, counts, index, rank);
            if (LOW_RANK && w.kind == LOW) continue;
            for (int half = 0; half < 2; half++) {
                wait(rounded_full + 8 * half, turn.phase);
                Half<E4M3, ROWS>(args, w, base + ROUNDED + half * HALF_BYTES, half).store();
                __syncwarp();
                if (threadIdx.x % 32 == 0) arrive(rounded_free + 8 * half);
            }
            turn.advance();
        }
    } else {
        const int consumer = warpgroup - 1, lane = threadIdx.x % 32;
        const auto release = [&](int stage) {
            if (lane < 2) arrive_at(free + 8 * stage, lane);
        };
        // The lane's row of the four matrices that a warp stores at once: two are side by side.
        const int row = lane / 16 * 8 + lane % 8, chunk = (consumer * 4 + threadIdx.x / 32 % 4) * 2 + lane / 8 % 2;
        const uint32_t to = chunk_at(base + ROUNDED, row, chunk);
        // sums = weights x^T of all features, of the rows of x that are `x_bytes` behind the first.
        const auto multiply_features = [&](auto& sums, int weight_bytes, int x_bytes, int factors) {
            int last = 0;
            for (int step = 0; step < steps; step++) {
                wait(full + 8 * ring.stage, ring.phase);
                const uint64_t weight = describe(base + ring.stage * WEIGHT_BYTES + weight_bytes, 0);
                const uint64_t x = describe(base + X + ring.stage * X_BYTES + x_bytes, 0);
                begin_multiply();
#pragma unroll
                for (int byte = 0; byte < STEP_BYTES; byte += 32)
                    multiply_slice<E4M3>(sums, weight + (byte >> 4), x + (byte >> 4), step + byte > 0);
                commit_multiply();
                // The multiplies before these are done, so the stage that they read is free.
                wait_multiply<1>();
                if (step > 0) release(last);
                last = ring.stage;
                ring.advance();
            }
            if constexpr (LOW_RANK) {
                for (int k = 0; k < factors; k += BOX) {
                    wait(full + 8 * ring.stage, ring.phase);
                    const uint64_t up = describe(base + ring.stage * WEIGHT_BYTES + weight_bytes, 0);
                    const uint64_t low = describe(base + X + ring.stage * X_BYTES + x_bytes, 0);
                    // What lies behind the rank is zeros, and left out where it is two slices.
                    for (int slice = 0; slice < min(BOX, factors - k); slice += 2 * SLICE) {
                        begin_multiply();
                        multiply_slice<false>(sums, up + (slice >> 3), low + (slice >> 3), 1);
                        multiply_slice<false>(sums, up + ((slice + SLICE) >> 3), low + ((slice + SLICE) >> 3), 1);
                    }
                    commit_multiply();
                    wait_multiply<1>();
                    release(last);
                    last = ring.stage;
                    ring.advance();
                }
            }
            wait_multiply<0>();
            pin(sums);
            release(last);
        };
        const auto wait_for_room = [&](int half) { wait(rounded_free + 8 * half, turn.phase ^ 1); };
        const auto rounded = [&](int half) {
            __syncwarp();
            if (lane == 0) arrive(rounded_full + 8 * half);
        };
        // The same in all lanes, which the compiler does not see: where paths may differ, it lets each multiply wait
        // for the one in front.
        for (int at = 0, index; (index = __shfl_sync(~0u, tile(at), 0)) >= 0; at++) {
            const Work w = Work::at(args, counts, index, rank);
            float sums[ROWS / 2];
            // The same registers: of others the compiler knows no end.
            auto& of_half = reinterpret_cast<float(&)[ROWS / 4]>(sums);
            if constexpr (LOW_RANK)
                if (w.kind == LOW) {
                    if (w.is_short && consumer > 0) {
                        for (int step = 0; step < steps; step++) {
                            wait(full + 8 * ring.stage, ring.phase);
                            release(ring.stage);
                            ring.advance();
                        }
                    } else {
                        multiply_features(of_half, 0, consumer * (X_BYTES / 2), 0);
                        store_low<E4M3>(args, w, consumer, of_half);
                        __threadfence();
                        low::order_global_and_tma();
                    }
                    __syncwarp();
                    if (lane == 0) low::signal(&low_warps);
                    continue;
                }
            if (w.is_short) {
                multiply_features(of_half, consumer * BOX_BYTES, 0, args.ranks[w.part]);
                wait_for_room(0);
                round_rows<0, ROWS / 2>(of_half, to);
                rounded(0);
                wait_for_room(1);
            } else {
                multiply_features(sums, consumer * BOX_BYTES, 0, args.ranks[w.part]);
                wait_for_room(0);
                round_rows<0, ROWS / 2>(sums, to);
                rounded(0);
                wait_for_room(1);
                round_rows<ROWS / 2, ROWS / 2>(sums, to);
            }
            rounded(1);
            turn.advance();
        }
    }
    __syncwarp();
    // Until both blocks are here, the other one may still write to this one's shared memory.
    sync_cluster();
    if constexpr (LOW_RANK) low::leave_zeros(&low_warps, 1, &blocks_done);
}

}  // namespace project

// Shared memory, which the launcher passes, is `BARRIERS` and 8 bytes for each barrier. The number of blocks must be
// even.
#define PROJECT(name, e4m3, low_rank, rows)                                                     \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(project::THREADS, 1) \
        name(const __grid_constant__ project::Arguments args) {                                 \
        project::project<e4m3, low_rank, rows>(args);                                           \
    }
#define PROJECT_ROWS(rows)                                         \
    PROJECT(project_bf16_##rows##_sm90, false, false, rows)        \
    PROJECT(project_low_rank_##rows##_sm90, false, true, rows)     \
    PROJECT(project_e4m3_##rows##_sm90, true, false, rows)         \
    PROJECT(project_e4m3_low_rank_##rows##_sm90, true, true, rows)

PROJECT_ROWS(256)
PROJECT_ROWS(224)

#endif
