// attention: out = softmax(q k^T / sqrt(head_dim) + mask) v, per head
//
//   q      [rows, heads * head_dim]     element, row stride ld_q; rows = batch * (txt + img), text of all samples first
//   k, v   [rows, kv_heads * head_dim]  element, row strides ld_k, ld_v; head h reads key head h / group
//   out    [rows, heads * head_dim]     element, row stride ld_out; may be q
//   first_query  0: as above; txt: q and out have no text rows
//   keys   0: a query sees all keys of its sample; else: keys up to its own position, limited to the first `keys`
//   scale  log2(e) / sqrt(head_dim), times the square of the unit of activations
//   whole  the number of tiles, from the first, that one block computes each; two blocks share each of the other tiles.
//          All tiles are whole if a warp has one band
//
// Mapping   A block computes a query tile, `TILE` consecutive tokens of one head and sample, or half of one; each warp
//           has 16 * BANDS rows of it. K and V tiles of 64 keys go through a ring of shared-memory stages filled by
//           cp.async; rows are swizzled in 16-byte chunks, so ldmatrix has no bank conflicts. Scores, softmax and
//           output stay in registers (mma.m16n8k16, f32). The softmax is online, in powers of two; with two bands, the
//           weights of one are computed between the multiplies of the other. Query tiles with the most keys start
//           first. The order of sums is fixed: results are bit-identical, whichever block computes a row.
// In place  A block reads all of its queries (its rows, its head's columns) before it writes there; no other block
//           reads them.
// Needs     sm_80, or in fp16 sm_75, which copies without cp.async and has mma.m16n8k8; rows 16-byte aligned (strides
//           and column starts multiples of 8); head_dim 128, 64, 32 or 16.
// Flops     4 * heads * head_dim * tokens^2 per sample (causal: half).   24 x 128, 4608 tokens: 261 GFLOP
// Bound     mma.sync on Hopper has about 60% of the wgmma rate; see attention_sm90a.cu for Hopper.
// Measured  24 x 128, text and image, us (TFLOP/s): 4608 tokens 741 (352), 512 causal, 32/8 heads: 8.6. H200, driver
//           580.159, CUDA 13.0; `FLUX_ATTENTION=base flux bench ops/attention`. 1536 tokens 98, 16896 8660 (405),
//           standalone. Sharing tiles between blocks saves 9% at 4608 tokens, 3.3 rounds of whole tiles

#include <type_traits>

#include "attention.cuh"
#include "mma.cuh"

namespace attention {

constexpr int KEY_TILE = 64;
constexpr float SLACK = 8.f;  // in powers of two

// A tile in shared memory: rows of HEAD_DIM elements in 16-byte chunks.
template <int HEAD_DIM>
struct Tile {
    static constexpr int CHUNKS = HEAD_DIM / 8;
    static constexpr int ROW_BYTES = HEAD_DIM * 2;

    __device__ static __forceinline__ uint32_t at(int row, int chunk) { return swizzled<CHUNKS>(row, chunk); }

