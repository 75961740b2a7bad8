// The stores of project_sm90a.cu: rounded sums in shared memory become normed and rotated heads, or gate times up.
#pragma once

#include "e4m3.cuh"
#include "mma.cuh"
#include "normed_heads.cuh"
#include "pipeline_sm90a.cuh"
#include "project_tiles_sm90a.cuh"

namespace project {

// Returns the address of 16 bytes of a rounded row. The place of a chunk depends on the row, so that one chunk of eight
// rows is in all banks.
__device__ __forceinline__ uint32_t chunk_at(uint32_t rounded, int row, int chunk) {
    return rounded + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// Stores 16 or 8 bytes at once. For plain C++ the compiler would emit four or two stores here.
__device__ __forceinline__ void store_raw(bf16* to, uint4 raw) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x), "r"(raw.y),
                 "r"(raw.z), "r"(raw.w)
                 : "memory");
}

__device__ __forceinline__ void store_raw(bf16* to, uint2 raw) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x), "r"(raw.y)
                 : "memory");
}

// Unpacks eight bf16 values, scaled. Sums of e4m3 are rounded without their scales, and scaled when they are stored:
// the multiplying warps have no time for it.
template <bool E4M3>
__device__ __forceinline__ void unpack_scaled(uint4 raw, const float (&of_cols)[8], float of_row, float (&values)[8]) {
    unpack(raw, values);
    if constexpr (E4M3)
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] *= of_cols[i] * of_row;
}

template <int N>
__device__ __forceinline__ void load_scales(const float* from, float (&scales)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        scales[i] = four.x, scales[i + 1] = four.y, scales[i + 2] = four.z, scales[i + 3] = four.w;
    }
}

// Half of the rows of a block's tile in shared memory, and their destination. Each of the STORERS warps stores its own
// rows, several in step, so that one row's work overlaps another's shuffles and loads.
template <bool E4M3, int ROWS>
struct Half {
    const Arguments& args;
    const Work<ROWS>& w;
    uint32_t rounded;
    int first_row, rows;
    long long first_out;

    __device__ __forceinline__ Half(const Arguments& args, const Work<ROWS>& w, uint32_t rounded, int half)
        : args(args), w(w), rounded(rounded) {
        first_row = w.row + half * (ROWS / 2);
        rows = w.rows_of(args, half);
        first_out = (w.part ? args.part_rows[0] : 0) + first_row;
    }

    // Rows from `begin` to `end`, each of LANES lanes; a lane has AT_ONCE rows at once.
    template <int LANES, int AT_ONCE>
    struct Rows {
        static constexpr int SIDE_BY_SIDE = 32 / LANES, STEP = STORERS * SIDE_BY_SIDE;
        int begin, end;

