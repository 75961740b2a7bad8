// attention_e4m3: attention without a mask in e4m3, for Hopper, head_dim 128: the contract of attention.cu.
// attention_to_e4m3 quantizes q, k and v, sample by sample, with text and image tokens contiguous, and
// attention_e4m3_sm90 computes attention of these. For one sample with q and k stored in e4m3 by project_sm90a.cu, the
// first kernel quantizes only v for attention_e4m3_normed_sm90, or is not needed if v is stored in e4m3, too.
//
//   q, k, v  [batch * (tokens - first_query), heads * 128], [batch * tokens, kv_heads * 128] bf16, row strides ld_q,
//            ld_k, ld_v
//   cached_k, cached_v  [cached, kv_heads * 128] bf16: more keys that every query sees; only with batch 1
//   q8, k8   [batch * query_rows, heads * 128], [batch * key_rows, kv_heads * 128] e4m3
//   q_rows   [batch * heads, query_rows] f32 pairs: scales of rows of q8, and lengths of rows of q
//   k_tiles  [batch * kv_heads, key_rows / 128] f32 pairs: scales of 128 keys of k8, and the length of the longest of k
//   v8       [batch * kv_heads * 128, key_rows] e4m3: columns of v. Within 16 keys, key 8 h + 2 t + l is at place 4 t +
//            2 h + l, the order of a multiply's sums. Zeros after the last key
//   v_tiles  [batch * kv_heads, key_rows / 128] f32: scales of 128 keys of v8
//   norms    [128] bf16 each: of text q, image q, text k and image k, which determine the scales of normed q and k
//   out      [batch * (tokens - first_query), heads * 128] bf16, row stride ld_out; may be q
//   query_rows, key_rows  queries, and tokens plus cached keys, of a sample, rounded up to a multiple of 128
//
// Meaning   Scores are rounded to eighths of powers of two: y = round(8 log2(e) q k^T / sqrt(128)), as 16-bit integers.
//           A weight is the e4m3 value with bits max(y - greatest y so far + 0x78, 0): 2^8 for the greatest, linear
//           between powers of two, up to 6% above 2^(y / 8). The sums of weights use the same values.
// Mapping   As single blocks of attention_sm90a.cu, with K and V tiles of 128 keys through three stages each. Eight
//           rows of ones follow every V tile: their products are the sums of weights. Tensor cores keep about 14 bits
//           of a sum of e4m3 products, so tiles are summed in float32, in units of the scale of the last tile's values.
// Needs     sm_90a; rows 16-byte aligned; tokens > 0. |y| < 2^14: if a row's length times the longest key's exceeds
//           that, its scores are scaled down to this bound, a factor of 2^2048.
// Rounding  q per row of a head, k and v per 128 keys of a head, to 448 times the largest magnitude; y; sums; out.
// Bound     tensor cores. 24 x 128, 4608 tokens: 261 GFLOP at 1979 TFLOP/s (H200, dense e4m3) = 132 us
// Measured  both kernels 295 us (886 TFLOP/s), on an H100; docs/kernels-attention.md
#include "attention.cuh"
#include "e4m3.cuh"
#include "normed_heads.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "pipeline_sm90a.cuh"

namespace attention {

using namespace hopper;

constexpr int HEAD_DIM = 128, QUERIES = 128, KEYS = 128;
constexpr int STAGES = 3;
constexpr int WEIGHT_OF_GREATEST = 0x78;  // 2^8
constexpr int HIDDEN = -16384;
constexpr float MAX = 16000.f;

struct Shared {
    static constexpr int TILE = KEYS * HEAD_DIM, ONES = 8 * KEYS, V_TILE = TILE + ONES;
    static constexpr int K = QUERIES * HEAD_DIM, V = K + STAGES * TILE, BARRIERS = V + STAGES * V_TILE;
};

struct Arguments {
    TensorMap q, k, v;
    const float2* q_rows;   // scales of rows and tiles
    const float2* k_tiles;
    const float* v_tiles;
    const bf16* norms[4];  // of normed q and k
    bf16* out;
    int ld_out, batch, txt, img, first_query, cached, heads, group, query_rows, key_rows;
    float scale;
};

// The tokens of a sample, followed by cached keys.
struct Keys {
    SampleRows rows;
    int tokens, cached;

