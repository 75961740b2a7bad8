// attention_int8: attention of heads of 128 without a mask, with queries and keys in 8-bit integers and values in f16
//
//   attention_to_int8 converts q, k and v, as in attention.cu, to contiguous tokens of each head of each sample, padded
//   with zeros to whole tiles: of 64 queries, and of 128 keys and values. With `cos` it norms and rotates q and k
//   first, by norms and tables as in qk_norm_rope.cu, of interleaved pairs
//   q8, k8      [samples, heads, tokens, 128] int8, rotated in groups of 64 columns (int8.cuh)
//   q_scales    [samples, heads, tokens] f32, times `scale`
//   k_scales    [samples, kv_heads, tokens / 64] f32
//   v16         [samples, kv_heads, tokens, 128] f16, at most 1/2
//   v_exponents [samples, kv_heads, tokens / 128] f32: v = v16 * 2^exponent
//   out         as in attention.cu, row stride ld_out
//   whole       as in attention.cu
//
// Mapping   A block computes 128 queries of one head and sample, or half of these; a warp 32 or 16. Tiles of 64 keys
//           and values go through two stages, filled by cp.async. Queries are in registers. Scores are exact sums of
//           integers (mma.m16n8k32). The output is summed in f16 (mma.m16n8k16), which GeForce multiplies at twice the
//           rate of sums in float32. The exponents of values are added to the scores, so that all tiles of values have
//           one scale. Weights are at most 1/2, and values, too, so that the sums of 3 * 2^16 keys are finite.
// In place  out may be q: nothing reads it after the conversion.
// Needs     sm_80, rows 16-byte aligned. The launcher passes the shared memory, STAGES * STAGE_BYTES.
// Bound     mma.sync: 4608 tokens of 24 heads are 130 G operations in int8 and 130 in f16
// Measured  docs/kernels-attention.md
#include <type_traits>

#include "attention.cuh"
#include "int8.cuh"
#include "mma.cuh"

#if !defined(ELEMENT_F16) && __CUDA_ARCH__ >= 800

namespace attend_int8 {

using attention::exp2_approx;
using attention::SampleRows;

constexpr int HEAD_DIM = 128, KEY_TILE = 64, VALUE_TILE = 2 * KEY_TILE, GROUP = 64;
constexpr int CONVERT_THREADS = 512, ROW_LANES = HEAD_DIM / int8::CHUNK;  // lanes of a row of a head
constexpr float SLACK = 4.f, HEADROOM = SLACK + 1.f;  // in powers of two
constexpr float MAGIC = 12582912.f;  // 1.5 * 2^23
// Bounds of the exponents of values, so that powers of two of all sums and differences are normal numbers in float32.
constexpr int MIN_BIASED = 127 - 40, MAX_BIASED = 127 + 120;

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ __half2 as_half2(uint32_t pair) { return *reinterpret_cast<const __half2*>(&pair); }

// The norms of heads of text and image tokens, and how many tokens are text.
struct Norms {
    const element *txt_weight, *img_weight;
    float txt_eps, img_eps;
    int txt;
};

// The rotation of a thread's 4 pairs of a token.
struct Angles {
    float cos[4], sin[4];

    __device__ __forceinline__ void load(const float* all_cos, const float* all_sin, long long at) {
        const float4 c = *reinterpret_cast<const float4*>(all_cos + at);
        const float4 s = *reinterpret_cast<const float4*>(all_sin + at);
        cos[0] = c.x, cos[1] = c.y, cos[2] = c.z, cos[3] = c.w;
        sin[0] = s.x, sin[1] = s.y, sin[2] = s.z, sin[3] = s.w;
    }
};

// A tile of rows to convert, loaded by a block: a thread has 8 columns of every 32nd row.
template <int TOKENS>
struct Rows {
    static constexpr int STEP = CONVERT_THREADS / ROW_LANES, PASSES = TOKENS / STEP;
    const int lane = threadIdx.x % ROW_LANES, row = threadIdx.x / ROW_LANES;
    float values[PASSES][int8::CHUNK];

