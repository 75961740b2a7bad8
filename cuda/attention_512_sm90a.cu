// attention for Hopper, one head of 512 or several, no mask: out = softmax(scale * q k^T) v
//
//   q, k, v  tensor maps over [rows, heads * 512] bf16: boxes of 64 columns (128-byte swizzle) and 64 rows for q, 128
//            (in pairs 64) for k, 32 for v
//   out      [rows, heads * 512] bf16, row stride ld_out; may be q
//   tokens   keys of each sample, in one run of rows
//   queries  of each sample, in one run of rows: of all its tokens, or of some of them
//   group    query heads for each key head
//   scale    log2(e) / sqrt(512), because weights are powers of two
//
// Mapping   A block for each 64 queries of a head. The sums of their output fill half of the registers of a
//           multiprocessor, Q 64 KiB of its shared memory, so keys and values pass through in chunks of 16 KiB, four of
//           each: 64 columns of a tile of 128 keys, and 256 columns of 32 values. Warp 0 fetches Q and keys, warp 1
//           values. Warpgroup 1 multiplies the scores of a tile, takes their softmax and writes the weights in bf16 to
//           shared memory, which has room for those of two tiles. Warpgroups 2 and 3 own 256 columns of output each.
// Order     Weights are handed on when the scores of the next tile are issued, not before. So the tensor cores have
//           those done first, and the output fills the time of their softmax; if output came first, its warpgroups
//           would soon have no weights left, and the tensor cores nothing to do during each softmax.
// Pairs     Two blocks, on two multiprocessors, take the queries of two neighbouring tiles, and each fetches half of
//           every chunk for both: a block by itself would read 64 bytes a clock from L2. Where the tiles are odd in
//           number, the last one's partner holds no queries: it fetches and multiplies all the same, and stores
//           nothing. The result is that of single blocks to the bit.
// In place  A tile's queries are in shared memory before its output is written, and no other block's output depends on
//           them or lies in its rows. Boxes may reach past the end of a sample; those rows are not stored, those keys
//           are masked.
// Needs     sm_90a; rows 16-byte aligned. Pairs: an even number of blocks.
// Flops     4 * tokens^2 * 512 a head.   65536 pixels: 8.8 TFLOP
// Bound     tensor cores. 8.8 TFLOP at 989 TFLOP/s (H100, dense bf16) = 8.9 ms. Shared memory comes next: the left
//           operand of a multiply is read anew for each 128 columns.
// Measured  by pairs, by single blocks and by attention_softmax: 1024 pixels 34 to 38, 35 and 20 us; 4096: 104, 108 and
//           107 us; 16384: 757 to 829 us (726 to 664 TFLOP/s), 783 to 836 us, 1.82 ms; 65536: 12.6 ms (700), 13.8 and
//           29.3 ms. H100, driver 580.159, CUDA 13.0; `flux bench ops/attention`, twice. 16384 pixels are two rounds of
//           blocks, 4096 half of one
// Tried     standalone, hot L2, at 4096, 16384 and 65536 pixels, where pairs took 102 us, 747 us and 13.1 ms. Clusters
//           of four: 96 us, 1062 us, 14.0 ms. Weights handed on at once: 111 us, 798 us, 14.3 ms. Chunks of 16 values:
//           106 us, 779 us, 13.3 ms. In clusters of four, the greatest score followed only where the new one weighs 2^8
//           times as much, so that output is seldom scaled: as long, within 1%. m64n256k16 and weights in registers,
//           which would spare shared memory: ptxas has too few registers for them in a kernel of 512 threads

#include "attention.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cluster_sm90a.cuh"
#include "multiply_128_sm90a.cuh"