    __device__ __forceinline__ const uint4* at(const bf16* x, long long ld, const bf16* more, long long ld_more,
                                               int key, int col) const {
        const bf16* from = key < tokens ? x + rows.row(key) * ld : more + (key - tokens) * ld_more;
        return reinterpret_cast<const uint4*>(from + col);
    }
};

__device__ __forceinline__ float largest(const float (&values)[8]) {
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(values[i]));
    return most;
}

__device__ __forceinline__ float squares(const float (&values)[8]) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(values[i], values[i], sum);
    return sum;
}

__device__ __forceinline__ float inverse(float magnitude) { return magnitude > 0.f ? E4M3_MAX / magnitude : 0.f; }

// For a block of 256 threads.
__device__ __forceinline__ float greatest_of_block(float value) {
    __shared__ float of_warps[8];
    value = warp_max(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < 8; warp++) value = fmaxf(value, of_warps[warp]);
    return value;
}

// Reduces over the 16 lanes of a row of a head.
template <typename Combine>
__device__ __forceinline__ float of_row(float value, Combine combine) {
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(~0u, value, lanes));
    return value;
}

// Converts scores, two each of rows g and g + 8 of a warp alternately -> y, two per register.
__device__ __forceinline__ void to_logs(uint32_t (&y)[KEYS / 4], const float (&score)[KEYS / 2],
                                        const float2 scale) {
    constexpr float INTEGERS = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        const uint32_t first = __float_as_uint(fmaf(score[2 * i], i % 2 ? scale.y : scale.x, INTEGERS)),
                       second = __float_as_uint(fmaf(score[2 * i + 1], i % 2 ? scale.y : scale.x, INTEGERS));
        y[i] = __byte_perm(first, second, 0x5410);
    }
}

// Returns the greatest y of row g in the low half, of row g + 8 in the high half.
__device__ __forceinline__ uint32_t greatest(const uint32_t (&y)[KEYS / 4]) {
    uint32_t low = y[0], high = y[1];
#pragma unroll
    for (int i = 2; i + 3 < KEYS / 4; i += 4) {
        low = __vimax3_s16x2(low, y[i], y[i + 2]);
        high = __vimax3_s16x2(high, y[i + 1], y[i + 3]);
    }
    low = __vmaxs2(low, y[KEYS / 4 - 2]);
    high = __vmaxs2(high, y[KEYS / 4 - 1]);
    uint32_t both = __vmaxs2(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
    both = __vmaxs2(both, __shfl_xor_sync(~0u, both, 1));
    return __vmaxs2(both, __shfl_xor_sync(~0u, both, 2));
}

// Converts y to weights in the layout of a multiply's left operand.
__device__ __forceinline__ void weigh(uint32_t (&weights)[KEYS / 32][4], const uint32_t (&y)[KEYS / 4], uint32_t top) {
    const uint32_t shift = __vsub2(WEIGHT_OF_GREATEST * 0x10001u, top);
    const uint32_t shifts[2] = {__byte_perm(shift, shift, 0x1010), __byte_perm(shift, shift, 0x3232)};
#pragma unroll
    for (int n = 0; n < KEYS / 32; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int first = n * 8 + i / 2 * 4 + i % 2;
            weights[n][i] = __byte_perm(__viaddmax_s16x2_relu(y[first], shifts[i % 2], 0u),
                                        __viaddmax_s16x2_relu(y[first + 2], shifts[i % 2], 0u), 0x6420);
        }
    }
}

// Returns the scale of scores of magnitude up to `most` before scaling, such that |y| stays within MAX.
__device__ __forceinline__ float scale_within(float scale, float most) {
    return scale * most > MAX ? MAX / most : scale;
}

