// dequantize: out = a quantized weight, rounded once to bf16
//
//   from  the weight's bytes in its file's layout, blocks of a row in order; 16-byte aligned
//   out   [values] bf16, dense: rows are contiguous, as their blocks are
//
// Each value is bit-identical to `dequantize_rows` of src/files/dequantize.rs: it is computed in float32 in the same
// order without fused multiply-adds, or from sums of integers, which are exact.
//
// Mapping   A block computes TILE values. For formats with scales in their blocks, which have odd sizes, 16 bytes at a
//           time go through shared memory, so that every byte is fetched once; a thread then decodes all values of 8
//           bytes of codes, and each warp computes the scales of its own. For formats with separate scales, a thread
//           reads 8 values from global memory. Each thread stores 16 bytes at a time. Warps rotate columns on the
//           tensor cores.
// Needs     values % 8 == 0, and whole blocks
// Bytes     values * (bytes of a block / values of a block + 2).   27648 x 3072 in Q8_0: 260 MB
// Bound     HBM. 260 MB at 4.8 TB/s (H200) = 54 us
// Measured  27648 x 3072, of a copy's 4086 GB/s: Q8_0, Q5_0, Q5_1, Q6_K, IQ4_NL 95%, Q4_0, Q4_1, Q3_K, Q5_K 94, Q2_K,
//           Q4_K, IQ4_XS 93, fp8 95, int8 96, rotated 95 (groups of 1024: 65), nvfp4 86, mxfp8 90 to 93, codebooks 86.
//           H200, driver 580.159, CUDA 13.0; the bandwidth test in tests/parity/dequantize.rs
#include "dequantize_formats.cuh"
#include "dequantize_rotated.cuh"

namespace dequantize {

// Decodes blocks that contain their scales.
template <class Format>
__device__ __forceinline__ void blocks(const uint8_t* from, element* out, int values) {
    constexpr int TILE_BYTES = TILE / Format::VALUES * Format::BYTES, UNITS = Format::VALUES / Format::SPAN;
    constexpr int SLOTS = Format::SLOTS, SLOTS_OF_WARP = 32 * SLOTS / UNITS;
    static_assert(TILE_BYTES % 16 == 0, "tiles begin at a multiple of 16 bytes");
    static_assert(TILE % (THREADS * Format::SPAN) == 0, "threads take the same number of units");
    // Eight bytes that begin within a word are read with all of the last word.
    __shared__ __align__(16) uint32_t tile[TILE_BYTES / 4 + 1];
    __shared__ typename Format::Scale scales[SLOTS > 0 ? TILE / Format::VALUES * SLOTS : 1];
    const int first = blockIdx.x * TILE;
    const int here = min(TILE, values - first), bytes = here / Format::VALUES * Format::BYTES;
    from += (long long)blockIdx.x * TILE_BYTES;
    out += first;
#pragma unroll
    for (int step = 0; step < ceil_div(TILE_BYTES, THREADS * 16); step++) {
        const int i = (step * THREADS + threadIdx.x) * 16;
        if (i + 16 <= bytes)
            *reinterpret_cast<uint4*>(tile + i / 4) = __ldg(reinterpret_cast<const uint4*>(from + i));
    }
    if (threadIdx.x < bytes % 16) {
        const int i = bytes / 16 * 16 + threadIdx.x;
        reinterpret_cast<uint8_t*>(tile)[i] = from[i];
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < TILE / (THREADS * Format::SPAN); step++) {
        const int i = step * THREADS + threadIdx.x, index = i / UNITS;
        if constexpr (SLOTS > 0) {
            // The scales of the warp's own units: it waits for no other warp.
#pragma unroll
            for (int j = 0; j < SLOTS_OF_WARP; j += 32) {
                const int slot = i / 32 * SLOTS_OF_WARP + j + i % 32;
                if (SLOTS_OF_WARP % 32 == 0 || i % 32 < SLOTS_OF_WARP)
                    scales[slot] = Format::scale({tile, slot / SLOTS * Format::BYTES}, slot % SLOTS);
            }
            __syncwarp();
        }
        if (i >= here / Format::SPAN) continue;
        const auto put = [&](int place, auto value) {
            float decoded[CHUNK];
#pragma unroll
            for (int j = 0; j < CHUNK; j++) decoded[j] = value(j);
            store_plain(out + index * Format::VALUES + place, decoded);
        };
        Format::decode({tile, index * Format::BYTES}, i % UNITS, scales + index * SLOTS, put);
    }
}

// Computes eight values of a tile at a time: body(place of the first, values). A whole tile has no conditions in
// between, so that all loads precede the first store.
template <class Body>
__device__ __forceinline__ void chunks(element* out, int values, Body body) {
    const int first = blockIdx.x * TILE + threadIdx.x * CHUNK, end = min(values - int(blockIdx.x) * TILE, TILE);
    const auto chunk = [&](int i) {
        float decoded[CHUNK];
        body(uint32_t(first + i), decoded);
        store_plain(out + first + i, decoded);
    };
    if (end == TILE) {
#pragma unroll
        for (int i = 0; i < TILE; i += THREADS * CHUNK) chunk(i);
    } else {
        for (int i = 0; i + int(threadIdx.x) * CHUNK < end; i += THREADS * CHUNK) chunk(i);
    }
}

__device__ __forceinline__ uint32_t byte_of(uint2 eight, int i) {
    return (i < 4 ? eight.x : eight.y) >> (i % 4 * 8) & 0xff;
}

__device__ __forceinline__ float signed_byte(uint32_t byte) { return float(int8_t(byte)); }

__device__ __forceinline__ float e4m3(uint32_t bits) {
    if ((bits & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);
    // The bits of a float with an exponent that is too small by 120; the factor is exact, also for subnormal values.
    return mul(__uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20), 0x1p120f);
}

// The bits are the upper half of a float16.
__device__ __forceinline__ float e5m2(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits << 8))); }

