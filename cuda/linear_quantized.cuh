// 8-bit matrix multiplication by mma.sync, out = (x weight^T) * (x_scales * weight_scales) + bias, with silu(gate) * up
// for the columns of an MLP: shared by linear_int8.cu, linear_w4a8.cu (4-bit weights) and linear_e4m3_sm89.cu. Values
// defines the type: its Sum, `multiply` of 16 rows, 8 columns and 32 bytes, and `to_float` of a sum. Weight defines the
// layout of the weight, see Bytes here and Packed in linear_w4a8.cu.
//
//   x        [m, k]  row stride ld_x, scaled by x_scales [m] f32
//   weight   [plain + 2 mlp, k]  row stride ld_weight, scaled by weight_scales f32; rows plain, gate, up in this order
//   bias     [plain]  element or null
//   out      [m, plain + mlp]  element, row stride ld_out: plain columns, then those of the MLP
//
// Mapping   a block computes a tile of 128 x COLS sums, 64 x 64 per warp, with packed weights 128 x 32, by mma.sync
//           m16n8k32. Steps of STEP bytes of k go through STAGES stages of shared memory by asynchronous copies. Rows
//           are swizzled, so that ldmatrix has no bank conflicts. The fragments of the next 32 bytes are loaded while
//           the current ones are multiplied, also across the barrier of a stage, with the copies of a later step
//           between the multiplies. Tiles of 128 columns have two blocks per multiprocessor: one multiplies while the
//           other stores. A tile of the MLP has half as many columns: its weight alternates 8 rows of gate and 8 of up,
//           so a thread has both sums of a column. Results go through shared memory, for 16-byte stores. Blocks of a
//           group of `rows_of_tiles` rows of tiles are consecutive, so that their x stays in L2 while weights stream.
//           For fp16 (GPUs of 7.5): m8n8k16, and two stages that threads fill through registers.
// Needs     k, ld_x and ld_weight % 16 == 0, with zeros after the columns; x and weight 16-byte aligned. out has any
//           alignment: without 16-byte rows values are stored one by one.
// Rounding  once, at the store; each float32 operation before is rounded to nearest. Gate and up are not rounded to an
//           element.
// Flops     2 m (plain + 2 mlp) k.   4608 x 3072 -> 27648: 783 G
// Bound     tensor cores, at the rate of mma.sync: `flux bench ceiling/ --precision int8`
#pragma once

#include "mma.cuh"

namespace quantized_linear {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 8-bit weights, with the shared-memory layout of x.
struct Bytes {
    static constexpr bool PACKED = false;
};

__device__ __forceinline__ uint32_t load_word(uint32_t from) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

template <class Values, int COLS, int STEP, int MAX_STAGES>
struct Product {
    typedef typename Values::Sum Sum;
    typedef typename Values::Weight Weight;
    static constexpr bool PACKED = Weight::PACKED;
    static constexpr int ROWS = 128, WARP_ROWS = PACKED ? 128 : 64, WARP_COLS = PACKED ? 32 : 64;
    static constexpr int THREADS = COLS, WARPS_M = ROWS / WARP_ROWS;
    static constexpr int TILES_M = WARP_ROWS / 16, TILES_N = WARP_COLS / 8, KS = STEP / 32;
    static constexpr int STEP_CHUNKS = STEP / 16, ROWS_AT_ONCE = THREADS / STEP_CHUNKS;
    static constexpr int WEIGHT_STEP = PACKED ? STEP / 2 : STEP;  // bytes
    static constexpr int WEIGHT_STEP_CHUNKS = WEIGHT_STEP / 16, WEIGHT_ROWS_AT_ONCE = THREADS / WEIGHT_STEP_CHUNKS;
    static constexpr int X_CHUNKS = ROWS / ROWS_AT_ONCE, WEIGHT_CHUNKS = COLS / WEIGHT_ROWS_AT_ONCE;
    static constexpr int X_BYTES = ROWS * STEP, WEIGHT_BYTES = COLS * WEIGHT_STEP;
    static constexpr int STAGE_BYTES = X_BYTES + WEIGHT_BYTES;
    // Bytes of 32 values of a step of packed weights, for all columns.
    static constexpr int HALF_BYTES = WEIGHT_BYTES / KS;
#ifdef ELEMENT_F16
    static constexpr int STAGES = 2;
#else
    static constexpr int STAGES = MAX_STAGES;
#endif
    static_assert(KS % 2 == 0, "fragments take turns in two places");
    static_assert(!PACKED || STEP == 64, "what two steps are multiplied by are 16 bytes of a column");