    // Loads tokens from `first` on of a head; zeros from token `end` on.
    __device__ __forceinline__ Rows(const element* from, long long ld, const SampleRows& rows, int first, int end,
                                    int head) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const int token = first + pass * STEP + row;
            const element* at = from + rows.row(token) * ld + head * HEAD_DIM + lane * int8::CHUNK;
            unpack(token < end ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0), values[pass]);
        }
    }

    // Norms each row of a head and rotates its pairs, as qk_norm_rope.cu does, but without rounding. The tile begins
    // with token `first`; `angles` are those of its rows.
    __device__ __forceinline__ void norm_and_rotate(const Norms& norms, const Angles (&angles)[PASSES], int first) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const bool is_txt = first + pass * STEP + row < norms.txt;
            float weight[int8::CHUNK], squares = 0.0f;
            float(&x)[int8::CHUNK] = values[pass];
            load((is_txt ? norms.txt_weight : norms.img_weight) + lane * int8::CHUNK, weight);
#pragma unroll
            for (int i = 0; i < int8::CHUNK; i++) squares += x[i] * x[i];
#pragma unroll
            for (int step = ROW_LANES / 2; step > 0; step >>= 1) squares += __shfl_xor_sync(~0u, squares, step);
            const float rstd = rsqrtf(squares / HEAD_DIM + (is_txt ? norms.txt_eps : norms.img_eps));
#pragma unroll
            for (int i = 0; i < int8::CHUNK / 2; i++) {
                const float a = x[2 * i] * (rstd * weight[2 * i]), b = x[2 * i + 1] * (rstd * weight[2 * i + 1]);
                x[2 * i] = a * angles[pass].cos[i] - b * angles[pass].sin[i];
                x[2 * i + 1] = b * angles[pass].cos[i] + a * angles[pass].sin[i];
            }
        }
    }

    // Returns the place of the thread's columns in a dense tile.
    __device__ __forceinline__ int at(int pass) const { return (pass * STEP + row) * HEAD_DIM + lane * int8::CHUNK; }

    __device__ __forceinline__ float amax(int pass) const {
        float amax = 0.0f;
#pragma unroll
        for (int i = 0; i < int8::CHUNK; i++) amax = int8::larger(amax, fabsf(values[pass][i]));
        return amax;
    }

    // Returns the largest magnitude of the tile, at least LEAST_AMAX.
    __device__ __forceinline__ float amax() const {
        float all = 0.0f;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) all = int8::larger(all, amax(pass));
        return int8::block_amax(all);
    }

    __device__ __forceinline__ void rotate() {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) int8::rotate(values[pass], GROUP);
    }

    __device__ __forceinline__ void store_int8(int pass, float amax, int8_t* out) const {
        const float inverse = __fdiv_rn(int8::MAX, amax);
        int q[int8::CHUNK];
#pragma unroll
        for (int i = 0; i < int8::CHUNK; i++) q[i] = __float2int_rn(values[pass][i] * inverse);
        *reinterpret_cast<uint2*>(out + at(pass)) =
            make_uint2(int8::pack_bytes(q[0], q[1], q[2], q[3]), int8::pack_bytes(q[4], q[5], q[6], q[7]));
    }
};

// Returns the scale of integers of rotated values.
__device__ __forceinline__ float int8_scale(float amax) {
    return __fdiv_rn(amax, int8::MAX) * int8::per_root(GROUP);
}

__device__ __forceinline__ void convert_queries(Rows<KEY_TILE>& rows, float scale, int8_t* out, float* scales) {
    rows.rotate();
#pragma unroll
    for (int pass = 0; pass < rows.PASSES; pass++) {
        float amax = rows.amax(pass);
#pragma unroll
        for (int step = ROW_LANES / 2; step > 0; step >>= 1)
            amax = int8::larger(amax, __shfl_xor_sync(~0u, amax, step));
        amax = int8::larger(amax, int8::LEAST_AMAX);
        rows.store_int8(pass, amax, out);
        if (rows.lane == 0) scales[pass * rows.STEP + rows.row] = int8_scale(amax) * scale;
    }
}

