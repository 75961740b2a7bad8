// attention for Hopper, one head of 512 or several, no mask: out = softmax(scale * q k^T) v
//
//   q, k, v  tensor maps over [rows, heads * 512] bf16: boxes of 64 columns (128-byte swizzle) and 64 rows for q, 128
//            (in pairs 64) for k, 32 for v
//   out      [rows, heads * 512] bf16, row stride ld_out; may be q
//   tokens   keys of each sample, in contiguous rows
//   queries  queries of each sample, in contiguous rows: all of its tokens, or some of them
//   group    query heads for each key head
//   scale    log2(e) / sqrt(512), because weights are powers of two
//
// Mapping   One block per 64 queries of a head. Keys and values are loaded in chunks of 16 KiB, four of each: 64
//           columns of a tile of 128 keys, and 256 columns of 32 values. Warp 0 fetches Q and keys, warp 1 values.
//           Warpgroup 1 computes the scores of a tile and their softmax, and writes the weights in bf16 to shared
//           memory, which has room for two tiles of weights. Warpgroups 2 and 3 compute 256 columns of output each.
// Order     Weights are released only after the scores of the next tile are issued. So the tensor cores compute these
//           scores first, and the output overlaps their softmax. If output came first, its warpgroups would soon run
//           out of weights, and the tensor cores would idle during each softmax.
// Pairs     Two blocks compute two neighbouring query tiles, and each fetches half of every chunk for both. With an odd
//           number of tiles, the partner of the last one has no queries: it fetches and multiplies as well, but stores
//           nothing. The result is bit-identical to that of single blocks.
// In place  A tile's queries are in shared memory before its output is written, and no other block's output depends on
//           them or is in its rows. Boxes may extend past the end of a sample; those rows are not stored, and those
//           keys are masked.
// Needs     sm_90a; rows 16-byte aligned. Pairs: an even number of blocks.
// Bound     tensor cores. 65536 pixels: 8.8 TFLOP at 989 TFLOP/s (H100, dense bf16) = 8.9 ms
// Measured  12.6 ms (700 TFLOP/s), single blocks 13.8; H100; docs/kernels-attention.md

#include "attention.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "pipeline_sm90a.cuh"

namespace attention {

using namespace hopper;

constexpr int HEAD_DIM = 512;
constexpr int QUERIES = 64;
constexpr int KEYS = 128;   // per tile
constexpr int VALUES = 32;  // per chunk
constexpr int COLS = 256;   // output columns per warpgroup
constexpr int STAGES = 4;   // each for keys and values
constexpr int WARPS = 4;    // per warpgroup

struct Shared {
    static constexpr int QUERY_PANEL = QUERIES * 128, VALUE_PANEL = VALUES * 128;  // bytes; a panel is 64 columns
    static constexpr int CHUNK = KEYS * 128, WEIGHTS = KEYS / 64 * QUERY_PANEL;
    static constexpr int K = HEAD_DIM / 64 * QUERY_PANEL, V = K + STAGES * CHUNK, P = V + STAGES * CHUNK,
                         FADE = P + 2 * WEIGHTS, SHARE = FADE + 2 * QUERIES * 4, BARRIERS = SHARE + QUERIES * 4;
    static_assert(CHUNK == COLS / 64 * VALUE_PANEL, "chunks of keys and of values are of one size");
};

extern __shared__ __align__(1024) unsigned char shared[];

// Returns one float per query: the factor of the output so far before weights of buffer 0 or 1 are added.
__device__ __forceinline__ float* fades(int buffer) {
    return reinterpret_cast<float*>(shared + Shared::FADE) + buffer * QUERIES;
}

// Returns the final factor per query.
__device__ __forceinline__ float* shares() { return reinterpret_cast<float*>(shared + Shared::SHARE); }

// The state that all warps of a block share.
template <int BLOCKS>
struct Block {
    uint32_t base, q_full;
    Ring<STAGES, BLOCKS> k, v;
    Ring<2> p;
    uint32_t shares_full;
    int rank, tiles, key_row, query_row, kv_col;  // tiles of keys; the first rows of the sample and of its queries