    // The multipliers of packed weights of a step and of the adjacent step: after the stages, in as many rotating
    // places.
    static __device__ __forceinline__ uint32_t multipliers_of(int step) {
        return STAGES * STAGE_BYTES + step / 2 % STAGES * (COLS * 16);
    }

    typedef Sum Sums[TILES_M][TILES_N][4];

    struct Fragments {
        uint32_t x[TILES_M][4], weight[TILES_N][2];
    };

    static __device__ __forceinline__ void multiply(Sums& sums, const Fragments& fragments) {
#pragma unroll
        for (int i = 0; i < TILES_M; i++) {
#pragma unroll
            for (int j = 0; j < TILES_N; j++) Values::multiply(sums[i][j], fragments.x[i], fragments.weight[j]);
        }
    }

    // The tile of a block, and the part of the matrices that a thread copies: the same chunk of rows that are
    // ROWS_AT_ONCE or WEIGHT_ROWS_AT_ONCE apart, in an MLP's weight half as many rows of gate or of up. For packed
    // weights also the multipliers of one column.
    struct Tile {
        int row, col;   // the first cell in out
        int cols_end;   // the column of out after the last of its kind
        bool is_mlp;
        const uint8_t *x, *weight;       // the first chunk, or a valid one
        long long x_step, weight_step;   // strides between chunks
        int x_chunks, weight_chunks;     // the numbers of chunks
        int chunk;                       // bytes of x before it in a step
        const uint8_t* multipliers;      // null past the last column

        __device__ __forceinline__ Tile(const uint8_t* all_x, long long ld_x, const uint8_t* all_weights,
                                        long long ld_weight, int m, int plain, int mlp, int k, int rows_of_tiles) {
            const int tiles_m = ceil_div(m, ROWS), plain_tiles = ceil_div(plain, COLS);
            const int tiles_n = plain_tiles + ceil_div(mlp, COLS / 2);
            const int group = blockIdx.x / (rows_of_tiles * tiles_n), first = group * rows_of_tiles;
            const int in_group = blockIdx.x - first * tiles_n, height = min(rows_of_tiles, tiles_m - first);
            const int tile_n = in_group / height;
            row = (first + in_group % height) * ROWS;
            is_mlp = tile_n >= plain_tiles;
            const int first_of_kind = is_mlp ? (tile_n - plain_tiles) * (COLS / 2) : tile_n * COLS;
            const int of_kind = is_mlp ? mlp : plain;
            col = (is_mlp ? plain : 0) + first_of_kind;
            cols_end = is_mlp ? plain + mlp : plain;
            const auto count = [](int rows, int apart) { return rows > 0 ? ceil_div(rows, apart) : 0; };
            chunk = threadIdx.x % STEP_CHUNKS * 16;
            const int x_row = threadIdx.x / STEP_CHUNKS;
            x_chunks = count(m - row - x_row, ROWS_AT_ONCE);
            x = all_x + (row + (x_chunks > 0 ? x_row : 0)) * ld_x + chunk;
            x_step = ROWS_AT_ONCE * ld_x;
            // The column of its kind for a row of the tile's weight, and the weight's row relative to the tile's first.
            const auto of_tile = [&](int r) { return is_mlp ? r / 16 * 8 + r % 8 : r; };
            const auto weight_row = [&](int r) { return of_tile(r) + (is_mlp && (r & 8) != 0 ? mlp : 0); };
            const int r = threadIdx.x / WEIGHT_STEP_CHUNKS;
            const int at_once = is_mlp ? WEIGHT_ROWS_AT_ONCE / 2 : WEIGHT_ROWS_AT_ONCE;
            weight_chunks = count(of_kind - first_of_kind - of_tile(r), at_once);
            weight = all_weights + (col + (weight_chunks > 0 ? weight_row(r) : 0)) * ld_weight +
                     threadIdx.x % WEIGHT_STEP_CHUNKS * 16;
            weight_step = at_once * ld_weight;
            multipliers = nullptr;
            if (PACKED && of_tile(threadIdx.x) < of_kind - first_of_kind)
                multipliers =
                    all_weights + (col + weight_row(threadIdx.x)) * ld_weight + ceil_div(k, STEP) * WEIGHT_STEP;
        }

        // Returns true if the thread's chunk of weights of a step exists: rows of packed weights are whole steps.
        __device__ __forceinline__ bool weight_in_row(int from, int k) const { return PACKED || from + chunk < k; }
    };

    // Returns the offset of the thread's chunk in a stage; chunks of later rows are ROWS_AT_ONCE rows apart.
    static __device__ __forceinline__ uint32_t own_place() {
        return swizzled<STEP_CHUNKS>(threadIdx.x / STEP_CHUNKS, threadIdx.x % STEP_CHUNKS);
    }