__device__ __forceinline__ void convert_keys(Rows<KEY_TILE>& rows, int8_t* out, float* scale) {
    rows.rotate();
    const float amax = rows.amax();
#pragma unroll
    for (int pass = 0; pass < rows.PASSES; pass++) rows.store_int8(pass, amax, out);
    if (threadIdx.x == 0) *scale = int8_scale(amax);
}

__device__ __forceinline__ void convert_values(const Rows<VALUE_TILE>& rows, __half* out, float* exponent) {
    // The power of two that brings the largest magnitude to 1/4 .. 1/2.
    const int biased = min(max(int(__float_as_uint(rows.amax()) >> 23) + 2, MIN_BIASED), MAX_BIASED);
    const float inverse = 1.0f / __int_as_float(biased << 23);
#pragma unroll
    for (int pass = 0; pass < rows.PASSES; pass++) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = pack_f16(rows.values[pass][2 * i] * inverse, rows.values[pass][2 * i + 1] * inverse);
        *reinterpret_cast<uint4*>(out + rows.at(pass)) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    if (threadIdx.x == 0) *exponent = float(biased - 127);
}

// d [16, 8] = c + a [16, 32] b [32, 8] of 8-bit integers
__device__ __forceinline__ void multiply_int8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                              const int (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// d [16, 8] = c + a [16, 16] b [16, 8], in f16
__device__ __forceinline__ void multiply_f16(uint32_t (&d)[2], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             uint32_t c0, uint32_t c1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};"
        : "=r"(d[0]), "=r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}

constexpr int WARPS = 4, THREADS = WARPS * 32, TILE = WARPS * 32, STAGES = 2;
constexpr int KEY_BYTES = KEY_TILE * HEAD_DIM, STAGE_BYTES = KEY_BYTES * 3;
constexpr int KEY_COLS = KEY_TILE / 8, DIM_COLS = HEAD_DIM / 8, STEPS = HEAD_DIM / 32;
static_assert(STAGES * STAGE_BYTES >= TILE * HEAD_DIM * 2, "the output is stored through the stages");

// Copies KEY_TILE contiguous rows of CHUNKS times 16 bytes to a swizzled tile.
template <int CHUNKS>
__device__ __forceinline__ void load_tile(uint32_t to, const void* from) {
    // The rows of a thread are multiples of eight apart, so they have the same swizzle.
    constexpr int STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0, "one swizzle");
    to += swizzled<CHUNKS>(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
#pragma unroll
    for (int i = 0; i < KEY_TILE / STEP; i++)
        copy_16(to + i * STEP * CHUNKS * 16, static_cast<const uint4*>(from) + i * THREADS + threadIdx.x, true);
}

typedef int Scores[KEY_COLS][4];

// Sets the scores of keys from `visible` on to -inf.
__device__ __forceinline__ void hide(Scores& scores, int visible) {
    visible -= threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < KEY_COLS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (n * 8 + i % 2 >= visible) scores[n][i] = __float_as_int(-INFINITY);
}

// 16 queries of a warp, of which a lane has rows lane / 4 and lane / 4 + 8, and what they have seen.
struct Band {
    uint32_t queries[STEPS][4];
    float scale[2];
    uint32_t output[DIM_COLS][2] = {};  // f16
    uint32_t weights[KEY_COLS / 2][4];  // of the current tile, f16
    // The reference of the weights' exponents, and this lane's part of the row's sum.
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    // Loads the queries from `row` on, of which `rows` exist; others are zeros.
    __device__ __forceinline__ void load(const int8_t* q8, const float* scales, int row, int rows) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = row + half * 8 + lane / 4;
            const bool inside = own < rows;
            scale[half] = inside ? scales[own] : 0.0f;
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int8_t* at = q8 + (long long)own * HEAD_DIM + step * 32 + i * 16 + lane % 4 * 4;
                    queries[step][i * 2 + half] = inside ? *reinterpret_cast<const uint32_t*>(at) : 0;
                }
        }
    }

    // Computes the weights of a tile from its scores: exp2(score + exponent - top - HEADROOM). Raises `top` if a score
    // exceeds it by more than SLACK powers of two.
    __device__ __forceinline__ void weigh(const Scores& scores, float key_scale, float exponent) {
        float factor[2], shift[2], next[2];
        bool rises = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float greatest = 0.0f;
#pragma unroll
            for (int n = 0; n < KEY_COLS; n++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++) greatest = fmaxf(greatest, __int_as_float(scores[n][i]));
            greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
            greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
            factor[half] = scale[half] * key_scale;
            greatest = fmaf(greatest - MAGIC, factor[half], exponent);
            const bool own = greatest - top[half] > SLACK;
            next[half] = own ? greatest : top[half];
            rises |= own;
            // The rounding of MAGIC * factor is less than one integer.
            shift[half] = fmaf(-MAGIC, factor[half], exponent - next[half] - HEADROOM);
        }
        if (__any_sync(~0u, rises)) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float fade = exp2_approx(top[half] - next[half]);
                const __half2 fades = __float2half2_rn(fade);
                top[half] = next[half];
                sum[half] *= fade;