        // Calls step(each) for all rows of this warp; each(body) calls body(row, i) for AT_ONCE rows of this lane. Past
        // the last row, the last one is repeated, and stored more than once with the same values.
        template <class Step>
        __device__ __forceinline__ void all(int storer, int lane, Step step) const {
            for (int first = begin + storer * SIDE_BY_SIDE; first < end; first += STEP * AT_ONCE)
                step([&](auto body) {
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) body(min(first + lane / LANES + i * STEP, end - 1), i);
                });
        }
    };

    __device__ __forceinline__ float row_scale(int row) const { return args.x_scales[w.part][first_row + row]; }
    __device__ __forceinline__ const float* col_scales() const { return args.weight_scales[w.part] + w.weight; }

    // Returns the position of a row's token. With one sample, rows are in the order of positions.
    __device__ __forceinline__ int token_of(int row) const {
        const int at = int(first_out) + row;
        if (args.part_rows[0] + args.part_rows[1] == args.txt + args.img) return at;
        return at < args.txt_rows ? at % args.txt : args.txt + (at - args.txt_rows) % args.img;
    }

    __device__ __forceinline__ void store_gated(int storer, int lane) const {
        constexpr int LANES = CONSUMER_COLS / 8, AT_ONCE = 2;
        const int chunk = lane % LANES;
        bf16* out = args.out + first_out * args.ld_out + w.col + chunk * 8;
        float of_gate[8], of_up[8];
        if constexpr (E4M3) {
            load_scales(col_scales() + chunk * 8, of_gate);
            load_scales(col_scales() + w.second + chunk * 8, of_up);
        }
        Rows<LANES, AT_ONCE>{0, rows}.all(storer, lane, [&](auto each) {
            uint4 gate[AT_ONCE], up[AT_ONCE];
            float of_row[AT_ONCE];
            each([&](int row, int i) {
                gate[i] = load_shared_16(chunk_at(rounded, row, chunk));
                up[i] = load_shared_16(chunk_at(rounded, row, LANES + chunk));
                of_row[i] = E4M3 ? row_scale(row) : 1.0f;
            });
            each([&](int row, int i) {
                float g[8], u[8];
                unpack_scaled<E4M3>(gate[i], of_gate, of_row[i], g);
                unpack_scaled<E4M3>(up[i], of_up, of_row[i], u);
#pragma unroll
                for (int j = 0; j < 8; j++) g[j] = silu(g[j]) * u[j];
                store_raw(out + row * args.ld_out, pack(g));
            });
        });
    }

    __device__ __forceinline__ void store_values(int storer, int lane) const {
        constexpr int LANES = COLS / 8, AT_ONCE = 4;
        const int chunk = lane % LANES;
        bf16* out = args.out + first_out * args.ld_out + w.col + chunk * 8;
        float of_lane[8];
        if constexpr (E4M3) load_scales(col_scales() + chunk * 8, of_lane);
        Rows<LANES, AT_ONCE>{0, rows}.all(storer, lane, [&](auto each) {
            uint4 raw[AT_ONCE];
            float of_row[AT_ONCE];
            each([&](int row, int i) {
                raw[i] = load_shared_16(chunk_at(rounded, row, chunk));
                of_row[i] = E4M3 ? row_scale(row) : 1.0f;
            });
            each([&](int row, int i) {
                if constexpr (E4M3) {
                    float x[8];
                    unpack_scaled<E4M3>(raw[i], of_lane, of_row[i], x);
                    raw[i] = pack(x);
                }
                store_raw(out + row * args.ld_out, raw[i]);
            });
        });
    }

    // Stores 128 keys of v in e4m3 as attention_e4m3_sm90a.cu reads them: a scale, and a row for each column. Keys past
    // the last row are zeros. `largest` has a float for each storing warp.
    __device__ __forceinline__ void store_values_in_e4m3(int storer, int lane, float* largest) const {
        constexpr int LANES = COLS / 8, AT_ONCE = 4, KEYS = ROWS / 2;
        const float* of_cols = col_scales();
        float of_lane[8], most = 0.0f;
        load_scales(of_cols + lane % LANES * 8, of_lane);
        Rows<LANES, AT_ONCE>{0, rows}.all(storer, lane, [&](auto each) {
            each([&](int row, int) {
                float x[8];
                unpack_scaled<true>(load_shared_16(chunk_at(rounded, row, lane % LANES)), of_lane, row_scale(row), x);
#pragma unroll
                for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(x[i]));
            });
        });
        // Rounding keeps the order, so this is the largest of the rounded values.
        most = round_to_element(warp_max(most));
        if (lane == 0) largest[storer] = most;
        wait_turn(1, STORERS * 32);
        if (rows <= 0) return;