    // The offset for the weight, and the distance between two of its chunks. Packed, each half of a step is separate,
    // so that 8 rows of 16 bytes are in all banks.
    static constexpr int WEIGHT_CHUNK_STEP = PACKED ? WEIGHT_ROWS_AT_ONCE * 16 : WEIGHT_ROWS_AT_ONCE * STEP;
    static __device__ __forceinline__ uint32_t own_weight_place() {
        if constexpr (PACKED) return X_BYTES + threadIdx.x % KS * HALF_BYTES + threadIdx.x / KS * 16;
        else return X_BYTES + own_place();
    }

    // A warp's operands of a stage, from its lane's address on.
    struct Reader {
        uint32_t x, weight, multipliers;

        __device__ __forceinline__ explicit Reader(uint32_t shared) {
            const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
            // Matrices of x: rows 0 to 7 and 8 to 15 of the first 16 bytes, then of the second. Of the weight: the
            // first and the second 16 bytes of rows 0 to 7, then of 8 to 15.
            x = shared + swizzled<STEP_CHUNKS>(warp % WARPS_M * WARP_ROWS + lane % 16, lane / 16);
            // Packed, a lane reads its own operands of the first column.
            const int col = warp / WARPS_M * WARP_COLS;
            if constexpr (PACKED) weight = shared + X_BYTES + (col + lane / 4) * 16 + lane % 4 * 4;
            else weight = shared + X_BYTES + swizzled<STEP_CHUNKS>(col + lane % 8 + lane / 16 * 8, lane / 8 % 2);
            multipliers = shared + (col + lane / 4) * 16;
        }

        // Loads bytes 32 `k` to 32 `k` + 31 of a step from a stage: the swizzle permutes bits, so chunks `2 k` further
        // differ in the bits of `2 k`.
        __device__ __forceinline__ void load(Fragments& to, int step, int stage, int k) const {
            const uint32_t from = stage * STAGE_BYTES;
            if constexpr (PACKED) {
                const uint32_t factors = multipliers + multipliers_of(step) + step % 2 * 8 + k * 4;
#pragma unroll
                for (int j = 0; j < TILES_N; j++)
                    Weight::unpack(to.weight[j], load_word(weight + from + k * HALF_BYTES + j * 8 * 16),
                                   load_word(factors + j * 8 * 16));
            } else {
#pragma unroll
                for (int j = 0; j < TILES_N; j += 2) {
                    uint32_t pair[4];
                    load_matrices(pair, ((weight + from) ^ (k << 5)) + j * 8 * STEP);
                    to.weight[j][0] = pair[0], to.weight[j][1] = pair[1];
                    to.weight[j + 1][0] = pair[2], to.weight[j + 1][1] = pair[3];
                }
            }
#pragma unroll
            for (int i = 0; i < TILES_M; i++) load_matrices(to.x[i], ((x + from) ^ (k << 5)) + i * 16 * STEP);
        }
    };

#ifdef ELEMENT_F16

    static __device__ __forceinline__ void multiply_tile(Sums& sums, const Tile& tile, int k, uint8_t* shared) {
        const Reader reader(shared_address(shared));
        uint4 next_x[X_CHUNKS], next_weight[WEIGHT_CHUNKS];
        uint4 next_multipliers = make_uint4(0, 0, 0, 0);
        const auto fetch = [&](int step) {
            const int from = step * STEP, of_weight = step * WEIGHT_STEP;
            const auto load = [](bool there, const uint8_t* at) {
                return there ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
            };
#pragma unroll
            for (int i = 0; i < X_CHUNKS; i++)
                next_x[i] = load(from + tile.chunk < k && i < tile.x_chunks, tile.x + i * tile.x_step + from);
#pragma unroll
            for (int i = 0; i < WEIGHT_CHUNKS; i++)
                next_weight[i] = load(tile.weight_in_row(from, k) && i < tile.weight_chunks,
                                      tile.weight + i * tile.weight_step + of_weight);
            if (PACKED && step % 2 == 0)
                next_multipliers = load(tile.multipliers != nullptr, tile.multipliers + step / 2 * 16);
        };
        const auto keep = [&](int step) {
            uint8_t* to = shared + step % STAGES * STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < X_CHUNKS; i++)
                *reinterpret_cast<uint4*>(to + own_place() + i * ROWS_AT_ONCE * STEP) = next_x[i];
#pragma unroll
            for (int i = 0; i < WEIGHT_CHUNKS; i++)
                *reinterpret_cast<uint4*>(to + own_weight_place() + i * WEIGHT_CHUNK_STEP) = next_weight[i];
            if (PACKED && step % 2 == 0)
                *reinterpret_cast<uint4*>(shared + multipliers_of(step) + threadIdx.x * 16) = next_multipliers;
        };
        const int steps = ceil_div(k, STEP);
        fetch(0);
        keep(0);
        __syncthreads();
        for (int step = 0; step < steps; step++) {
            if (step + 1 < steps) fetch(step + 1);
#pragma unroll
            for (int i = 0; i < KS; i++) {
                Fragments fragments;
                reader.load(fragments, step, step % STAGES, i);
                multiply(sums, fragments);
            }
            if (step + 1 < steps) keep(step + 1);
            __syncthreads();
        }
    }

#else