// Stores four times `word`.
__device__ __forceinline__ void store_shared_16(uint32_t to, uint32_t word) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(word) : "memory");
}

// Masks the keys of this tile from `left` on.
__device__ __forceinline__ void hide(uint32_t (&y)[KEYS / 4], int left) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        const int key = threadIdx.x % 4 * 2 + i / 2 * 8;
        if (key >= left) y[i] = (HIDDEN & 0xffff) * 0x10001u;
        else if (key + 1 >= left) y[i] = __byte_perm(y[i], HIDDEN & 0xffff, 0x5410);
    }
}

// With NORMED, the stride between heads of e4m3 values is that of bf16 heads.
template <bool NORMED>
__device__ __forceinline__ void attend(const Arguments& args) {
    constexpr int HEAD_STEP = NORMED ? 2 * HEAD_DIM : HEAD_DIM;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    Ring<1> q_ring(base + Shared::BARRIERS);
    Ring<STAGES> k_ring(q_ring.full + q_ring.BARRIER_BYTES), v_ring(k_ring.full + k_ring.BARRIER_BYTES);
    constexpr int CONSUMER_WARPS = 8;
    if (threadIdx.x == 0) {
        q_ring.init(CONSUMER_WARPS, 1);
        k_ring.init(CONSUMER_WARPS, 1, v_ring);
        publish_barriers();
    }
    for (int i = threadIdx.x; i < STAGES * Shared::ONES / 16; i += blockDim.x) {
        const int stage = i / (Shared::ONES / 16), piece = i % (Shared::ONES / 16);
        store_shared_16(base + Shared::V + stage * Shared::V_TILE + Shared::TILE + piece * 16, 0x38383838u);
    }
    show_to_tma();  // and to multiplies
    __syncthreads();

    const int batch = args.batch, txt = args.txt, img = args.img, first_query = args.first_query;
    const int heads = args.heads, group = args.group, query_rows = args.query_rows, key_rows = args.key_rows;
    const float scale = args.scale;
    const int tiles = query_rows / QUERIES, items = tiles * heads * batch, kv_heads = heads / group;
    const int tokens = txt + img, all_keys = tokens + args.cached, key_tiles = ceil_div(all_keys, KEYS);
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        give_registers<24>();
        if (__shfl_sync(~0u, threadIdx.x / 32, 0) == 0) {
            for (int index = blockIdx.x; index < items; index += gridDim.x) {
                const int tile = index % tiles, head = index / tiles % heads, sample = index / tiles / heads;
                const int kv_head = head / group;
                const auto fetch = [&](const TensorMap& map, int row, int col, uint32_t to, int bytes,
                                       Ring<STAGES>& ring) {
                    ring.wait_free();
                    if (threadIdx.x == 0) {
                        const uint32_t full = ring.expect(Shared::TILE);
                        copy_box(to + ring.stage * bytes, map, row, col, full);
                    }
                    ring.advance();
                };
                const auto fetch_v = [&](int of) {
                    fetch(args.v, (sample * kv_heads + kv_head) * HEAD_DIM, of * KEYS, base + Shared::V, Shared::V_TILE,
                          v_ring);
                };
                q_ring.wait_free();
                if (threadIdx.x == 0) {
                    const uint32_t full = q_ring.expect(QUERIES * HEAD_DIM);
                    copy_box(base, args.q, sample * query_rows + tile * QUERIES, head * HEAD_STEP, full);
                }
                q_ring.advance();
                // In the order of use: a V tile is needed after the next K tile.
                for (int of = 0; of < key_tiles; of++) {
                    fetch(args.k, sample * key_rows + of * KEYS, kv_head * HEAD_STEP, base + Shared::K, Shared::TILE,
                          k_ring);
                    if (of > 0) fetch_v(of - 1);
                }
                fetch_v(key_tiles - 1);
            }
        }
    } else {
        take_registers<240>();
        const int mine = warpgroup - 1, lane = threadIdx.x % 32;
        const int my_row = mine * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;  // in the tile; and this one + 8
        const uint64_t queries = describe(base + mine * 64 * HEAD_DIM, 0);
        float normed_scale = 0.f;
        if constexpr (NORMED) {
            const float of_q = bound_of_heads(args.norms[0], args.norms[1]),
                        of_k = bound_of_heads(args.norms[2], args.norms[3]);
            normed_scale = of_q / E4M3_MAX * (of_k / E4M3_MAX) * scale_within(scale, of_q * of_k);
        }
        // Barrier 1 + w is warpgroup w's turn; the first one begins.
        if (mine == 1) give_turn(1, 256);
        for (int index = blockIdx.x; index < items; index += gridDim.x) {
            const int tile = index % tiles, head = index / tiles % heads, sample = index / tiles / heads;
            const long long first_tile = (long long)(sample * kv_heads + head / group) * (key_rows / KEYS);
            const float2* k_tile = NORMED ? nullptr : args.k_tiles + first_tile;
            const float* v_tile = args.v_tiles + first_tile;
            const auto scale_of_keys = [&](int of) { return NORMED ? 1.f : k_tile[of].x; };
            float row_scales[2] = {normed_scale, normed_scale};
            if constexpr (!NORMED) {
                float longest = 0.f;
                for (int of = lane; of < key_tiles; of += 32) longest = fmaxf(longest, k_tile[of].y);
                longest = warp_max(longest);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float2 row = args.q_rows[(long long)(sample * heads + head) * query_rows + tile * QUERIES +
                                                   my_row + half * 8];
                    row_scales[half] = row.x * scale_within(scale, row.y * longest);
                }
            }
            float output[HEAD_DIM / 2] = {}, fresh[HEAD_DIM / 2 + 4], score[KEYS / 2];
            // Output is in units of the scale of the values of the last added tile.
            float sum[2] = {0.f, 0.f}, fade[2], earlier_fade[2] = {0.f, 0.f};
            float v_scale = v_tile[0], earlier_v_scale = v_scale;
            uint32_t weights[KEYS / 32][4], y[KEYS / 4], top = (HIDDEN & 0xffff) * 0x10001u;
            const auto soften = [&](int of, float k_scale) {
                to_logs(y, score, make_float2(row_scales[0] * k_scale, row_scales[1] * k_scale));
                if (all_keys - of * KEYS < KEYS) hide(y, all_keys - of * KEYS);
                const uint32_t now = __vmaxs2(top, greatest(y));
                fade[0] = exp2_approx((short(top) - short(now)) / 8.f);
                fade[1] = exp2_approx((short(top >> 16) - short(now >> 16)) / 8.f);
                top = now;
            };
            const auto issue_scores = [&] {
                const uint64_t keys = describe(base + Shared::K + k_ring.stage * Shared::TILE, 0);
#pragma unroll
                for (int d = 0; d < HEAD_DIM / 32; d++) multiply<true>(score, queries + d * 2, keys + d * 2, d > 0);
                commit_multiply();
            };
            const auto issue_output = [&] {
                const uint64_t values = describe(base + Shared::V + v_ring.stage * Shared::V_TILE, 0);
#pragma unroll
                for (int n = 0; n < KEYS / 32; n++) multiply_values(fresh, weights[n], values + n * 2, n > 0);
                commit_multiply();
            };
            const auto add_fresh = [&] {
                const float ratio = earlier_v_scale / v_scale;
                const float fades[2] = {earlier_fade[0] * ratio, earlier_fade[1] * ratio};
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 2; i++) output[i] = fmaf(output[i], fades[i / 2 % 2], fresh[i]);
#pragma unroll
                for (int half = 0; half < 2; half++)
                    sum[half] = fmaf(sum[half], earlier_fade[half], fresh[HEAD_DIM / 2 + half * 2]);
            };
            const auto remember = [&](float next_v_scale) {
                earlier_fade[0] = fade[0], earlier_fade[1] = fade[1];
                earlier_v_scale = v_scale, v_scale = next_v_scale;
            };

            q_ring.wait_full();
            q_ring.advance();
            k_ring.wait_full();
            begin_multiply();
            issue_scores();
            wait_multiply<0>();
            pin(score);
            k_ring.release(k_ring.stage, lane);
            k_ring.advance();
            if (key_tiles == 1) q_ring.release(0, lane);
            soften(0, scale_of_keys(0));
            remember(v_scale);
            weigh(weights, y, top);
            for (int of = 1; of < key_tiles; of++) {
                const float k_scale = scale_of_keys(of), next_v_scale = v_tile[of];
                k_ring.wait_full();
                wait_turn(1 + mine, 256);
                begin_multiply();
                issue_scores();
                v_ring.wait_full();
                begin_multiply();
                issue_output();
                give_turn(2 - mine, 256);
                wait_multiply<1>();
                pin(score);
                k_ring.release(k_ring.stage, lane);
                k_ring.advance();
                if (of == key_tiles - 1) q_ring.release(0, lane);
                soften(of, k_scale);
                wait_multiply<0>();
                pin(fresh);
                v_ring.release(v_ring.stage, lane);
                v_ring.advance();
                weigh(weights, y, top);
                add_fresh();
                remember(next_v_scale);
            }
            v_ring.wait_full();
            begin_multiply();
            issue_output();
            wait_multiply<0>();
            pin(fresh);
            v_ring.release(v_ring.stage, lane);
            v_ring.advance();
            add_fresh();

            const SampleRows rows(sample, batch, txt, img, batch * first_query);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int token = first_query + tile * QUERIES + my_row + half * 8;
                const float share = v_scale / sum[half];
                bf16* to = args.out + (long long)rows.row(token) * args.ld_out + head * HEAD_DIM + lane % 4 * 8;
                store_row(output, half, share, to, token < tokens);
            }
        }
        if (mine == 0) wait_turn(1, 256);  // takes the last turn, so that the barrier ends as it began
    }
}

}  // namespace attention

