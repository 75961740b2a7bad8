// attention for Hopper, head_dim 128: the contract of attention.cu, with warpgroup matrix multiplies
//
//   q, k, v  tensor maps over [rows, heads * 128] bf16: boxes of 64 columns (128-byte swizzle) and 128 rows for q, 176
//            for k, v
//   out      [rows, heads * 128] bf16, row stride ld_out; may be q
//   The other arguments are as in attention.cu. With keys > 0, the tokens of a sample must be contiguous (batch 1, txt
//   0 or img 0).
//   cached   attention_cached only: keys of the maps cached_k and cached_v, which every query sees as well; keys = 0
//            and batch 1
//
// Mapping   One block per multiprocessor computes query tiles (128 tokens of one head) in turn. Warp 0 fetches Q, and K
//           and V tiles of 176 keys through two stages each. Warpgroups 1 and 2 have 64 query rows each, and multiply
//           the next K tile while they compute the softmax of the last; they issue their multiplies in turn. If text
//           and image of a sample are not contiguous, each has its own tiles. Cached keys are a second run, from other
//           maps and without queries.
// Order     Without a mask the last tile of keys, the shortest, comes first, with as few as 32 scores. With a mask the
//           first tile comes first, because a query that has seen no key has no greatest score.
// Pairs     Two blocks compute two query tiles of one head and sample, and each fetches half of the columns of every K
//           and V tile for both. If a head has an odd number of tiles, the partner of the last one has no tokens: it
//           fetches and multiplies as well, but stores nothing. The result is bit-identical to that of single blocks.
// In place  A tile's queries are in shared memory before its output is written, and no other tile stores into its rows.
//           Boxes may extend past the end of a run; those rows are not stored, and those keys are masked.
// Needs     sm_90a; rows 16-byte aligned. Pairs: an even number of blocks, and keys = 0, because blocks of a pair that
//           saw different keys would wait for each other forever.
// Bound     tensor cores. 24 x 128, 4608 tokens: 261 GFLOP at 989 TFLOP/s (H200, dense bf16) = 264 us
// Measured  373 us (699 TFLOP/s), single blocks 374; docs/kernels-attention.md

#include "attention.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "pipeline_sm90a.cuh"

namespace attention {

using namespace hopper;

constexpr int HEAD_DIM = 128;
constexpr int QUERIES = 128;
constexpr int KEYS = 176;  // per tile: the most with scores, weights and output in 240 registers
constexpr int STAGES = 2;

struct Shared {
    static constexpr int QUERY_PANEL = QUERIES * 128, KEY_PANEL = KEYS * 128;  // bytes; a panel is 64 columns
    static constexpr int KEY_TILE = KEY_PANEL * 2;
    static constexpr int K = QUERY_PANEL * 2, V = K + STAGES * KEY_TILE, BARRIERS = V + STAGES * KEY_TILE;
};

// The rows of a query tile, and the runs of rows with its keys.
struct Work {
    int head, key_tiles, first_tiles;
    int opening;                  // the first tile of keys
    int run_row[2], run_keys[2];  // rows of k and v, and keys, of the two runs; the second may be empty
    int row, token, tokens;       // the tile's first row of q and out, its place in its own run, and tokens of that run

    // Returns tile `rank` of item `index`, for block `rank` of a cluster. The tile may be past the last, without
    // tokens. `cached` keys are a second run without queries.
    template <int BLOCKS, bool CACHED>
    __device__ __forceinline__ static Work at(int index, int rank, int batch, int txt, int img, int first_query,
                                              int heads, int keys, int cached) {
        const bool apart = !CACHED && batch > 1 && txt > 0 && img > 0;
        const int len0 = apart ? txt : txt + img, len1 = apart ? img : 0, keys1 = CACHED ? cached : len1;
        const int tiles0 = ceil_div(len0 - first_query, QUERIES),
                  items = ceil_div(tiles0 + ceil_div(len1, QUERIES), BLOCKS);
        // Later queries see more keys under a causal mask, so they come first.
        const int tile = (items - 1 - index % items) * BLOCKS + rank, sample = index / items / heads;
        Work w;
        w.head = index / items % heads;
        w.run_row[0] = sample * len0;
        w.run_row[1] = CACHED ? 0 : batch * len0 + sample * len1;
        const bool second = tile >= tiles0;
        w.token = second ? (tile - tiles0) * QUERIES : first_query + tile * QUERIES;
        w.tokens = second ? len1 : len0;
        w.row = (second ? w.run_row[1] : w.run_row[0]) + w.token - batch * first_query;
        w.run_keys[0] = visible_keys(w.token + QUERIES - 1, len0, keys);
        w.run_keys[1] = keys1;
        w.first_tiles = ceil_div(w.run_keys[0], KEYS);
        w.key_tiles = w.first_tiles + ceil_div(keys1, KEYS);
        w.opening = keys == 0 ? w.first_tiles - 1 : 0;
        return w;
    }