    static __device__ __forceinline__ void multiply_tile(Sums& sums, const Tile& tile, int k, uint8_t* shared) {
        const uint32_t base = shared_address(shared);
        const uint32_t own = base + own_place(), own_weight = base + own_weight_place();
        const Reader reader(base);
        const int steps = ceil_div(k, STEP);
        // Fetches a part of a step: weights in the last one, x in the one before, if there is one. The last one ends a
        // group, also after the last step, so that the number of groups is the number of steps.
        constexpr int PARTS = KS - 1, X_PART = PARTS > 1 ? PARTS - 2 : 0;
        const auto fetch = [&](int step, int stage, int part) {
            const bool is_step = step < steps;
            // A branch around the copies if integers are unpacked meanwhile; else a condition on each copy is faster.
            if (!PACKED || is_step) {
                const int from = step * STEP;
                if (part == X_PART) {
                    const bool in_row = is_step && from + tile.chunk < k;
#pragma unroll
                    for (int i = 0; i < X_CHUNKS; i++) {
                        const bool there = in_row && i < tile.x_chunks;
                        copy_16_if<true>(is_step, own + stage * STAGE_BYTES + i * ROWS_AT_ONCE * STEP,
                                         tile.x + (there ? i * tile.x_step + from : 0), there);
                    }
                }
                if (part == PARTS - 1) {
                    const bool in_row = is_step && tile.weight_in_row(from, k);
#pragma unroll
                    for (int i = 0; i < WEIGHT_CHUNKS; i++) {
                        const bool there = in_row && i < tile.weight_chunks;
                        copy_16_if<true>(is_step, own_weight + stage * STAGE_BYTES + i * WEIGHT_CHUNK_STEP,
                                         tile.weight + (there ? i * tile.weight_step + step * WEIGHT_STEP : 0), there);
                    }
                    if (PACKED) {
                        const bool there = tile.multipliers != nullptr;
                        copy_16_if<true>(is_step && step % 2 == 0, base + multipliers_of(step) + threadIdx.x * 16,
                                         there ? tile.multipliers + step / 2 * 16 : tile.x, there);
                    }
                }
            }
            if (part == PARTS - 1) asm volatile("cp.async.commit_group;" ::: "memory");
        };
        // Waits until all but the last STAGES - 2 groups of all threads have arrived.
        const auto arrived = [] {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
        };
#pragma unroll
        for (int step = 0; step < STAGES - 1; step++) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) fetch(step, step, part);
        }
        Fragments fragments[2] = {};
        int stage = 0;
        for (int step = 0; step < steps; step++) {
            arrived();
            reader.load(fragments[0], step, stage, 0);
            // The last fragments of the previous stage, multiplied while the loads run; zeros at first.
            multiply(sums, fragments[1]);
#pragma unroll
            for (int i = 0; i + 1 < KS; i++) {
                reader.load(fragments[(i + 1) % 2], step, stage, i + 1);
                // All warps have read the previous stage: they have synchronized since.
                fetch(step + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1, i);
                multiply(sums, fragments[i % 2]);
            }
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        multiply(sums, fragments[1]);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
    }