    __device__ __forceinline__ Block(int tokens, int queries, int group)
        : base(uint32_t(__cvta_generic_to_shared(shared))), q_full(base + Shared::BARRIERS), k(q_full + 8),
          v(k.full + k.BARRIER_BYTES), p(v.full + v.BARRIER_BYTES), shares_full(p.full + p.BARRIER_BYTES),
          rank(rank_in_cluster<BLOCKS>()), tiles(ceil_div(tokens, KEYS)), key_row(blockIdx.z * tokens),
          query_row(blockIdx.z * queries), kv_col(blockIdx.y / group * HEAD_DIM) {}

    __device__ __forceinline__ void init_barriers() const {
        init_barrier(q_full, 1);
        init_barrier(shares_full, 32 * WARPS);
        k.init(WARPS, 1, v);
        p.init(2 * 32 * WARPS, 32 * WARPS);
        publish_barriers();
    }
};

// Signals that a thread's work on ordinary shared memory is done. One arrival per warp after __syncwarp would be
// correct as well and no faster, but racecheck doesn't follow it.
__device__ __forceinline__ void hand_on(uint32_t barrier) { arrive(barrier); }

template <int BLOCKS>
__device__ __forceinline__ void fetch_queries_and_keys(const Block<BLOCKS>& block, const TensorMap& q,
                                                       const TensorMap& k) {
    constexpr int ROWS = KEYS / BLOCKS;  // rows of a chunk that this block fetches
    const bool leader = threadIdx.x % 32 == 0;
    if (leader) {
        arrive_expecting(block.q_full, HEAD_DIM / 64 * Shared::QUERY_PANEL);
        for (int panel = 0; panel < HEAD_DIM / 64; panel++)
            copy_box(block.base + panel * Shared::QUERY_PANEL, q, block.query_row + blockIdx.x * QUERIES,
                     blockIdx.y * HEAD_DIM + panel * 64, block.q_full);
    }
    auto ring = block.k;
    for (int tile = 0; tile < block.tiles; tile++) {
        for (int panel = 0; panel < HEAD_DIM / 64; panel++) {
            ring.wait_free();
            if (leader) {
                const uint32_t full = ring.expect(Shared::CHUNK);
                copy_box<BLOCKS>(block.base + Shared::K + ring.stage * Shared::CHUNK + block.rank * ROWS * 128, k,
                                 block.key_row + tile * KEYS + block.rank * ROWS, block.kv_col + panel * 64, full);
            }
            ring.advance();
        }
    }
}

template <int BLOCKS>
__device__ __forceinline__ void fetch_values(const Block<BLOCKS>& block, const TensorMap& v) {
    constexpr int PANELS = COLS / 64 / BLOCKS;  // panels of a chunk that this block fetches
    auto ring = block.v;
    for (int from = 0; from < block.tiles * KEYS; from += VALUES) {
        for (int half = 0; half < HEAD_DIM / COLS; half++) {
            ring.wait_free();
            if (threadIdx.x % 32 == 0) {
                const uint32_t full = ring.expect(Shared::CHUNK);
                for (int panel = block.rank * PANELS; panel < (block.rank + 1) * PANELS; panel++)
                    copy_box<BLOCKS>(
                        block.base + Shared::V + ring.stage * Shared::CHUNK + panel * Shared::VALUE_PANEL, v,
                        block.key_row + from, block.kv_col + half * COLS + panel * 64, full);
            }
            ring.advance();
        }
    }
}

// Computes the online softmax of rows lane / 4 and lane / 4 + 8 of a warp's 16: scores become exp2(scale * score -
// top), with the greatest scaled score as `top`. `fade` is the factor for earlier sums, 1 if `top` is unchanged.
__device__ __forceinline__ void soften(float (&score)[KEYS / 2], float (&top)[2], float (&sum)[2], float (&fade)[2],
                                       float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float greatest = -INFINITY;
#pragma unroll
        for (int n = half * 2; n < KEYS / 2; n += 4) greatest = fmaxf(greatest, fmaxf(score[n], score[n + 1]));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
        const float before = top[half];
        top[half] = fmaxf(before, greatest * scale);
        fade[half] = exp2_approx(before - top[half]);
        float part = 0.f;
#pragma unroll
        for (int n = half * 2; n < KEYS / 2; n += 4) {
            score[n] = exp2_approx(fmaf(score[n], scale, -top[half]));
            score[n + 1] = exp2_approx(fmaf(score[n + 1], scale, -top[half]));
            part += score[n] + score[n + 1];
        }
        sum[half] = fmaf(sum[half], fade[half], part);
    }
}