#pragma unroll
                for (int n = 0; n < DIM_COLS; n++) {
                    const __half2 faded = __hmul2(as_half2(output[n][half]), fades);
                    output[n][half] = *reinterpret_cast<const uint32_t*>(&faded);
                }
            }
        }
        float of_tile[2] = {};
#pragma unroll
        for (int n = 0; n < KEY_COLS; n += 2)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int* pair = &scores[n + i / 2][i % 2 * 2];
                const float low = exp2_approx(fmaf(__int_as_float(pair[0]), factor[i % 2], shift[i % 2])),
                            high = exp2_approx(fmaf(__int_as_float(pair[1]), factor[i % 2], shift[i % 2]));
                of_tile[i % 2] += low + high;
                weights[n / 2][i] = pack_f16(low, high);
            }
        const float unit = exp2_approx(-exponent);
#pragma unroll
        for (int half = 0; half < 2; half++) sum[half] = fmaf(of_tile[half], unit, sum[half]);
    }
};

// The queries of a warp. Fragments of keys and values are loaded once for all its bands.
template <int BANDS>
struct Bands {
    Band bands[BANDS];
    // Sums of integers begin at the bits of 1.5 * 2^23 as a float: the bits of 1.5 * 2^23 + n are those bits + n.
    // |n| is below 2^21.
    int start[4];

    __device__ __forceinline__ Bands(const int8_t* q8, const float* scales, int row, int rows) {
#pragma unroll
        for (int band = 0; band < BANDS; band++) bands[band].load(q8, scales, row + band * 16, rows);
        // The compiler must keep the value in four registers, the operand of a multiply.
#pragma unroll
        for (int i = 0; i < 4; i++) {
            start[i] = __float_as_int(MAGIC);
            asm volatile("" : "+r"(start[i]));
        }
    }

    // Computes MAGIC + products of the queries and a tile of keys.
    __device__ __forceinline__ void multiply_keys(Scores (&scores)[BANDS], uint32_t tile) const {
        const int lane = threadIdx.x % 32;
        tile += swizzled<8>((lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int n = 0; n < KEY_COLS; n += 2) {
                uint32_t keys[4];
                load_matrices(keys, (tile ^ (step * 32)) + n * 8 * HEAD_DIM);
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int band = 0; band < BANDS; band++) {
                        int(&to)[4] = scores[band][n + i];
                        const uint32_t(&from)[4] = bands[band].queries[step];
                        if (step == 0) multiply_int8(to, from, keys[2 * i], keys[2 * i + 1], start);
                        else multiply_int8(to, from, keys[2 * i], keys[2 * i + 1], to);
                    }
            }
    }