    // Returns the tile of keys at `turn`.
    __device__ __forceinline__ int tile_at(int turn) const { return turn == 0 ? opening : turn - (turn <= opening); }
};

// Returns the number of items; an item has one tile of one head and sample per block of a cluster.
template <int BLOCKS>
__device__ __forceinline__ int work_items(int batch, int txt, int img, int first_query, int heads) {
    const bool apart = batch > 1 && txt > 0 && img > 0;
    const int tiles = apart ? ceil_div(txt - first_query, QUERIES) + ceil_div(img, QUERIES)
                            : ceil_div(txt + img - first_query, QUERIES);
    return ceil_div(tiles, BLOCKS) * heads * batch;
}

// Computes the online softmax of rows lane / 4 and lane / 4 + 8 of a warp's 16: scores become exp2(scale * (score -
// greatest)). `fade` is the factor for earlier sums.
template <int N>
__device__ __forceinline__ void soften(float (&score)[N], float (&top)[2], float (&sum)[2], float (&fade)[2],
                                       float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float greatest = top[half];
#pragma unroll
        for (int n = half * 2; n < N; n += 4) greatest = fmaxf(greatest, fmaxf(score[n], score[n + 1]));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
        const float shift = -greatest * scale;
        fade[half] = exp2_approx(fmaf(top[half], scale, shift));
        top[half] = greatest;
        float part = 0.f;
#pragma unroll
        for (int n = half * 2; n < N; n += 4) {
            score[n] = exp2_approx(fmaf(score[n], scale, shift));
            score[n + 1] = exp2_approx(fmaf(score[n + 1], scale, shift));
            part += score[n] + score[n + 1];
        }
        sum[half] = fmaf(sum[half], fade[half], part);
    }
}

// Sets masked keys to -inf. `visible`: keys of this tile that the lane's two rows see.
template <int N>
__device__ __forceinline__ void hide(float (&score)[N], const int (&visible)[2]) {
    const int key = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++)
        if (key + n / 4 * 8 + n % 2 >= visible[n / 2 % 2]) score[n] = -INFINITY;
}

// Issues score [64, 2 N] = the warpgroup's queries times the first 2 N keys of a K tile.
template <int N>
__device__ __forceinline__ void issue_scores(float (&score)[N], uint64_t queries, uint64_t k_tile) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        // 16 columns are 32 bytes inside a panel.
        const int panel = d / 4, inside = d % 4 * 32;
        multiply(score, queries + ((panel * Shared::QUERY_PANEL + inside) >> 4),
                 k_tile + ((panel * Shared::KEY_PANEL + inside) >> 4), d > 0);
    }
    commit_multiply();
}

// Issues output [64, 128] += weights [64, KEYS] times a V tile.
__device__ __forceinline__ void issue_output(float (&output)[64], const uint32_t (&weights)[KEYS / 16][4],
                                             uint64_t v_tile) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) multiply_values(output, weights[n], v_tile + ((n * 16 * 128) >> 4));
    commit_multiply();
}

// Rounds scores to weights; they are already in the registers that the left operand requires. Keys beyond the scores
// get weight 0.
template <int N>
__device__ __forceinline__ void round_weights(uint32_t (&weights)[KEYS / 16][4], const float (&score)[N]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        weights[i / 4][i % 4] = 2 * i < N ? pack_pair(score[2 * i], score[2 * i + 1]) : 0;
}

// Stores the lane's two rows of 128 columns.
__device__ __forceinline__ void store_output(
    const float (&output)[64], const float (&sum)[2], __nv_bfloat16* out, int ld_out, int row, int token, int tokens) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const float share = 1.f / total;
        __nv_bfloat16* to = out + int64_t(row + half * 8) * ld_out + lane * 8;
        store_row(output, half, share, to, token + half * 8 < tokens);
    }
}

