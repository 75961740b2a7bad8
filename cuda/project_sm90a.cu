// project: the projections before attention and inside a gated MLP, for Hopper: a matrix multiplication with columns
// that are normed, rotated and gated before they are stored
//
// y = x weight^T, rounded to bf16; the weight's rows are k, v and q (dim rows each), then gate and up (mlp rows each);
// dim or mlp may be 0. With low-rank factors, y = x weight^T + low up^T, low = x down^T.
// out = [rope(rms_norm(k)) | v | rope(rms_norm(q)) | silu(gate) * up]; norm and rotation are per head of 128, of pairs
// (2 i, 2 i + 1). y is rounded before the scales of e4m3, then the result once.
//
//   x       [rows, features] bf16, in one or two parts with a weight each; tensor maps with boxes of 128 bytes of a row
//           (swizzled), a quarter of a tile's rows
//   weight  [3 * dim + 2 * mlp, features] bf16; boxes of 64 rows. x and weight may both be e4m3, with float32 scales
//           per row
//   down    [rank, features] like the weight, in each part with factors. In e4m3 with scales [down_rows]
//   up      [3 * dim + 2 * mlp, rank] bf16; boxes of the weight. With e4m3 each row is divided by the weight's scale
//   low     [rows, ld_low] bf16, written and then read by this kernel; boxes of x. In e4m3 without the scales of x
//   norms   [128] bf16: for q and k, of text rows (row < txt_rows) and of image rows
//   cos, sin  [txt + img, 64] f32, row stride ld_table; a row's token as in qk_norm_rope.cu
//   out     [rows, 3 * dim + mlp] bf16, row stride ld_out; the first rows may be keys only, and keep the columns after
//           v. With e4m3 operands k and q may be e4m3: the first half of a head's 256 bytes, scaled so that
//           `bound_of_heads` becomes 448; and v may be v8 and v_tiles of attention_e4m3_sm90a.cu, if half a tile is 128
//           of its keys
//
// Mapping   Clusters of two blocks compute tiles of 256 or 224 rows and 256 columns, half of the columns each: a head,
//           or 64 of gate and the same 64 of up. Two warpgroups multiply; warps 1 to 3 store while the next tile is
//           multiplied. Low-rank factors are additional features, and tiles of low come first.
// Needs     sm_90a; heads of 128, dim % 256 == 0, mlp % 128 == 0, features % 8 == 0, rows and vectors 16-byte aligned.
//           With factors the clusters that compute low run at once; one launch at a time per module.
// Bound     tensor cores, 2 * rows * features * (3 * dim + 2 * mlp) flops. 4608 x 3072 -> 27648: 783 GFLOP at 989
//           TFLOP/s (H200, dense bf16) = 791 us
// Measured  back to back at the power limit 1142 us; single launches 970 us, in e4m3 545 us; docs/kernels-gemm.md
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "low_sm90a.cuh"
#include "pipeline_sm90a.cuh"
#include "project_store_sm90a.cuh"

namespace project {

using namespace hopper;

// The number of finished blocks of this launch, and the number of warps that have stored their part of low. Zeros
// between launches.
__device__ unsigned blocks_done;
__device__ unsigned low_warps;

// The bf16 values of a row in a box.
constexpr int BOX = STEP_BYTES / 2;

// Stores a warpgroup's sums of low: 64 columns of half of a tile's rows.
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
        // Columns past the rows of down are zeros, so any scale will do.
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
    constexpr int X_BYTES = ROWS * STEP_BYTES, X_BOX = ROWS / 4;
    constexpr int X = STAGES * WEIGHT_BYTES, ROUNDED = X + STAGES * X_BYTES;
    constexpr int BARRIERS = ROUNDED + Epilogue<E4M3, ROWS>::BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    Ring<STAGES, 2> ring(base + BARRIERS);
    const Ring<2> halves(ring.full + ring.BARRIER_BYTES);
    float* largest = reinterpret_cast<float*>(shared + (halves.full + halves.BARRIER_BYTES - base));
    Epilogue<E4M3, ROWS> epilogue{args, base + ROUNDED, halves, largest};
    const int rank = rank_in_cluster<2>();
    if (threadIdx.x == 0) {
        ring.init(CONSUMERS * 4, 1);
        epilogue.halves.init(STORERS, CONSUMERS * 4);
        publish_barriers();
    }
    sync_cluster<2>();