    // Adds the weights times a tile of values.
    __device__ __forceinline__ void multiply_values(uint32_t tile) {
        const int lane = threadIdx.x % 32;
        tile += swizzled<16>((lane & 7) + ((lane >> 3) & 1) * 8, lane >> 4);
#pragma unroll
        for (int n = 0; n < KEY_COLS; n += 2)
#pragma unroll
            for (int d = 0; d < DIM_COLS; d += 2) {
                uint32_t values[4];
                load_matrices_transposed(values, (tile ^ (d * 16)) + n * 8 * HEAD_DIM * 2);
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int band = 0; band < BANDS; band++) {
                        uint32_t(&to)[2] = bands[band].output[d + i];
                        multiply_f16(to, bands[band].weights[n / 2], values[2 * i], values[2 * i + 1], to[0], to[1]);
                    }
            }
    }
};

// Computes the queries from `first` on, TILE or half as many.
template <int BANDS>
__device__ __forceinline__ void attend(const int8_t* q8, const float* q_scales, const int8_t* k8, const float* k_scales,
                                       const __half* v16, const float* v_exponents, element* out, int ld_out,
                                       const SampleRows& rows, int first, int first_query, int tokens, int query_rows,
                                       int key_rows) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = warp * 16 * BANDS;
    const int key_tiles = key_rows / KEY_TILE;  // even
    const auto load = [&](int tile) {
        const uint32_t to = ring + tile % STAGES * STAGE_BYTES;
        if (tile < key_tiles) {
            load_tile<8>(to, k8 + (long long)tile * KEY_BYTES);
            load_tile<16>(to + KEY_BYTES, v16 + (long long)tile * KEY_BYTES);
        }
        commit_copies();
    };
    load(0);
    Bands<BANDS> queries(q8, q_scales, first + own, query_rows);
    for (int tile = 0; tile < key_tiles; tile++) {
        const float key_scale = k_scales[tile], exponent = v_exponents[tile / 2];
        wait_copies<0>();
        __syncthreads();
        load(tile + 1);
        const uint32_t stage = ring + tile % STAGES * STAGE_BYTES;
        Scores scores[BANDS];
        queries.multiply_keys(scores, stage);
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
            if ((tile + 1) * KEY_TILE > tokens) hide(scores[band], tokens - tile * KEY_TILE);
            queries.bands[band].weigh(scores[band], key_scale, exponent);
        }
        queries.multiply_values(stage + KEY_BYTES);
    }

    // Stores through shared memory, each warp its own rows, so that the stores are 16 bytes wide.
    __syncthreads();
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = queries.bands[band].sum[half];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const float share = 1.f / total;
            const int row = own + band * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int n = 0; n < DIM_COLS; n++) {
                const float2 pair = __half22float2(as_half2(queries.bands[band].output[n][half]));
                *reinterpret_cast<uint32_t*>(shared + swizzled<16>(row, n) + lane % 4 * 4) =
                    pack_pair(pair.x * share, pair.y * share);
            }
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BANDS * 16 * DIM_COLS / 32; i++) {
        const int at = lane + i * 32, row = own + at / DIM_COLS, chunk = at % DIM_COLS,
                  token = first_query + first + row;
        const uint4* from = reinterpret_cast<const uint4*>(shared + swizzled<16>(row, chunk));
        if (token < tokens) *reinterpret_cast<uint4*>(out + int64_t(rows.row(token)) * ld_out + chunk * 8) = *from;
    }
}

}  // namespace attend_int8

