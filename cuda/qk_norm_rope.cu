// qk_norm_rope: out = rope(x / sqrt(mean(x^2) + eps) * weight) for every head of q and of k
//
//   q, k      [rows, heads * head_dim], [rows, kv_heads * head_dim]  element, row strides ld_q, ld_k
//   out_q, out_k  the same shapes, row strides ld_out_q, ld_out_k; may be q and k
//   weights   [head_dim] element: for q and k, of text rows (row < txt_rows) and of image rows
//   cos, sin  [txt + img, head_dim / 2] f32, row stride ld_table; the table row of a token is its place in its sample:
//             row % txt for text, txt + (row - txt_rows) % img for images
//
// A pair (a, b) becomes (a cos - b sin, b cos + a sin). Pairs are columns (2 i, 2 i + 1), or with HALVES (i, i +
// head_dim / 2).
//
// Mapping   head_dim / 8 lanes hold a head, 8 values each from one 16-byte load; sums and the other half of a pair come
//           from shuffles among these lanes. `groups_per_row` such groups share a row and step through its heads, 3 at
//           a time. The grid has as many blocks as run at once; each iterates over rows, and issues the loads of its
//           next 3 heads before it computes. 24 + 24 heads of 128: 16 groups, 3 heads each, one row per block of 256.
// Needs     head_dim 128, 64, 32 or 16, all rows and tables 16-byte aligned. Otherwise `_any`: a warp per head, one
//           value at a time, any even head_dim.
// Rounding  once, at the store.
// Bytes     rows * (heads + kv_heads) * head_dim * 4 + tables.   4608 x (24 + 24) x 128: 113 MB + 2.4 MB
// Bound     HBM. 116 MB at 4.8 TB/s (H200) = 24 us
// Measured  36.2 us at 4608 x (24 + 24) x 128, 3.13 TB/s, 65% of bound; composed 236 us; H200, driver 580.159, CUDA
//           13.0; `flux bench ops/`
#include "common.cuh"
#include "rope.cuh"

static constexpr int HEADS_AT_ONCE = 3;

struct Heads {
    const element* q;
    long long ld_q;
    element* out_q;
    long long ld_out_q;
    const element* k;
    long long ld_k;
    element* out_k;
    long long ld_out_k;
    const element* txt_weight_q;
    const element* txt_weight_k;
    const element* img_weight_q;
    const element* img_weight_k;
    const float* cos;
    const float* sin;
    long long ld_table;
    float txt_eps;
    float img_eps;
    int rows;
    int txt_rows;
    int txt;
    int img;
    int heads;
    int kv_heads;
    int head_dim;
};

template <int COUNT>
__device__ __forceinline__ void load_table(const float* from, float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
}