// A block quantizes 128 queries, or the k or the v of 128 keys, of one head of one sample. Blocks of neighbouring heads
// are consecutive, as their columns are. With one job per sample instead of three, only v is quantized.
extern "C" __global__ void __launch_bounds__(256)
    attention_to_e4m3(const bf16* q, long long ld_q, const bf16* k, long long ld_k, const bf16* v, long long ld_v,
                      const bf16* cached_k, long long ld_cached_k, const bf16* cached_v, long long ld_cached_v,
                      unsigned char* q8, float2* q_rows, unsigned char* k8, float2* k_tiles, unsigned char* v8,
                      float* v_tiles, int batch, int txt, int img, int first_query, int cached, int heads, int group,
                      int query_rows, int key_rows, int jobs) {
    using namespace attention;
    __shared__ uint32_t columns[HEAD_DIM][KEYS / 4 + 1];
    const int head = blockIdx.x, sample = blockIdx.z / jobs, job = 3 - jobs + blockIdx.z % jobs;
    const int kv_heads = heads / group;
    const int tokens = txt + img, all_keys = tokens + cached, dims = threadIdx.x % 16 * 8, row = threadIdx.x / 16;
    const int first = blockIdx.y * KEYS;
    constexpr int TURNS = KEYS / 16;
    uint4 raw[TURNS];
    if (job == 0) {
        if (first >= query_rows) return;
        const SampleRows rows(sample, batch, txt, img, batch * first_query);
        const bf16* from = q + head * HEAD_DIM + dims;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int token = first_query + first + i * 16 + row;
            raw[i] = token < tokens ? *reinterpret_cast<const uint4*>(from + rows.row(token) * ld_q) : uint4{};
        }
        const long long at = (long long)sample * query_rows + first + row;
        float2* to_row = q_rows + (long long)(sample * heads + head) * query_rows + first + row;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            float values[8];
            unpack(raw[i], values);
            const float most = of_row(largest(values), [](float a, float b) { return fmaxf(a, b); });
            const float length = sqrtf(of_row(squares(values), [](float a, float b) { return a + b; }));
            *reinterpret_cast<uint2*>(q8 + ((at + i * 16) * heads + head) * HEAD_DIM + dims) =
                pack_e4m3(values, inverse(most));
            if (dims == 0) to_row[i * 16] = make_float2(most / E4M3_MAX, length);
        }
        return;
    }
    if (first >= key_rows || head % group != 0) return;
    const Keys keys{SampleRows(sample, batch, txt, img, 0), tokens, cached};
    const int kv_head = head / group, col = kv_head * HEAD_DIM + dims;
    const long long tile = (long long)(sample * kv_heads + kv_head) * (key_rows / KEYS) + blockIdx.y;
    float most = 0.f, longest = 0.f;
    if (job == 1) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int key = first + i * 16 + row;
            raw[i] = key < all_keys ? *keys.at(k, ld_k, cached_k, ld_cached_k, key, col) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            float values[8];
            unpack(raw[i], values);
            most = fmaxf(most, largest(values));
            longest = fmaxf(longest, of_row(squares(values), [](float a, float b) { return a + b; }));
        }
        most = greatest_of_block(most);
        longest = greatest_of_block(longest);
        if (threadIdx.x == 0) k_tiles[tile] = make_float2(most / E4M3_MAX, sqrtf(longest));
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            float values[8];
            unpack(raw[i], values);
            const long long at = (long long)sample * key_rows + first + i * 16 + row;
            *reinterpret_cast<uint2*>(k8 + at * kv_heads * HEAD_DIM + col) = pack_e4m3(values, inverse(most));
        }
        return;
    }
    // Eight columns of four keys with adjacent places, twice.
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int four_keys = i / 4 * 16 + row, place = i % 4;
        const int key = first + four_keys / 4 * 16 + place / 2 * 8 + four_keys % 4 * 2 + place % 2;
        raw[i] = key < all_keys ? *keys.at(v, ld_v, cached_v, ld_cached_v, key, col) : uint4{};
        float values[8];
        unpack(raw[i], values);
        most = fmaxf(most, largest(values));
    }
    most = fmaxf(greatest_of_block(most), LEAST_TILE_AMAX);
    if (threadIdx.x == 0) v_tiles[tile] = most / E4M3_MAX;
    const float factor = inverse(most);