// Stores a warp's 16 rows of weights as the left operand of a multiply: panels of 64 keys with the 128-byte swizzle.
__device__ __forceinline__ void store_weights(uint32_t to, const float (&score)[KEYS / 2]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % WARPS * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
        const int run = n % 8 + lane / 16;  // 8 keys in the panel
        const auto pair = [&](int i) { return pack_pair(score[n * 4 + i], score[n * 4 + i + 1]); };
        store_matrices(to + n / 8 * Shared::QUERY_PANEL + row * 128 + ((run ^ row % 8) << 4), pair(0), pair(2), pair(4),
                       pair(6));
    }
}

// Computes score [64, KEYS] = the block's queries times a K tile, chunk by chunk.
template <int BLOCKS>
__device__ __forceinline__ void multiply_keys(const Block<BLOCKS>& block, float (&score)[KEYS / 2],
                                              Ring<STAGES, BLOCKS>& ring) {
    const uint64_t queries = describe(block.base, 0);
    int last = 0;
#pragma unroll
    for (int panel = 0; panel < HEAD_DIM / 64; panel++) {
        ring.wait_full();
        const uint64_t keys = describe(block.base + Shared::K + ring.stage * Shared::CHUNK, 0);
        begin_multiply();
#pragma unroll
        for (int d = 0; d < 4; d++)  // 16 columns are 32 bytes
            multiply(score, queries + ((panel * Shared::QUERY_PANEL + d * 32) >> 4), keys + (d * 32 >> 4),
                     panel + d > 0);
        commit_multiply();
        if (panel > 0) {
            wait_multiply<1>();
            ring.release(last);
        }
        last = ring.stage;
        ring.advance();
    }
}

// Runs the warpgroup that computes weights.
template <int BLOCKS>
__device__ __forceinline__ void weigh(const Block<BLOCKS>& block, int tokens, float scale) {
    const int lane = threadIdx.x % 32, my_row = threadIdx.x / 32 % WARPS * 16 + lane / 4;  // and this one + 8
    float score[KEYS / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, fade[2];
    auto ring = block.k;
    auto buffer = block.p;
    wait(block.q_full, 0);
    for (int tile = 0; tile < block.tiles; tile++) {
        multiply_keys(block, score, ring);
        if (tile > 0) hand_on(buffer.full + 8 * (buffer.stage ^ 1));
        wait_multiply<0>();
        pin(score);
        ring.release((ring.stage + STAGES - 1) % STAGES, lane);
        if (tile == block.tiles - 1) {
            const int key = tile * KEYS + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < KEYS / 2; n++)
                if (key + n / 4 * 8 + n % 2 >= tokens) score[n] = -INFINITY;
        }
        soften(score, top, sum, fade, scale);
        buffer.wait_free();
        store_weights(block.base + Shared::P + buffer.stage * Shared::WEIGHTS, score);
        if (lane % 4 == 0) {
            fades(buffer.stage)[my_row] = fade[0];
            fades(buffer.stage)[my_row + 8] = fade[1];
        }
        show_to_tma();
        buffer.advance();
    }
    hand_on(buffer.full + 8 * (buffer.stage ^ 1));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (lane % 4 == 0) shares()[my_row + half * 8] = 1.f / total;
    }
    hand_on(block.shares_full);
}

// Computes output [64, COLS], as two times 128 columns, += a tile's weights times its values, chunk by chunk.
template <int BLOCKS>
__device__ __forceinline__ void multiply_values(const Block<BLOCKS>& block, float (&output)[2][COLS / 4],
                                                uint64_t weights, Ring<STAGES, BLOCKS>& ring) {
    int last = 0;
#pragma unroll
    for (int from = 0; from < KEYS; from += VALUES) {
        ring.wait_full();
        const uint64_t values = describe(block.base + Shared::V + ring.stage * Shared::CHUNK, Shared::VALUE_PANEL);
        begin_multiply();
#pragma unroll
        for (int key = from; key < from + VALUES; key += 16)
#pragma unroll
            for (int part = 0; part < 2; part++)
                multiply<false, true>(output[part], weights + ((key / 64 * Shared::QUERY_PANEL + key % 64 * 2) >> 4),
                               values + (((key - from) * 128 + part * 2 * Shared::VALUE_PANEL) >> 4), 1);
        commit_multiply();
        if (from > 0) {
            wait_multiply<1>();
            ring.release(last);
        }
        last = ring.stage;
        // The next chunk belongs to the other warpgroup.
        ring.advance();
        ring.advance();
    }
    wait_multiply<0>();
    pin(output[0]);
    pin(output[1]);
    ring.release(last);
}