    constexpr int FEATURES = E4M3 ? STEP_BYTES : STEP_BYTES / 2;
    const typename Work::Counts counts = Work::template counts<LOW_RANK>(args, gridDim.x / 2);
    const int steps = ceil_div(args.features, FEATURES);
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == 0) {
        if (threadIdx.x == 0) {
            bool low_is_there = false;
            const uint64_t policy = l2_policy(Work::weights_pass_once(args));
            Work::template each<false>(args, counts, rank, [&](const Work& w) {
                const int boxes = w.is_short ? 1 : 2;
                // Half of the rows of x for both blocks, and the block's own boxes of weights.
                const auto fetch = [&](const TensorMap& x, const TensorMap& weight, int feature) {
                    const uint32_t to = base + ring.stage * WEIGHT_BYTES;
                    const bool is_low = LOW_RANK && w.kind == LOW;
                    const uint32_t barrier = ring.fetch(boxes * (X_BYTES / 2) + (is_low ? BOX_BYTES : WEIGHT_BYTES));
                    for (int box = rank * boxes; box < (rank + 1) * boxes; box++)
                        copy_box<2>(base + X + ring.stage * X_BYTES + box * X_BOX * STEP_BYTES, x,
                                    w.row + box * X_BOX, feature, barrier);
                    copy_box(to, weight, w.weight, feature, barrier, policy);
                    if (!is_low) copy_box(to + BOX_BYTES, weight, w.weight + w.second, feature, barrier, policy);
                    ring.advance();
                };
                if constexpr (LOW_RANK)
                    if (w.kind == LOW) {
                        for (int step = 0; step < steps; step++)
                            fetch(args.x[w.part], args.down[w.part], step * FEATURES);
                        return;
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
            });
        }
    } else if (warpgroup == 0) {
        Work::template each<false>(args, counts, rank, [&](const Work& w) {
            if (LOW_RANK && w.kind == LOW) return;
            epilogue.store(w);
        });
    } else {
        const int consumer = warpgroup - 1, lane = threadIdx.x % 32;
        // The lane's row of the four matrices that a warp stores at once: two are adjacent.
        const int row = lane / 16 * 8 + lane % 8, chunk = (consumer * 4 + threadIdx.x / 32 % 4) * 2 + lane / 8 % 2;
        const uint32_t to = chunk_at(base + ROUNDED, row, chunk);
        // sums = weights x^T of all features, for the rows of x that are `x_bytes` after the first.
        const auto multiply_features = [&](auto& sums, int weight_bytes, int x_bytes, int factors) {
            Multiplies<WEIGHT_BYTES, X_BYTES, STAGES> multiplies{ring, base + weight_bytes, base + X + x_bytes};
            multiplies.template features<E4M3>(sums, steps, 1);
            if constexpr (LOW_RANK) multiplies.factors(sums, factors);
            multiplies.end(sums);
        };
        float sums[ROWS / 2];
        // The same registers: for separate arrays the compiler sees no end of their lifetime.
        auto& of_half = reinterpret_cast<float(&)[ROWS / 4]>(sums);
        Work::template each<true>(args, counts, rank, [&](const Work& w) {
            if constexpr (LOW_RANK)
                if (w.kind == LOW) {
                    if (w.is_short && consumer > 0) {
                        for (int step = 0; step < steps; step++) {
                            ring.wait_full();
                            ring.release(ring.stage, lane);
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
                    return;
                }
            if (w.is_short) {
                multiply_features(of_half, consumer * BOX_BYTES, 0, args.ranks[w.part]);
                epilogue.round(of_half, to, lane);
            } else {
                multiply_features(sums, consumer * BOX_BYTES, 0, args.ranks[w.part]);
                epilogue.round(sums, to, lane);
            }
            epilogue.end(lane);
        });
    }
    leave_cluster<2>();
    if constexpr (LOW_RANK) low::leave_zeros(&low_warps, 1, &blocks_done);
}

}  // namespace project

// The launcher passes the shared memory, `BARRIERS`, 8 bytes for each barrier and 8 for each storing warp. The number
// of blocks must be even.
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