    // Tokens `first..first + ROWS` of a sample; zeros from token `end` on.
    template <int ROWS, int THREADS>
    __device__ static __forceinline__ void load(uint32_t tile, const element* from, int ld, const SampleRows& rows,
                                                int first, int end) {
        constexpr int STEP = THREADS / CHUNKS;
        static_assert(ROWS % STEP == 0 && STEP % 8 == 0, "each thread copies as many chunks, all with the same turn");
        const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        tile += at(row, chunk);
        from += chunk * 8;
        if (first + ROWS <= end && rows.are_one_run(first, ROWS)) {
            from += int64_t(rows.row(first) + row) * ld;
#pragma unroll
            for (int i = 0; i < ROWS / STEP; i++, from += STEP * ld) copy_16(tile + i * STEP * ROW_BYTES, from, true);
            return;
        }
#pragma unroll
        for (int i = 0; i < ROWS / STEP; i++) {
            const int token = first + row + i * STEP;
            copy_16(tile + i * STEP * ROW_BYTES, from + int64_t(rows.row(token)) * ld, token < end);
        }
    }
};

template <int HEAD_DIM, int BANDS, int STAGES>
struct Shape {
    static constexpr int WARPS = 4;
    static constexpr int THREADS = WARPS * 32;
    static constexpr int TILE = WARPS * BANDS * 16;
    static constexpr int QUERY_BYTES = TILE * HEAD_DIM * 2;
    static constexpr int STAGE_BYTES = KEY_TILE * HEAD_DIM * 2;
    static constexpr int SHARED_BYTES = QUERY_BYTES + STAGES * STAGE_BYTES;
};

// Computes attention for a block's queries of one head and sample, from token `first` on. BANDS: bands of 16 query rows
// per warp; two bands halve the reads of K from shared memory per flop. STAGES: tiles of K or V in shared memory.
template <int HEAD_DIM, int BANDS, int STAGES>
__device__ __forceinline__ void attend(const element* q, const element* k, const element* v, element* out, int ld_q,
                                       int ld_k, int ld_v, int ld_out, int batch, int txt, int img, int first_query,
                                       int group, int keys, float scale, int first, int head, int sample) {
    using S = Shape<HEAD_DIM, BANDS, STAGES>;
    using T = Tile<HEAD_DIM>;
    constexpr int KEY_COLS = KEY_TILE / 8, DIM_COLS = HEAD_DIM / 8;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t queries = uint32_t(__cvta_generic_to_shared(shared)), ring = queries + S::QUERY_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    const int tokens = txt + img;
    const SampleRows rows(sample, batch, txt, img, 0), query_rows(sample, batch, txt, img, batch * first_query);
    q += head * HEAD_DIM;
    out += head * HEAD_DIM;
    k += head / group * HEAD_DIM;
    v += head / group * HEAD_DIM;

    // The last row of the tile sees the most keys. Load 2 j is K tile j, load 2 j + 1 is V tile j; load i goes to stage
    // i % STAGES.
    const int key_end = visible_keys(first + S::TILE - 1, tokens, keys);
    const int key_tiles = (key_end + KEY_TILE - 1) / KEY_TILE;
    const auto load_stage = [&](bool is_v, int tile, uint32_t stage) {
        if (tile < key_tiles)
            T::template load<KEY_TILE, S::THREADS>(ring + stage * S::STAGE_BYTES, is_v ? v : k, is_v ? ld_v : ld_k,
                                                   rows, tile * KEY_TILE, key_end);
        commit_copies();  // also an empty group, so that the number of groups is the number of loads
    };
    T::template load<S::TILE, S::THREADS>(queries, q, ld_q, query_rows, first, tokens);
#pragma unroll
    for (int load = 0; load < STAGES - 1; load++) load_stage(load % 2, load / 2, load);

    // Waits until the next load has arrived for all threads. Returns the address of its stage.
    uint32_t stage = 0, free_stage = STAGES - 1;
    const auto next_stage = [&] {
        wait_copies<STAGES - 2>();
        __syncthreads();
        return ring + stage * S::STAGE_BYTES;
    };
    // Refills the stage of the previous load. It runs after the first loads of the stage that has arrived, because
    // multiplies wait for these.
    const auto refill = [&](bool is_v, int tile) {
        load_stage((is_v + STAGES - 1) % 2, tile + (is_v + STAGES - 1) / 2, free_stage);
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    };

    // Lane addresses for ldmatrix, at the first 16 x 16 block. Xor gives the other column blocks (the swizzle changes
    // only the chunk bits, and tiles are aligned to their rows), addition gives the other row blocks.
    const int band = warp * BANDS * 16;  // first row of this warp
    const uint32_t q_lane = queries + T::at(band + (lane & 15), lane >> 4);
    const uint32_t k_lane = T::at((lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
    const uint32_t v_lane = T::at((lane & 7) + ((lane >> 3) & 1) * 8, lane >> 4);

    // A lane holds, of each 16 x 8 block, columns 2 (lane % 4) + {0, 1} of rows lane / 4 and lane / 4 + 8.
    float output[BANDS][DIM_COLS][4];
    float top[BANDS][2], sum[BANDS][2];  // reference of the weights' exponents, and this lane's part of the row's sum
#pragma unroll
    for (int b = 0; b < BANDS; b++) {
#pragma unroll
        for (int half = 0; half < 2; half++) top[b][half] = -INFINITY, sum[b][half] = 0.f;
#pragma unroll
        for (int n = 0; n < DIM_COLS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) output[b][n][i] = 0.f;
    }

    for (int tile = 0; tile < key_tiles; tile++) {
        float score[BANDS][KEY_COLS][4] = {};
        const uint32_t k_tile = next_stage() + k_lane;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            uint32_t a[BANDS][4];
#pragma unroll
            for (int b = 0; b < BANDS; b++) load_matrices(a[b], (q_lane ^ (d * 32)) + b * 16 * T::ROW_BYTES);
#pragma unroll
            for (int n = 0; n < KEY_COLS; n += 2) {
                uint32_t keys_16[4];
                load_matrices(keys_16, (k_tile ^ (d * 32)) + n * 8 * T::ROW_BYTES);
                if (d == 0 && n == 0) refill(false, tile);
#pragma unroll
                for (int b = 0; b < BANDS; b++) {
                    multiply_add(score[b][n], a[b], keys_16[0], keys_16[1]);
                    multiply_add(score[b][n + 1], a[b], keys_16[2], keys_16[3]);
                }
            }
        }

        const int last_key = (tile + 1) * KEY_TILE;
        if (last_key > visible_keys(first + band, tokens, keys)) {
#pragma unroll
            for (int b = 0; b < BANDS; b++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int visible = visible_keys(first + band + b * 16 + (i / 2) * 8 + lane / 4, tokens, keys);
                    const int key = last_key - KEY_TILE + (lane & 3) * 2 + (i & 1);
#pragma unroll
                    for (int n = 0; n < KEY_COLS; n++)
                        if (key + n * 8 >= visible) score[b][n][i] = -INFINITY;
                }
        }

        // Key 0 is visible to every query and is in tile 0, so `top` is finite from there on.
        float fade[BANDS][2], shift[BANDS][2], part[BANDS][2] = {};
        bool rises = false;
#pragma unroll
        for (int b = 0; b < BANDS; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float greatest = top[b][half];
#pragma unroll
                for (int n = 0; n < KEY_COLS; n++)
                    greatest = fmaxf(greatest, fmaxf(score[b][n][half * 2], score[b][n][half * 2 + 1]));
                greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
                greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
                // A slightly greater score leaves `top` unchanged: weights then stay below 2^SLACK. So output is seldom
                // rescaled.
                const float before = top[b][half];
                if ((greatest - before) * scale > SLACK) top[b][half] = greatest, rises = true;
                // Exactly 1 if `top` stays. So key tiles that a row doesn't see change nothing, and a row gets the same
                // result in a whole query tile, which has more of them, as in a half.
                fade[b][half] = exp2_approx((before - top[b][half]) * scale);
                shift[b][half] = -top[b][half] * scale;
            }
        if (__any_sync(~0u, rises)) {
#pragma unroll
            for (int b = 0; b < BANDS; b++)
#pragma unroll
                for (int n = 0; n < DIM_COLS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) output[b][n][i] *= fade[b][i / 2];
        }
        const auto weigh = [&](int b, int n) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                score[b][n][i] = exp2_approx(fmaf(score[b][n][i], scale, shift[b][i / 2]));
                part[b][i / 2] += score[b][n][i];
            }
        };
#pragma unroll
        for (int n = 0; n < KEY_COLS; n++) weigh(0, n);

        const uint32_t v_tile = next_stage() + v_lane;
        // Band by band: the weights of the next band are computed between the multiplies.
#pragma unroll
        for (int b = 0; b < BANDS; b++)
#pragma unroll
            for (int n = 0; n < KEY_COLS; n += 2) {
                // Scores are in the registers that the left operand requires.
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i] = pack_pair(score[b][n + i / 2][i % 2 * 2], score[b][n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
                for (int d = 0; d < DIM_COLS; d += 2) {
                    uint32_t values_16[4];
                    load_matrices_transposed(values_16, (v_tile ^ (d * 16)) + n * 8 * T::ROW_BYTES);
                    if (b == 0 && d == 0 && n == 0) refill(true, tile);
                    constexpr int PAIRS = KEY_COLS / 2 * (DIM_COLS / 2);
                    const int pair = n / 2 * (DIM_COLS / 2) + d / 2;
#pragma unroll
                    for (int next = pair * KEY_COLS / PAIRS; next < (pair + 1) * KEY_COLS / PAIRS; next++)
                        if (b + 1 < BANDS) weigh(b + 1, next);
                    multiply_add(output[b][d], a, values_16[0], values_16[1]);
                    multiply_add(output[b][d + 1], a, values_16[2], values_16[3]);
                }
            }
#pragma unroll
        for (int b = 0; b < BANDS; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) sum[b][half] = fmaf(sum[b][half], fade[b][half], part[b][half]);
    }

    // Stores through this warp's own query rows, which no other warp reads, so that the stores are 16 bytes wide.
#pragma unroll
    for (int b = 0; b < BANDS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[b][half];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const float share = 1.f / total;
            const int row = band + b * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int n = 0; n < DIM_COLS; n++) {
                uint32_t pair = pack_pair(output[b][n][half * 2] * share, output[b][n][half * 2 + 1] * share);
                *reinterpret_cast<uint32_t*>(shared + T::at(row, n) + (lane & 3) * 4) = pair;
            }
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BANDS * 16 * T::CHUNKS / 32; i++) {
        const int at_chunk = lane + i * 32, row = band + at_chunk / T::CHUNKS, chunk = at_chunk % T::CHUNKS,
                  token = first + row;
        const uint4* from = reinterpret_cast<const uint4*>(shared + T::at(row, chunk));
        if (token < tokens)
            *reinterpret_cast<uint4*>(out + int64_t(query_rows.row(token)) * ld_out + chunk * 8) = *from;
    }
}