// blockIdx.x: every gridDim.x-th head, blockIdx.y: tiles, blockIdx.z: samples of values, then of keys, then of queries.
extern "C" __global__ void __launch_bounds__(attend_int8::CONVERT_THREADS)
    attention_to_int8(const element* q, long long ld_q, const element* k, long long ld_k, const element* v,
                      long long ld_v, int8_t* q8, float* q_scales, int8_t* k8, float* k_scales, __half* v16,
                      float* v_exponents, int batch, int txt, int img, int first_query, int heads, int group,
                      int query_rows, int key_rows, float scale, const element* txt_norm_q, const element* img_norm_q,
                      const element* txt_norm_k, const element* img_norm_k, const float* cos, const float* sin,
                      int ld_table, float txt_eps, float img_eps) {
    using namespace attend_int8;
    enum { VALUES, KEYS, QUERIES };
    const int sample = blockIdx.z % batch, job = blockIdx.z / batch, tokens = txt + img;
    const int tile = job == VALUES ? VALUE_TILE : KEY_TILE, first = blockIdx.y * tile;
    const int job_rows = job == QUERIES ? query_rows : key_rows, job_heads = job == QUERIES ? heads : heads / group;
    if (first >= job_rows) return;
    const auto row_of = [&](int head) { return ((long long)sample * job_heads + head) * job_rows + first; };
    if (job == VALUES) {
        const SampleRows rows(sample, batch, txt, img, 0);
        for (int head = blockIdx.x; head < job_heads; head += gridDim.x) {
            const long long row = row_of(head);
            convert_values(Rows<VALUE_TILE>(v, ld_v, rows, first, tokens, head), v16 + row * HEAD_DIM,
                           v_exponents + row / VALUE_TILE);
        }
        return;
    }
    typedef Rows<KEY_TILE> Tile;
    const bool is_query = job == QUERIES;
    const int first_token = first + (is_query ? first_query : 0);
    const SampleRows rows(sample, batch, txt, img, is_query ? batch * first_query : 0);
    const Norms norms{is_query ? txt_norm_q : txt_norm_k, is_query ? img_norm_q : img_norm_k, txt_eps, img_eps, txt};
    Angles angles[Tile::PASSES];
    if (cos != nullptr)
#pragma unroll
        for (int pass = 0; pass < Tile::PASSES; pass++) {
            const int token = min(first_token + pass * Tile::STEP + int(threadIdx.x) / ROW_LANES, tokens - 1);
            angles[pass].load(cos, sin, (long long)token * ld_table + threadIdx.x % ROW_LANES * 4);
        }
    for (int head = blockIdx.x; head < job_heads; head += gridDim.x) {
        const long long row = row_of(head);
        Tile values(is_query ? q : k, is_query ? ld_q : ld_k, rows, first_token, tokens, head);
        if (cos != nullptr) values.norm_and_rotate(norms, angles, first_token);
        if (is_query) convert_queries(values, scale, q8 + row * HEAD_DIM, q_scales + row);
        else convert_keys(values, k8 + row * HEAD_DIM, k_scales + row / KEY_TILE);
    }
}

extern "C" __global__ void __launch_bounds__(attend_int8::THREADS, 2)
    attention_int8(const int8_t* q8, const float* q_scales, const int8_t* k8, const float* k_scales, const __half* v16,
                   const float* v_exponents, element* out, int ld_out, int batch, int txt, int img, int first_query,
                   int heads, int group, int query_rows, int key_rows, int whole) {
    using namespace attend_int8;
    const bool is_whole = blockIdx.x < whole;
    const int half = is_whole ? 0 : (blockIdx.x - whole) % 2;
    const int at = is_whole ? blockIdx.x : whole + (blockIdx.x - whole) / 2;
    const int tokens = txt + img, tiles = ceil_div(tokens - first_query, TILE);
    const int first = at % tiles * TILE + half * (TILE / 2);  // among the queries
    const int head = at / tiles % heads, sample = at / tiles / heads;
    const long long q_head = (long long)sample * heads + head,
                    kv_head = (long long)sample * (heads / group) + head / group;
    q8 += q_head * query_rows * HEAD_DIM, q_scales += q_head * query_rows;
    k8 += kv_head * key_rows * HEAD_DIM, k_scales += kv_head * (key_rows / KEY_TILE);
    v16 += kv_head * key_rows * HEAD_DIM, v_exponents += kv_head * (key_rows / VALUE_TILE);
    out += head * HEAD_DIM;
    const SampleRows rows(sample, batch, txt, img, batch * first_query);
    if (is_whole)
        attend<2>(q8, q_scales, k8, k_scales, v16, v_exponents, out, ld_out, rows, first, first_query, tokens,
                  query_rows, key_rows);
    else
        attend<1>(q8, q_scales, k8, k_scales, v16, v_exponents, out, ld_out, rows, first, first_query, tokens,
                  query_rows, key_rows);
}

#endif