#endif

    // Returns a sum times its scales; rounded to nearest each time, and never fused with later operations.
    static __device__ __forceinline__ float scaled(Sum sum, float row_scale, float col_scale) {
        return __fmul_rn(Values::to_float(sum), __fmul_rn(row_scale, col_scale));
    }

    // Stores the sums of a warp. MLP: 8 columns of gate and 8 of up alternate.
    template <bool MLP>
    static __device__ __forceinline__ void store_tile(const Sums& sums, const Tile& tile, uint8_t* shared,
                                                      const float* x_scales, const float* weight_scales,
                                                      const element* bias, element* out, long long ld_out, int m,
                                                      int mlp) {
        constexpr int OUT_COLS = MLP ? WARP_COLS / 2 : WARP_COLS, CHUNKS = OUT_COLS / 8;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, pair = lane % 4 * 2;
        const int row = tile.row + warp % WARPS_M * WARP_ROWS, col = tile.col + warp / WARPS_M * OUT_COLS;
        uint8_t* own = shared + warp * WARP_ROWS * WARP_COLS * 2;
        // All loads before the first store, so that they overlap. Scales of gate and up, or of a column.
        float row_scales[TILES_M][2], scales[CHUNKS][2][2], biases[CHUNKS][2];
#pragma unroll
        for (int i = 0; i < TILES_M; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = row + i * 16 + half * 8 + quad;
                row_scales[i][half] = r < m ? x_scales[r] : 0.0f;
            }
        }
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int at = col + chunk * 8 + pair + c;
                const bool there = at < tile.cols_end;
                scales[chunk][0][c] = there ? weight_scales[at] : 0.0f;
                scales[chunk][1][c] = MLP && there ? weight_scales[at + mlp] : 0.0f;
                // Adding -0 to a number keeps it unchanged.
                biases[chunk][c] = !MLP && there && bias != nullptr ? from_plain(bias[at]) : -0.0f;
            }
        }
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
#pragma unroll
            for (int i = 0; i < TILES_M; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float values[2];
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const float scale = row_scales[i][half];
                        const float of_col = scales[chunk][0][c], of_up = scales[chunk][1][c];
                        if constexpr (MLP) {
                            const float gate = of_units(scaled(sums[i][2 * chunk][2 * half + c], scale, of_col));
                            const float up = of_units(scaled(sums[i][2 * chunk + 1][2 * half + c], scale, of_up));
                            values[c] = in_units(silu(gate) * up);
                        } else {
                            const float product = scaled(sums[i][chunk][2 * half + c], scale, of_col);
                            values[c] = __fadd_rn(product, biases[chunk][c]);
                        }
                    }
                    const int r = i * 16 + half * 8 + quad;
                    *reinterpret_cast<uint32_t*>(own + swizzled<CHUNKS>(r, chunk) + pair * 2) =
                        pack_pair(values[0], values[1]);
                }
            }
        }
        __syncwarp();
        const bool aligned = ld_out % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
#pragma unroll 4
        for (int i = lane; i < WARP_ROWS * CHUNKS; i += 32) {
            const int r = i / CHUNKS, chunk = i % CHUNKS, at = col + chunk * 8;
            if (row + r >= m || at >= tile.cols_end) continue;
            const element* from = reinterpret_cast<const element*>(own + swizzled<CHUNKS>(r, chunk));
            element* to = out + (row + r) * ld_out + at;
            if (aligned && at % 8 == 0 && at + 8 <= tile.cols_end) {
                *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
            } else {
                for (int c = 0; c < 8 && at + c < tile.cols_end; c++) to[c] = from[c];
            }
        }
    }

    static __device__ __forceinline__ void run(const uint8_t* x, long long ld_x, const float* x_scales,
                                               const uint8_t* weight, long long ld_weight, const float* weight_scales,
                                               const element* bias, element* out, long long ld_out, int m, int plain,
                                               int mlp, int k, int rows_of_tiles) {
        extern __shared__ __align__(128) uint8_t shared[];
        const Tile tile(x, ld_x, weight, ld_weight, m, plain, mlp, k, rows_of_tiles);
        Sums sums = {};
        multiply_tile(sums, tile, k, shared);
        if (tile.is_mlp) {
            store_tile<true>(sums, tile, shared, x_scales, weight_scales, bias, out, ld_out, m, mlp);
        } else {
            store_tile<false>(sums, tile, shared, x_scales, weight_scales, bias, out, ld_out, m, mlp);
        }
    }
};

}  // namespace quantized_linear

#define LINEAR_QUANTIZED(NAME, VALUES, COLS, STEP, STAGES)                                                            \
    extern "C" __global__ void __launch_bounds__(COLS, 256 / COLS)                                                    \
        NAME(const uint8_t* x, long long ld_x, const float* x_scales, const uint8_t* weight, long long ld_weight,     \
             const float* weight_scales, const element* bias, element* out, long long ld_out, int m, int plain,       \
             int mlp, int k, int rows_of_tiles) {                                                                     \
        quantized_linear::Product<VALUES, COLS, STEP, STAGES>::run(x, ld_x, x_scales, weight, ld_weight,              \
                                                                   weight_scales, bias, out, ld_out, m, plain, mlp,   \
                                                                   k, rows_of_tiles);                                 \
    }