// Assigns a block its query tile or its half of one. Halves are for the kernel's last round, which may have few blocks:
// the less work each block has, the sooner the round ends.
template <int HEAD_DIM, int BANDS, int STAGES>
__device__ __forceinline__ void attend_block(const element* q, const element* k, const element* v, element* out,
                                             int ld_q, int ld_k, int ld_v, int ld_out, int batch, int txt, int img,
                                             int first_query, int heads, int group, int keys, int whole, float scale) {
    constexpr int TILE = Shape<HEAD_DIM, BANDS, STAGES>::TILE;
    const int behind = int(blockIdx.x) - whole, index = behind < 0 ? blockIdx.x : whole + behind / 2;
    const int tiles = ceil_div(txt + img - first_query, TILE);
    const int head = index / tiles % heads, sample = index / tiles / heads,
              first = first_query + (tiles - 1 - index % tiles) * TILE;
    const auto attend_from = [&](auto bands, int first) {
        attend<HEAD_DIM, decltype(bands)::value, STAGES>(q, k, v, out, ld_q, ld_k, ld_v, ld_out, batch, txt, img,
                                                        first_query, group, keys, scale, first, head, sample);
    };
    if (BANDS == 1 || behind < 0) {
        attend_from(std::integral_constant<int, BANDS>(), first);
    } else {
        const int half = first + (1 - behind % 2) * (TILE / 2);
        if (half < txt + img) attend_from(std::integral_constant<int, (BANDS + 1) / 2>(), half);
    }
}

}  // namespace attention

// The name ends in head_dim and, if there are two variants, the rows of a query tile. The launcher passes the shared
// memory, (rows + stages * 64) * head_dim * 2 bytes; it must agree with the numbers here.
#define ATTENTION(NAME, HEAD_DIM, BANDS, STAGES, BLOCKS)                                                          \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                                     \
        NAME(const element* q, const element* k, const element* v, element* out, int ld_q,                        \
             int ld_k, int ld_v, int ld_out, int batch, int txt, int img, int first_query, int heads, int group,  \
             int keys, int whole, float scale) {                                                                  \
        attention::attend_block<HEAD_DIM, BANDS, STAGES>(q, k, v, out, ld_q, ld_k, ld_v, ld_out, batch, txt, img, \
                                                        first_query, heads, group, keys, whole, scale);           \
    }

#ifndef ELEMENT_F16
ATTENTION(attention_128x128, 128, 2, 3, 2)  // for 164 KiB of shared memory per multiprocessor
#endif
ATTENTION(attention_128x64, 128, 1, 2, 2)  // for 100 KiB, or 64
ATTENTION(attention_64, 64, 2, 3, 2)
ATTENTION(attention_32, 32, 2, 3, 2)
ATTENTION(attention_16, 16, 2, 3, 2)