namespace attention {

using namespace hopper;

constexpr int HEAD_DIM = 512;
constexpr int QUERIES = 64;
constexpr int KEYS = 128;   // of a tile
constexpr int VALUES = 32;  // of a chunk
constexpr int COLS = 256;   // of a warpgroup's output
constexpr int STAGES = 4;   // of keys, and of values
constexpr int WARPS = 4;    // of a warpgroup

struct Shared {
    static constexpr int QUERY_PANEL = QUERIES * 128, VALUE_PANEL = VALUES * 128;  // bytes; a panel is 64 columns
    static constexpr int CHUNK = KEYS * 128, WEIGHTS = KEYS / 64 * QUERY_PANEL;
    static constexpr int K = HEAD_DIM / 64 * QUERY_PANEL, V = K + STAGES * CHUNK, P = V + STAGES * CHUNK,
                         FADE = P + 2 * WEIGHTS, SHARE = FADE + 2 * QUERIES * 4, BARRIERS = SHARE + QUERIES * 4;
    static_assert(CHUNK == COLS / 64 * VALUE_PANEL, "chunks of keys and of values are of one size");
};

extern __shared__ __align__(1024) unsigned char shared[];

// Floats of the queries: what the output so far must be multiplied by before weights of buffer 0 or 1 are added.
__device__ __forceinline__ float* fades(int buffer) {
    return reinterpret_cast<float*>(shared + Shared::FADE) + buffer * QUERIES;
}

// And at last.
__device__ __forceinline__ float* shares() { return reinterpret_cast<float*>(shared + Shared::SHARE); }

// What all warps of a block know.
template <int BLOCKS>
struct Block {
    uint32_t base, q_full, k_full, k_free, v_full, v_free, p_full, p_free, shares_full;
    int rank, tiles, key_row, query_row, kv_col;  // tiles of keys; the first rows of the sample and of its queries

    __device__ __forceinline__ Block(int tokens, int queries, int group)
        : base(uint32_t(__cvta_generic_to_shared(shared))), q_full(base + Shared::BARRIERS), k_full(q_full + 8),
          k_free(k_full + 8 * STAGES), v_full(k_free + 8 * STAGES), v_free(v_full + 8 * STAGES),
          p_full(v_free + 8 * STAGES), p_free(p_full + 8 * 2), shares_full(p_free + 8 * 2),
          rank(BLOCKS > 1 ? rank_in_cluster() : 0), tiles(ceil_div(tokens, KEYS)), key_row(blockIdx.z * tokens),
          query_row(blockIdx.z * queries), kv_col(blockIdx.y / group * HEAD_DIM) {}

    __device__ __forceinline__ void init_barriers() const {
        init_barrier(q_full, 1);
        init_barrier(shares_full, 32 * WARPS);
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(k_full + 8 * stage, 1);
            init_barrier(v_full + 8 * stage, 1);
            // The consumers of all blocks free a stage, because a fetch writes to all blocks.
            init_barrier(k_free + 8 * stage, BLOCKS * WARPS);
            init_barrier(v_free + 8 * stage, BLOCKS * WARPS);
        }
        for (int buffer = 0; buffer < 2; buffer++) {
            init_barrier(p_full + 8 * buffer, 32 * WARPS);
            init_barrier(p_free + 8 * buffer, 2 * 32 * WARPS);
        }
        publish_barriers();
    }

    __device__ __forceinline__ static void sync() {
        if constexpr (BLOCKS > 1) sync_cluster();
        else __syncthreads();
    }

    __device__ __forceinline__ static void fetch(uint32_t to, const TensorMap& map, int row, int col, uint32_t full) {
        if constexpr (BLOCKS > 1) copy_box_to_both(to, map, row, col, full);
        else copy_box(to, map, row, col, full);
    }

    // Gives a stage back to the blocks that fetch to it.
    __device__ __forceinline__ static void release(uint32_t free) {
        const int lane = threadIdx.x % 32;
        if constexpr (BLOCKS == 1) {
            if (lane == 0) arrive(free);
        } else if (lane < BLOCKS) {
            arrive_at(free, lane);
        }
    }
};

// A thread's work on ordinary shared memory is done. If one lane arrived for its warp, behind __syncwarp, that would be
// right as well and no faster, but racecheck does not follow it.
__device__ __forceinline__ void hand_on(uint32_t barrier) { arrive(barrier); }