template <int BLOCKS, bool CACHED>
__device__ __forceinline__ void attend(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                       const TensorMap& cached_k, const TensorMap& cached_v, __nv_bfloat16* out,
                                       int ld_out, int batch, int txt, int img, int first_query, int heads, int group,
                                       int keys, float scale, int cached) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    const Ring<1> q_ring(base + Shared::BARRIERS);
    Ring<STAGES, BLOCKS> k_ring(q_ring.full + q_ring.BARRIER_BYTES), v_ring(k_ring.full + k_ring.BARRIER_BYTES);
    constexpr int CONSUMER_WARPS = 8;
    const int rank = rank_in_cluster<BLOCKS>();
    if (threadIdx.x == 0) {
        q_ring.init(CONSUMER_WARPS, 1);
        k_ring.init(CONSUMER_WARPS, 1, v_ring);
        publish_barriers();
    }
    sync_cluster<BLOCKS>();

    const int items = work_items<BLOCKS>(batch, txt, img, first_query, heads);
    const int cluster = blockIdx.x / BLOCKS, clusters = gridDim.x / BLOCKS;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    uint32_t q_phase = 0;
    if (warpgroup == 0) {
        give_registers<24>();
        // The whole warp iterates over the items, so that its counters are in uniform registers: with pairs, a single
        // thread needs more than 24 registers.
        if (__shfl_sync(~0u, threadIdx.x / 32, 0) == 0) {
            for (int index = cluster; index < items; index += clusters) {
                const Work w = Work::at<BLOCKS, CACHED>(index, rank, batch, txt, img, first_query, heads, keys, cached);
                const int q_col = w.head * HEAD_DIM, kv_col = w.head / group * HEAD_DIM;
                const auto fetch = [&](const TensorMap& rows, const TensorMap& cached_rows, int turn, uint32_t to,
                                       Ring<STAGES, BLOCKS>& ring) {
                    const int tile = w.tile_at(turn);
                    const TensorMap& map = CACHED && tile >= w.first_tiles ? cached_rows : rows;
                    const int row = tile < w.first_tiles ? w.run_row[0] + tile * KEYS
                                                         : w.run_row[1] + (tile - w.first_tiles) * KEYS;
                    to += ring.stage * Shared::KEY_TILE;
                    ring.wait_free();
                    if (threadIdx.x == 0) {
                        const uint32_t full = ring.expect(Shared::KEY_TILE);
                        copy_box<BLOCKS>(to + rank * Shared::KEY_PANEL, map, row, kv_col + rank * 64, full);
                        if constexpr (BLOCKS == 1) copy_box(to + Shared::KEY_PANEL, map, row, kv_col + 64, full);
                    }
                    ring.advance();
                };
                wait(q_ring.free, q_phase ^ 1);
                if (threadIdx.x == 0) {
                    const uint32_t full = q_ring.expect(Shared::QUERY_PANEL * 2);
                    copy_box(base, q, w.row, q_col, full);
                    copy_box(base + Shared::QUERY_PANEL, q, w.row, q_col + 64, full);
                }
                q_phase ^= 1;
                // In the order of use: a V tile is needed after the next K tile.
                for (int turn = 0; turn < w.key_tiles; turn++) {
                    fetch(k, cached_k, turn, base + Shared::K, k_ring);
                    if (turn > 0) fetch(v, cached_v, turn - 1, base + Shared::V, v_ring);
                }
                fetch(v, cached_v, w.key_tiles - 1, base + Shared::V, v_ring);
            }
        }
    } else {
        take_registers<240>();
        const int mine = warpgroup - 1, lane = threadIdx.x % 32;
        const int my_row = mine * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;  // in the tile; and this one + 8
        const uint64_t queries = describe(base + mine * 64 * 128, 0);
        // Barrier 1 + w is warpgroup w's turn; the first one begins.
        if (mine == 1) give_turn(1, 256);
        for (int index = cluster; index < items; index += clusters) {
            const Work w = Work::at<BLOCKS, CACHED>(index, rank, batch, txt, img, first_query, heads, keys, cached);
            float output[64] = {}, score[KEYS / 2];
            float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, fade[2];
            uint32_t weights[KEYS / 16][4];
            const auto mask = [&](auto& score, int tile) {
                const int from = tile < w.first_tiles ? tile * KEYS : (tile - w.first_tiles) * KEYS;
                const int end = tile < w.first_tiles ? w.run_keys[0] : w.run_keys[1];
                if (end - from >= KEYS && (keys == 0 || w.token >= from + KEYS)) return;
                int visible[2];
#pragma unroll
                for (int half = 0; half < 2; half++)
                    visible[half] = visible_keys(w.token + my_row + half * 8, end, keys) - from;
                hide(score, visible);
            };
            // Turns the scores of the opening tile, as many as `score` holds, into weights.
            const auto open = [&](auto& score) {
                wait_turn(1 + mine, 256);
                begin_multiply();
                issue_scores(score, queries, describe(base + Shared::K + k_ring.stage * Shared::KEY_TILE, 0));
                give_turn(2 - mine, 256);
                wait_multiply<0>();
                pin(score);
                k_ring.release(k_ring.stage, lane);
                k_ring.advance();
                if (w.key_tiles == 1) q_ring.release(0, lane);
                mask(score, w.opening);
                soften(score, top, sum, fade, scale);
                round_weights(weights, score);
            };

            wait(q_ring.full, q_phase);
            q_phase ^= 1;
            k_ring.wait_full();
            const int opening_keys = w.run_keys[0] - w.opening * KEYS;
            if (opening_keys <= 32) {
                float narrow[16];
                open(narrow);
            } else if (opening_keys <= 96) {
                float narrow[48];
                open(narrow);
            } else if (opening_keys <= 128) {
                float narrow[64];
                open(narrow);
            } else {
                open(score);
            }

            for (int turn = 1; turn < w.key_tiles; turn++) {
                k_ring.wait_full();
                wait_turn(1 + mine, 256);
                begin_multiply();
                issue_scores(score, queries, describe(base + Shared::K + k_ring.stage * Shared::KEY_TILE, 0));
                v_ring.wait_full();
                begin_multiply();
                issue_output(output, weights,
                             describe(base + Shared::V + v_ring.stage * Shared::KEY_TILE, Shared::KEY_PANEL));
                give_turn(2 - mine, 256);
                wait_multiply<1>();
                pin(score);
                k_ring.release(k_ring.stage, lane);
                k_ring.advance();
                if (turn == w.key_tiles - 1) q_ring.release(0, lane);
                mask(score, w.tile_at(turn));
                soften(score, top, sum, fade, scale);
                wait_multiply<0>();
                pin(output);
                pin(score);
                v_ring.release(v_ring.stage, lane);
                v_ring.advance();
                round_weights(weights, score);
#pragma unroll
                for (int i = 0; i < 64; i++) output[i] *= fade[i / 2 % 2];
            }

            v_ring.wait_full();
            begin_multiply();
            issue_output(output, weights,
                         describe(base + Shared::V + v_ring.stage * Shared::KEY_TILE, Shared::KEY_PANEL));
            wait_multiply<0>();
            pin(output);
            v_ring.release(v_ring.stage, lane);
            v_ring.advance();
            store_output(output, sum, out + w.head * HEAD_DIM, ld_out, w.row + my_row, w.token + my_row, w.tokens);
        }
        if (mine == 0) wait_turn(1, 256);  // takes the last turn, so that the barrier ends as it began
    }
    leave_cluster<BLOCKS>();
}

}  // namespace attention