#pragma unroll
    for (int i = 0; i < TURNS; i += 4) {
        float values[4][8];
#pragma unroll
        for (int place = 0; place < 4; place++) unpack(raw[i + place], values[place]);
#pragma unroll
        for (int d = 0; d < 8; d++) {
            const float of_column[4] = {values[0][d], values[1][d], values[2][d], values[3][d]};
            columns[dims + d][i / 4 * 16 + row] = pack_four_e4m3(of_column, factor);
        }
    }
    __syncthreads();
    const long long to_row = (long long)(sample * kv_heads + kv_head) * HEAD_DIM;
    uint32_t* to = reinterpret_cast<uint32_t*>(v8 + to_row * key_rows + first);
#pragma unroll
    for (int i = threadIdx.x; i < HEAD_DIM * KEYS / 4; i += 256)
        to[(long long)(i / (KEYS / 4)) * (key_rows / 4) + i % (KEYS / 4)] = columns[i / (KEYS / 4)][i % (KEYS / 4)];
}

// The launcher passes the shared memory, `BARRIERS` and 8 bytes for each barrier.
extern "C" __global__ void __launch_bounds__(384, 1)
    attention_e4m3_sm90(const __grid_constant__ attention::Arguments args) {
    attention::attend<false>(args);
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_e4m3_normed_sm90(const __grid_constant__ attention::Arguments args) {
    attention::attend<true>(args);
}

#endif