#pragma unroll
        for (int i = 0; i < STORERS; i++) most = fmaxf(most, largest[i]);
        most = fmaxf(most, LEAST_TILE_AMAX);
        const float inverse = E4M3_MAX / most;
        const int head = (w.col - args.dim) / COLS;
        if (storer == 0 && lane == 0) args.v_tiles[head * (args.key_rows / KEYS) + first_out / KEYS] = most / E4M3_MAX;
        // 16 columns of 64 keys at once, in matrices of 8 keys by 8 columns, which are loaded transposed.
        for (int item = storer; item < COLS / 16 * (KEYS / 64); item += STORERS) {
            const int col = item / 2 * 16, first_key = item % 2 * 64;
            const float of_col[2] = {of_cols[col + lane / 4], of_cols[col + 8 + lane / 4]};
            uint32_t fours[2][4];
#pragma unroll
            for (int sixteen = 0; sixteen < 4; sixteen++) {
                const int key = first_key + sixteen * 16, own = key + lane % 4 * 2;
                const int matrix = lane / 8, row = key + matrix % 2 * 8 + lane % 8;
                unsigned raw[4];
                load_matrices_transposed(raw, chunk_at(rounded, row, col / 8 + matrix / 2));
                float of_rows[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row_of = own + i / 2 * 8 + i % 2;
                    of_rows[i] = row_of < rows ? row_scale(row_of) : 0.0f;
                }
#pragma unroll
                for (int eight = 0; eight < 2; eight++) {
                    float x[4];
                    unpack_pair(raw[eight * 2], x[0], x[1]);
                    unpack_pair(raw[eight * 2 + 1], x[2], x[3]);
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] = round_to_element(x[i] * (of_col[eight] * of_rows[i]));
                    fours[eight][sixteen] = pack_four_e4m3(x, inverse);
                }
            }
#pragma unroll
            for (int eight = 0; eight < 2; eight++) {
                exchange_pairs(fours[eight]);
                const long long column = head * COLS + col + eight * 8 + lane / 4;
                unsigned char* to = args.v8 + column * args.key_rows + first_out + first_key + lane % 4 * 16;
                *reinterpret_cast<uint4*>(to) =
                    make_uint4(fours[eight][0], fours[eight][1], fours[eight][2], fours[eight][3]);
            }
        }
    }

    // Stores rows from `begin` to `end`, all text or all image.
    __device__ __forceinline__ void store_heads(int storer, int lane, int begin, int end, const bf16* norm,
                                                float eps) const {
        constexpr int LANES = COLS / 8, AT_ONCE = 4;
        const int in_head = lane % LANES;
        bf16* out = args.out + first_out * args.ld_out + w.col + in_head * 8;
        float weight[8], of_lane[8];
        load(norm + in_head * 8, weight);
        float inverse = 0.0f;
        if constexpr (E4M3) {
            load_scales(col_scales() + in_head * 8, of_lane);
            if (args.heads_in_e4m3 && begin < end) {
                const float bound = w.kind == QUERIES ? bound_of_heads(args.txt_norm_q, args.img_norm_q)
                                                      : bound_of_heads(args.txt_norm_k, args.img_norm_k);
                inverse = bound > 0.0f ? E4M3_MAX / bound : 0.0f;
            }
        }
        Rows<LANES, AT_ONCE>{begin, end}.all(storer, lane, [&](auto each) {
            uint4 raw[AT_ONCE];
            float4 cosines[AT_ONCE], sines[AT_ONCE];
            float of_row[AT_ONCE];
            each([&](int row, int i) {
                const long long at = token_of(row) * args.ld_table + in_head * 4;
                cosines[i] = *reinterpret_cast<const float4*>(args.cos + at);
                sines[i] = *reinterpret_cast<const float4*>(args.sin + at);
                raw[i] = load_shared_16(chunk_at(rounded, row, in_head));
                of_row[i] = E4M3 ? row_scale(row) : 1.0f;
            });
            float x[AT_ONCE][8], squares[AT_ONCE];
            each([&](int, int i) {
                unpack(raw[i], x[i]);
                squares[i] = 0.0f;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if constexpr (E4M3) x[i][j] *= of_lane[j];
                    squares[i] += x[i][j] * x[i][j];
                }
            });
#pragma unroll
            for (int step = 8; step > 0; step >>= 1)
                each([&](int, int i) { squares[i] += __shfl_xor_sync(~0u, squares[i], step); });
            each([&](int, int i) {
                // The norm divides by a row's scale again, so only eps needs the scale.
                const float least = E4M3 ? __fdividef(eps, of_row[i] * of_row[i]) : eps;
                const float rstd = rsqrtf(squares[i] / COLS + least);
                const float c[4] = {cosines[i].x, cosines[i].y, cosines[i].z, cosines[i].w},
                            s[4] = {sines[i].x, sines[i].y, sines[i].z, sines[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float a = x[i][2 * j] * (rstd * weight[2 * j]),
                                b = x[i][2 * j + 1] * (rstd * weight[2 * j + 1]);
                    x[i][2 * j] = a * c[j] - b * s[j];
                    x[i][2 * j + 1] = b * c[j] + a * s[j];
                }
            });
            each([&](int row, int i) {
                bf16* to = out + row * args.ld_out;
                if (E4M3 && args.heads_in_e4m3) store_raw(to - in_head * 4, pack_e4m3(x[i], inverse));
                else store_raw(to, pack(x[i]));
            });
        });
    }

    __device__ __forceinline__ void store(float* largest) const {
        const int storer = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
        if (w.kind == GATED) {
            store_gated(storer, lane);
        } else if (w.kind == VALUES) {
            if constexpr (E4M3 && ROWS == 256)
                if (args.v8) return store_values_in_e4m3(storer, lane, largest);
            store_values(storer, lane);
        } else {
            const bool queries = w.kind == QUERIES;
            const int txt = min(max(args.txt_rows - int(first_out), 0), rows);
            store_heads(storer, lane, 0, txt, queries ? args.txt_norm_q : args.txt_norm_k, args.txt_eps);
            store_heads(storer, lane, txt, rows, queries ? args.img_norm_q : args.img_norm_k, args.img_eps);
        }
    }
};