// The launcher passes the shared memory, (128 + 4 * 176) * 256 + 128 bytes; it must agree with `Shared`.
#define ATTENTION(name, blocks, ...)                                                                                   \
    extern "C" __global__ void __VA_ARGS__ __launch_bounds__(384, 1)                                                   \
        name(const __grid_constant__ hopper::TensorMap q, const __grid_constant__ hopper::TensorMap k,                 \
             const __grid_constant__ hopper::TensorMap v, __nv_bfloat16* out, int ld_out, int batch, int txt, int img, \
             int first_query, int heads, int group, int keys, float scale) {                                           \
        attention::attend<blocks, false>(q, k, v, k, v, out, ld_out, batch, txt, img, first_query, heads, group, keys, \
                                         scale, 0);                                                                    \
    }

ATTENTION(attention_bf16_128_sm90, 1)
ATTENTION(attention_bf16_128_pairs_sm90, 2, __cluster_dims__(2, 1, 1))

#define ATTENTION_CACHED(name, blocks, ...)                                                                            \
    extern "C" __global__ void __VA_ARGS__ __launch_bounds__(384, 1)                                                   \
        name(const __grid_constant__ hopper::TensorMap q, const __grid_constant__ hopper::TensorMap k,                 \
             const __grid_constant__ hopper::TensorMap v, const __grid_constant__ hopper::TensorMap cached_k,          \
             const __grid_constant__ hopper::TensorMap cached_v, __nv_bfloat16* out, int ld_out, int tokens,           \
             int first_query, int heads, int group, int cached, float scale) {                                         \
        attention::attend<blocks, true>(q, k, v, cached_k, cached_v, out, ld_out, 1, 0, tokens, first_query, heads,    \
                                        group, 0, scale, cached);                                                      \
    }

ATTENTION_CACHED(attention_cached_bf16_128_sm90, 1)
ATTENTION_CACHED(attention_cached_bf16_128_pairs_sm90, 2, __cluster_dims__(2, 1, 1))

#endif