template <int HEAD_DIM, bool HALVES>
__device__ __forceinline__ void qk_norm_rope(const Heads& args, int groups_per_row) {
    constexpr int LANES = HEAD_DIM / 8;
    // Interleaved: the thread's 8 columns are 4 pairs. Halves: they belong to 8 pairs.
    constexpr int ANGLES = HALVES ? 8 : 4;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int rows_per_block = (int)(blockDim.x / LANES) / groups_per_row;
    const int row_in_block = group / groups_per_row;
    if (row_in_block >= rows_per_block) return;
    const unsigned mask = ((1u << LANES) - 1u) << (threadIdx.x & 31 & ~(LANES - 1));
    const int column = lane * 8, all_heads = args.heads + args.kv_heads;
    const int angle = HALVES ? column % (HEAD_DIM / 2) : column / 2;

    // All lanes of a group have the same heads, so that they take part in the same shuffles.
    int row = blockIdx.x * rows_per_block + row_in_block, first = group % groups_per_row;
    uint4 next[HEADS_AT_ONCE];
    const auto fetch = [&] {
        if (row >= args.rows) return;
        const element *q = args.q + row * args.ld_q + column, *k = args.k + row * args.ld_k + column;
#pragma unroll
        for (int n = 0; n < HEADS_AT_ONCE; n++) {
            const int head = first + n * groups_per_row;
            const element* from = head < args.heads ? q + head * HEAD_DIM : k + (head - args.heads) * HEAD_DIM;
            if (head < all_heads) next[n] = *reinterpret_cast<const uint4*>(from);
        }
    };
    fetch();
    while (row < args.rows) {
        const bool is_txt = row < args.txt_rows;
        const int token = token_of(row, args.txt_rows, args.txt, args.img);
        float cosines[ANGLES], sines[ANGLES];
        load_table(args.cos + token * args.ld_table + angle, cosines);
        load_table(args.sin + token * args.ld_table + angle, sines);
        const float eps = is_txt ? args.txt_eps : args.img_eps;
        const uint4 weight_q =
            *reinterpret_cast<const uint4*>((is_txt ? args.txt_weight_q : args.img_weight_q) + column);
        const uint4 weight_k =
            *reinterpret_cast<const uint4*>((is_txt ? args.txt_weight_k : args.img_weight_k) + column);
        element *out_q = args.out_q + row * args.ld_out_q + column, *out_k = args.out_k + row * args.ld_out_k + column;
        const int first_head = first;
        uint4 raw[HEADS_AT_ONCE];
#pragma unroll
        for (int n = 0; n < HEADS_AT_ONCE; n++) raw[n] = next[n];
        first += HEADS_AT_ONCE * groups_per_row;
        if (first >= all_heads) first = group % groups_per_row, row += gridDim.x * rows_per_block;
        fetch();
#pragma unroll
        for (int n = 0; n < HEADS_AT_ONCE; n++) {
            const int head = first_head + n * groups_per_row;
            if (head >= all_heads) break;
            const bool is_q = head < args.heads;
            element* to = is_q ? out_q + head * HEAD_DIM : out_k + (head - args.heads) * HEAD_DIM;

            float x[8], w[8];
            unpack(raw[n], x);
            unpack(is_q ? weight_q : weight_k, w);
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) squares += x[i] * x[i];
#pragma unroll
            for (int step = LANES / 2; step > 0; step >>= 1) squares += __shfl_xor_sync(mask, squares, step);
            const float rstd = rsqrtf(squares / HEAD_DIM + eps);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] *= rstd * w[i];

            float result[8];
            if constexpr (HALVES) {
                // The lower half holds a and needs -b sin; the upper half holds b and needs a sin.
                const float sign = lane < LANES / 2 ? -1.0f : 1.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float partner = __shfl_xor_sync(mask, x[i], LANES / 2);
                    result[i] = x[i] * cosines[i] + sign * partner * sines[i];
                }
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float a = x[2 * i], b = x[2 * i + 1];
                    result[2 * i] = a * cosines[i] - b * sines[i];
                    result[2 * i + 1] = b * cosines[i] + a * sines[i];
                }
            }
            store(to, result);
        }
    }
}

#define QK_NORM_ROPE(HEAD_DIM)                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                 \
        qk_norm_rope_interleaved_##HEAD_DIM(const __grid_constant__ Heads args, int groups_per_row) { \
        qk_norm_rope<HEAD_DIM, false>(args, groups_per_row);                                          \
    }                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                 \
        qk_norm_rope_halves_##HEAD_DIM(const __grid_constant__ Heads args, int groups_per_row) {      \
        qk_norm_rope<HEAD_DIM, true>(args, groups_per_row);                                           \
    }

QK_NORM_ROPE(128)
QK_NORM_ROPE(64)
QK_NORM_ROPE(32)
QK_NORM_ROPE(16)

extern "C" __global__ void __launch_bounds__(256)
    qk_norm_rope_any(const __grid_constant__ Heads args, int halves) {
    const int all_heads = args.heads + args.kv_heads, half = args.head_dim / 2, lane = threadIdx.x & 31;
    const long long item = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const long long row = item / all_heads;
    if (row >= args.rows) return;
    const int head = (int)(item % all_heads);
    const bool is_txt = row < args.txt_rows, is_q = head < args.heads;
    const int token = token_of((int)row, args.txt_rows, args.txt, args.img);
    const int head_column = (is_q ? head : head - args.heads) * args.head_dim;
    const element* from = (is_q ? args.q + row * args.ld_q : args.k + row * args.ld_k) + head_column;
    element* to = (is_q ? args.out_q + row * args.ld_out_q : args.out_k + row * args.ld_out_k) + head_column;
    const element* weight =
        is_q ? (is_txt ? args.txt_weight_q : args.img_weight_q) : (is_txt ? args.txt_weight_k : args.img_weight_k);

    float squares = 0.0f;
    for (int i = lane; i < args.head_dim; i += 32) {
        const float value = to_float(from[i]);
        squares += value * value;
    }
    const float rstd = rsqrtf(warp_sum(squares) / args.head_dim + (is_txt ? args.txt_eps : args.img_eps));
    // A lane reads and writes its own pairs only, so the result may overwrite x.
    for (int pair = lane; pair < half; pair += 32) {
        const int first = halves ? pair : 2 * pair, second = halves ? pair + half : 2 * pair + 1;
        const float a = to_float(from[first]) * rstd * to_float(weight[first]);
        const float b = to_float(from[second]) * rstd * to_float(weight[second]);
        const float c = args.cos[token * args.ld_table + pair], s = args.sin[token * args.ld_table + pair];
        to[first] = to_element(a * c - b * s);
        to[second] = to_element(b * c + a * s);
    }
}