// Packs two sums of this lane, of a matrix of 8 rows of the weight, out of a warp's 16, by 8 rows of x.
template <int N>
__device__ __forceinline__ uint32_t pair_of(const float (&sums)[N], int eight_of_x, int eight_of_weight) {
    return pack_pair(sums[eight_of_x * 4 + eight_of_weight * 2], sums[eight_of_x * 4 + eight_of_weight * 2 + 1]);
}

// Rounds sums of ROWS rows of x, from FIRST on, into shared memory; `to` is this lane's chunk of the first rows.
template <int FIRST, int ROWS, int N>
__device__ __forceinline__ void round_rows(const float (&sums)[N], uint32_t to) {
#pragma unroll
    for (int n = FIRST / 8; n < (FIRST + ROWS) / 8; n += 2)
        store_transposed(to + n * 8 * ROW_BYTES, pair_of(sums, n, 0), pair_of(sums, n, 1), pair_of(sums, n + 1, 0),
                         pair_of(sums, n + 1, 1));
}

// Passes rounded sums from the multiplying warps to the storing warps, in two halves of a tile's rows.
template <bool E4M3, int ROWS>
struct Epilogue {
    static constexpr int HALF_BYTES = ROWS / 2 * ROW_BYTES, BYTES = 2 * HALF_BYTES;
    const Arguments& args;
    uint32_t rounded;
    Ring<2> halves;  // full when rounded, free when stored
    float* largest;  // in shared memory, for each half and storing warp: one may still read those of the half before
    Cursor<1> turn;

    __device__ __forceinline__ void wait_for_room(int half) const { wait(halves.free + 8 * half, turn.phase ^ 1); }

    __device__ __forceinline__ void hand_on(int half, int lane) const {
        __syncwarp();
        if (lane == 0) arrive(halves.full + 8 * half);
    }

    // Rounds a consumer's sums of a tile, or of a short one; `to` is the lane's chunk of the first rows.
    template <int N>
    __device__ __forceinline__ void round(const float (&sums)[N], uint32_t to, int lane) {
        wait_for_room(0);
        round_rows<0, ROWS / 2>(sums, to);
        hand_on(0, lane);
        wait_for_room(1);
        if constexpr (2 * N == ROWS) round_rows<ROWS / 2, ROWS / 2>(sums, to);
    }

    // Ends a consumer's tile, after `round`: a separate call, so that tall and short tiles share its code.
    __device__ __forceinline__ void end(int lane) {
        hand_on(1, lane);
        turn.advance();
    }

    // Stores a tile from a storing warp.
    __device__ __forceinline__ void store(const Work<ROWS>& w) {
        for (int half = 0; half < 2; half++) {
            wait(halves.full + 8 * half, turn.phase);
            Half<E4M3, ROWS>(args, w, rounded + half * HALF_BYTES, half)
                .store(largest + half * STORERS);
            __syncwarp();
            halves.release(half);
        }
        turn.advance();
    }
};

}  // namespace project