template <int BLOCKS>
__device__ __forceinline__ void fetch_queries_and_keys(const Block<BLOCKS>& block, const TensorMap& q,
                                                       const TensorMap& k) {
    constexpr int ROWS = KEYS / BLOCKS;  // of a chunk, by this block
    const bool leader = threadIdx.x % 32 == 0;
    if (leader) {
        arrive_expecting(block.q_full, HEAD_DIM / 64 * Shared::QUERY_PANEL);
        for (int panel = 0; panel < HEAD_DIM / 64; panel++)
            copy_box(block.base + panel * Shared::QUERY_PANEL, q, block.query_row + blockIdx.x * QUERIES,
                     blockIdx.y * HEAD_DIM + panel * 64, block.q_full);
    }
    Ring<STAGES> ring;
    for (int tile = 0; tile < block.tiles; tile++) {
        for (int panel = 0; panel < HEAD_DIM / 64; panel++) {
            const uint32_t full = block.k_full + 8 * ring.stage;
            wait(block.k_free + 8 * ring.stage, ring.phase ^ 1);
            if (leader) {
                arrive_expecting(full, Shared::CHUNK);
                block.fetch(block.base + Shared::K + ring.stage * Shared::CHUNK + block.rank * ROWS * 128, k,
                            block.key_row + tile * KEYS + block.rank * ROWS, block.kv_col + panel * 64, full);
            }
            ring.advance();
        }
    }
}

template <int BLOCKS>
__device__ __forceinline__ void fetch_values(const Block<BLOCKS>& block, const TensorMap& v) {
    constexpr int PANELS = COLS / 64 / BLOCKS;  // of a chunk, by this block
    Ring<STAGES> ring;
    for (int from = 0; from < block.tiles * KEYS; from += VALUES) {
        for (int half = 0; half < HEAD_DIM / COLS; half++) {
            const uint32_t full = block.v_full + 8 * ring.stage;
            wait(block.v_free + 8 * ring.stage, ring.phase ^ 1);
            if (threadIdx.x % 32 == 0) {
                arrive_expecting(full, Shared::CHUNK);
                for (int panel = block.rank * PANELS; panel < (block.rank + 1) * PANELS; panel++)
                    block.fetch(
                        block.base + Shared::V + ring.stage * Shared::CHUNK + panel * Shared::VALUE_PANEL, v,
                        block.key_row + from, block.kv_col + half * COLS + panel * 64, full);
            }
            ring.advance();
        }
    }
}

// The running softmax of rows lane / 4 and lane / 4 + 8 of a warp's 16: scores become exp2(scale * score - top), where
// `top` is the greatest scaled score. `fade` is what earlier sums must be multiplied by, 1 where that is no new one.
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
        const int run = n % 8 + lane / 16;  // of 8 keys in the panel
        const auto pair = [&](int i) { return pack_pair(score[n * 4 + i], score[n * 4 + i + 1]); };
        store_matrices(to + n / 8 * Shared::QUERY_PANEL + row * 128 + ((run ^ row % 8) << 4), pair(0), pair(2), pair(4),
                       pair(6));
    }
}

// score [64, KEYS] = the block's queries times a K tile, chunk by chunk
template <int BLOCKS>
__device__ __forceinline__ void multiply_keys(const Block<BLOCKS>& block, float (&score)[KEYS / 2],
                                              Ring<STAGES>& ring) {
    const uint64_t queries = describe(block.base, 0);
    uint32_t last = 0;
#pragma unroll
    for (int panel = 0; panel < HEAD_DIM / 64; panel++) {
        wait(block.k_full + 8 * ring.stage, ring.phase);
        const uint64_t keys = describe(block.base + Shared::K + ring.stage * Shared::CHUNK, 0);
        begin_multiply();
#pragma unroll
        for (int d = 0; d < 4; d++)  // 16 columns are 32 bytes
            multiply(score, queries + ((panel * Shared::QUERY_PANEL + d * 32) >> 4), keys + (d * 32 >> 4),
                     panel + d > 0);
        commit_multiply();
        if (panel > 0) {
            wait_multiply<1>();
            block.release(last);
        }
        last = block.k_free + 8 * ring.stage;
        ring.advance();
    }
}