// Values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign.
__device__ __forceinline__ float e2m1(uint32_t code) {
    // As in e4m3, with a bias of 1 instead of 127.
    return mul(__uint_as_float((code & 8) << 28 | (code & 7) << 22), 0x1p126f);
}

// 2^(bits - 127), and 0 for 0.
__device__ __forceinline__ float e8m0(uint32_t bits) { return __uint_as_float(bits << 23); }

// Decodes one byte per value, times the scale of its row, and then times `after`.
template <class Decode>
__device__ __forceinline__ void rows(const uint8_t* from, element* out, int values, int cols, const float* scales,
                                     float after, Decode decode) {
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const float scale = __ldg(scales + i / uint32_t(cols));
        const uint2 raw = load_8(from + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(mul(decode(byte_of(raw, j)), scale), after);
    });
}

// Returns the index of the scale of a block of a row: [rows, blocks], or tiles of 128 rows and 4 blocks, in which rows
// that are 32 apart are adjacent.
__device__ __forceinline__ uint32_t scale_at(uint32_t row, uint32_t block, uint32_t blocks, int swizzled) {
    if (!swizzled) return row * blocks + block;
    const uint32_t tile = row / 128 * ((blocks + 3) / 4) + block / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

}  // namespace dequantize

#define BLOCKS(name, Format)                                                                                          \
    extern "C" __global__ void __launch_bounds__(dequantize::THREADS)                                                 \
        dequantize_##name(const uint8_t* from, element* out, int values) {                                            \
        dequantize::blocks<dequantize::Format>(from, out, values);                                                    \
    }

BLOCKS(q8_0, Q8_0)
BLOCKS(q4_0, Q4_0)
BLOCKS(q4_1, Q4_1)
BLOCKS(q5_0, Q5_0)
BLOCKS(q5_1, Q5_1)
BLOCKS(q2_k, Q2K)
BLOCKS(q3_k, Q3K)
BLOCKS(q4_k, Q4K)
BLOCKS(q5_k, Q5K)
BLOCKS(q6_k, Q6K)
BLOCKS(iq4_nl, Iq4Nl)
BLOCKS(iq4_xs, Iq4Xs)