// Stores rows of COLS columns. The four lanes of a row exchange pairs, so that each stores 16 bytes, and all four 64.
__device__ __forceinline__ void store_output(const float (&output)[2][COLS / 4], const float (&share)[2],
                                             __nv_bfloat16* out, int64_t ld_out, int query, int queries) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        __nv_bfloat16* to = out + half * 8 * ld_out + lane * 8;
#pragma unroll
        for (int n = 0; n < COLS / 8; n += 4) {
            const float(&sums)[COLS / 4] = output[n / (COLS / 16)];
            uint32_t pair[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (n % (COLS / 16) + i) * 4 + half * 2;
                pair[i] = pack_pair(sums[at] * share[half], sums[at + 1] * share[half]);
            }
            exchange_pairs(pair);
            if (query + half * 8 < queries)
                *reinterpret_cast<uint4*>(to + n * 8) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
        }
    }
}

// Runs a warpgroup that computes output: half 0 or 1 of the columns.
template <int BLOCKS>
__device__ __forceinline__ void gather(const Block<BLOCKS>& block, int half, __nv_bfloat16* out, int64_t ld_out,
                                       int queries) {
    const int lane = threadIdx.x % 32, my_row = threadIdx.x / 32 % WARPS * 16 + lane / 4;  // and this one + 8
    float output[2][COLS / 4] = {};
    auto ring = block.v;
    if (half == 1) ring.advance();
    auto buffer = block.p;
    for (int tile = 0; tile < block.tiles; tile++) {
        buffer.wait_full();
        const float fade[2] = {fades(buffer.stage)[my_row], fades(buffer.stage)[my_row + 8]};
        if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) {
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) output[i % 2][i / 2] *= fade[i / 4 % 2];
        }
        multiply_values(block, output, describe(block.base + Shared::P + buffer.stage * Shared::WEIGHTS, 0), ring);
        hand_on(buffer.own_free());
        buffer.advance();
    }
    wait(block.shares_full, 0);
    const float share[2] = {shares()[my_row], shares()[my_row + 8]};
    const int query = blockIdx.x * QUERIES + my_row;
    store_output(output, share, out + (block.query_row + query) * ld_out + blockIdx.y * HEAD_DIM + half * COLS, ld_out,
                 query, queries);
}

template <int BLOCKS>
__device__ __forceinline__ void attend(const TensorMap& q, const TensorMap& k, const TensorMap& v, __nv_bfloat16* out,
                                       int ld_out, int tokens, int queries, int group, float scale) {
    const Block<BLOCKS> block(tokens, queries, group);
    if (threadIdx.x == 0) block.init_barriers();
    sync_cluster<BLOCKS>();
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warpgroup == 0) {
        give_registers<24>();
        if (warp == 0) fetch_queries_and_keys(block, q, k);
        if (warp == 1) fetch_values(block, v);
    } else if (warpgroup == 1) {
        take_registers<152>();
        weigh(block, tokens, scale);
    } else {
        take_registers<168>();
        gather(block, warpgroup - 2, out, ld_out, queries);
    }
    leave_cluster<BLOCKS>();
}

}  // namespace attention

// The launcher passes the shared memory, (64 * 8 + 8 * 128 + 2 * 128) * 128 + 1024 bytes; it must agree with `Shared`.
#define ATTENTION_512(name, blocks, ...)                                                                         \
    extern "C" __global__ void __VA_ARGS__ __launch_bounds__(512, 1)                                             \
        name(const __grid_constant__ hopper::TensorMap q, const __grid_constant__ hopper::TensorMap k,           \
             const __grid_constant__ hopper::TensorMap v, __nv_bfloat16* out, int ld_out, int tokens,            \
             int queries, int group, float scale) {                                                              \
        attention::attend<blocks>(q, k, v, out, ld_out, tokens, queries, group, scale);                          \
    }

ATTENTION_512(attention_bf16_512_sm90, 1)
ATTENTION_512(attention_bf16_512_pairs_sm90, 2, __cluster_dims__(2, 1, 1))

#endif