// The warpgroup that makes weights.
template <int BLOCKS>
__device__ __forceinline__ void weigh(const Block<BLOCKS>& block, int tokens, float scale) {
    const int lane = threadIdx.x % 32, my_row = threadIdx.x / 32 % WARPS * 16 + lane / 4;  // and this one + 8
    float score[KEYS / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, fade[2];
    Ring<STAGES> ring;
    Ring<2> buffer;
    wait(block.q_full, 0);
    for (int tile = 0; tile < block.tiles; tile++) {
        multiply_keys(block, score, ring);
        if (tile > 0) hand_on(block.p_full + 8 * (buffer.stage ^ 1));
        wait_multiply<0>();
        pin(score);
        block.release(block.k_free + 8 * ((ring.stage + STAGES - 1) % STAGES));
        if (tile == block.tiles - 1) {
            const int key = tile * KEYS + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < KEYS / 2; n++)
                if (key + n / 4 * 8 + n % 2 >= tokens) score[n] = -INFINITY;
        }
        soften(score, top, sum, fade, scale);
        wait(block.p_free + 8 * buffer.stage, buffer.phase ^ 1);
        store_weights(block.base + Shared::P + buffer.stage * Shared::WEIGHTS, score);
        if (lane % 4 == 0) {
            fades(buffer.stage)[my_row] = fade[0];
            fades(buffer.stage)[my_row + 8] = fade[1];
        }
        show_to_tma();
        buffer.advance();
    }
    hand_on(block.p_full + 8 * (buffer.stage ^ 1));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (lane % 4 == 0) shares()[my_row + half * 8] = 1.f / total;
    }
    hand_on(block.shares_full);
}

// output [64, COLS], as two times 128 columns, += a tile's weights times its values, chunk by chunk
template <int BLOCKS>
__device__ __forceinline__ void multiply_values(const Block<BLOCKS>& block, float (&output)[2][COLS / 4],
                                                uint64_t weights, Ring<STAGES>& ring) {
    uint32_t last = 0;
#pragma unroll
    for (int from = 0; from < KEYS; from += VALUES) {
        wait(block.v_full + 8 * ring.stage, ring.phase);
        const uint64_t values = describe(block.base + Shared::V + ring.stage * Shared::CHUNK, Shared::VALUE_PANEL);
        begin_multiply();
#pragma unroll
        for (int key = from; key < from + VALUES; key += 16)
#pragma unroll
            for (int part = 0; part < 2; part++)
                multiply<true>(output[part], weights + ((key / 64 * Shared::QUERY_PANEL + key % 64 * 2) >> 4),
                               values + (((key - from) * 128 + part * 2 * Shared::VALUE_PANEL) >> 4), 1);
        commit_multiply();
        if (from > 0) {
            wait_multiply<1>();
            block.release(last);
        }
        last = block.v_free + 8 * ring.stage;
        // The next chunk is the other warpgroup's.
        ring.advance();
        ring.advance();
    }
    wait_multiply<0>();
    pin(output[0]);
    pin(output[1]);
    block.release(last);
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

// A warpgroup that makes output: half 0 or 1 of the columns.
template <int BLOCKS>
__device__ __forceinline__ void gather(const Block<BLOCKS>& block, int half, __nv_bfloat16* out, int64_t ld_out,
                                       int queries) {
    const int lane = threadIdx.x % 32, my_row = threadIdx.x / 32 % WARPS * 16 + lane / 4;  // and this one + 8
    float output[2][COLS / 4] = {};
    Ring<STAGES> ring;
    if (half == 1) ring.advance();
    Ring<2> buffer;
    for (int tile = 0; tile < block.tiles; tile++) {
        wait(block.p_full + 8 * buffer.stage, buffer.phase);
        const float fade[2] = {fades(buffer.stage)[my_row], fades(buffer.stage)[my_row + 8]};
        if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) {
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) output[i % 2][i / 2] *= fade[i / 4 % 2];
        }
        multiply_values(block, output, describe(block.base + Shared::P + buffer.stage * Shared::WEIGHTS, 0), ring);
        hand_on(block.p_free + 8 * buffer.stage);
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
    block.sync();
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
    if constexpr (BLOCKS > 1) {
        __syncwarp();
        // Until both blocks are here, the other one may still write to this one's shared memory.
        sync_cluster();
    }
}

}  // namespace attention

// Shared memory is (64 * 8 + 8 * 128 + 2 * 128) * 128 + 1024 bytes, which the launcher passes; it must agree with
// `Shared`.
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