// One byte per value; scales [rows], and a common factor.
#define ROWS(name, value)                                                                                             \
    extern "C" __global__ void __launch_bounds__(dequantize::THREADS)                                                 \
        dequantize_##name(const uint8_t* from, element* out, int values, int cols, const float* scales, float after) {\
        const auto decode = [](uint32_t bits) { return dequantize::value(bits); };                                    \
        dequantize::rows(from, out, values, cols, scales, after, decode);                                             \
    }

ROWS(e4m3, e4m3)
ROWS(e5m2, e5m2)
ROWS(int8, signed_byte)

// Groups of columns, powers of 4, that were rotated; wide ones have more than 256 columns.
#define ROTATED(name, wide)                                                                                           \
    extern "C" __global__ void __launch_bounds__(dequantize::THREADS)                                                 \
        dequantize_##name(const uint8_t* from, element* out, int values, int cols, const float* scales, int group,    \
                          float root) {                                                                               \
        dequantize::rotated<wide>(from, out, values, cols, scales, group, root);                                      \
    }

ROTATED(int8_rotated, false)
ROTATED(int8_rotated_wide, true)

// Blocks of 16 codes of e2m1, two per byte, the first in the high half or the low one; scales of e4m3, times `tensor`.
extern "C" __global__ void __launch_bounds__(dequantize::THREADS)
    dequantize_nvfp4(const uint8_t* from, element* out, int values, int cols, const uint8_t* scales, int first_row,
                     int swizzled, float tensor, int high_first) {
    using namespace dequantize;
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const uint32_t row = i / uint32_t(cols), block = (i - row * cols) / 16;
        const float scale = mul(e4m3(__ldg(scales + scale_at(first_row + row, block, cols / 16, swizzled))), tensor);
        uint32_t raw = __ldg(reinterpret_cast<const uint32_t*>(from + i / 2));
        if (high_first) raw = (raw & 0x0f0f0f0f) << 4 | raw >> 4 & 0x0f0f0f0f;
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(e2m1(raw >> 4 * j & 15), scale);
    });
}

// Blocks of 32 values of e4m3; scales are powers of two.
extern "C" __global__ void __launch_bounds__(dequantize::THREADS)
    dequantize_mxfp8(const uint8_t* from, element* out, int values, int cols, const uint8_t* scales, int first_row,
                     int swizzled) {
    using namespace dequantize;
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const uint32_t row = i / uint32_t(cols), block = (i - row * cols) / 32;
        const float scale = e8m0(__ldg(scales + scale_at(first_row + row, block, cols / 32, swizzled)));
        const uint2 raw = load_8(from + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(e4m3(byte_of(raw, j)), scale);
    });
}

// Codes of 4 bits, the first in the high half of a byte: table[code] times the largest magnitude of the block of the
// flattened tensor, with the first value at `first_value`.
extern "C" __global__ void __launch_bounds__(dequantize::THREADS)
    dequantize_codebook4(const uint8_t* from, element* out, int values, const float* table, const float* maxima,
                         int of_block, int first_value) {
    using namespace dequantize;
    __shared__ float shared_table[16];
    if (threadIdx.x < 16) shared_table[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    const auto decode = [&](uint32_t raw, int j, float maximum) {
        return mul(shared_table[raw >> (j / 2 * 8 + (j % 2 == 0 ? 4 : 0)) & 15], maximum);
    };
    const auto load_codes = [&](uint32_t i) { return __ldg(reinterpret_cast<const uint32_t*>(from + i / 2)); };
    const auto maximum_of = [&](uint32_t i) { return __ldg(maxima + (first_value + i) / uint32_t(of_block)); };
    if (of_block % CHUNK == 0 && first_value % CHUNK == 0) {
        chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
            const uint32_t raw = load_codes(i);
            const float maximum = maximum_of(i);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) decoded[j] = decode(raw, j, maximum);
        });
    } else {
        chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
            const uint32_t raw = load_codes(i);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) decoded[j] = decode(raw, j, maximum_of(i + j));
        });
    }
}
