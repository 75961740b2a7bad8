// dequantise: out = a weight in few bits, rounded once to bf16
//
//   from  the weight's bytes as they lie in its file, blocks of a row one after the other; 16-byte aligned
//   out   [values] bf16, dense: rows follow each other, as their blocks do
//
// Each value is that of `dequantise_rows` of src/files/dequantise.rs to the last bit: it is computed in float32 in the
// order written there, which no fused multiply-add changes, or from sums of integers, which are exact.
//
// Mapping   A block takes TILE values. Where their blocks hold their own scales, which are of odd sizes, 16 bytes at a
//           time go through shared memory, so that every byte is fetched once; a thread then decodes all values of 8
//           bytes of codes, and each warp computes the scales of its own. Where the scales are beside the values, a
//           thread takes 8 values from global memory. Each thread stores 16 bytes at a time. Warps rotate columns on
//           the tensor cores.
// Needs     values % 8 == 0, and whole blocks
// Bytes     values * (bytes of a block / values of a block + 2).   27648 x 3072 in Q8_0: 260 MB
// Bound     HBM. 260 MB at 4.8 TB/s (H200) = 54 us
// Measured  27648 x 3072, of a copy's 4086 GB/s: Q8_0, Q5_0, Q5_1, Q6_K, IQ4_NL 95%, Q4_0, Q4_1, Q3_K, Q5_K 94, Q2_K,
//           Q4_K, IQ4_XS 93, fp8 95, int8 96, rotated 95 (groups of 1024: 65), nvfp4 86, mxfp8 90 to 93, codebooks 86.
//           H200, driver 580.159, CUDA 13.0; the test of its bandwidth in tests/parity/dequantise.rs
// Tried     one half or quarter of the bytes of codes at a time, scales between two barriers of the block, loads in a
//           loop: Q4_K 84%, Q5_K 79, Q6_K 75, IQ4_XS 81. Scales of a part computed by each thread for its 8 values, and
//           codes one by one: Q4_K 76, Q5_K 65, Q6_K 69, nvfp4 71 to 77 with 64-bit indices, codebooks 43. Asynchronous
//           copies to shared memory: up to 7 less. Tiles of 4096: the same; of 16384: 1 to 3 less. Streaming stores: up
//           to 10 less. e2m1 through pairs of float16: the same. Rotation by additions along each digit in shared
//           memory: 22 to 28
#include "dequantise_formats.cuh"
#include "dequantise_rotated.cuh"

namespace dequantise {

// Blocks that hold their scales.
template <class Format>
__device__ __forceinline__ void blocks(const uint8_t* from, element* out, int values) {
    constexpr int TILE_BYTES = TILE / Format::VALUES * Format::BYTES, UNITS = Format::VALUES / Format::SPAN;
    constexpr int SLOTS = Format::SLOTS, SLOTS_OF_WARP = 32 * SLOTS / UNITS;
    static_assert(TILE_BYTES % 16 == 0, "tiles begin at a multiple of 16 bytes");
    static_assert(TILE % (THREADS * Format::SPAN) == 0, "threads take the same number of units");
    // Eight bytes that begin within a word are read with all of the last one.
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
            // Those of the warp's own units: it waits for no other.
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

// Eight values of a tile at a time: body(place of the first, values). In a whole tile nothing is asked between them, so
// that all are loaded before the first is stored.
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
    // The bits of a float whose exponent is too small by 120; the factor is exact, and so are subnormal values.
    return mul(__uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20), 0x1p120f);
}

// It is the upper half of a float16.
__device__ __forceinline__ float e5m2(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits << 8))); }

// Values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign.
__device__ __forceinline__ float e2m1(uint32_t code) {
    // As in e4m3, with a bias of 1 instead of 127.
    return mul(__uint_as_float((code & 8) << 28 | (code & 7) << 22), 0x1p126f);
}

// 2^(bits - 127), and 0 for 0.
__device__ __forceinline__ float e8m0(uint32_t bits) { return __uint_as_float(bits << 23); }

// One byte a value, times the scale of its row, and then times `after`.
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

// Where the scale of a block of a row is: [rows, blocks], or tiles of 128 rows and 4 blocks, in which rows that are 32
// apart follow each other.
__device__ __forceinline__ uint32_t scale_at(uint32_t row, uint32_t block, uint32_t blocks, int swizzled) {
    if (!swizzled) return row * blocks + block;
    const uint32_t tile = row / 128 * ((blocks + 3) / 4) + block / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

}  // namespace dequantise

#define BLOCKS(name, Format)                                                                                          \
    extern "C" __global__ void __launch_bounds__(dequantise::THREADS)                                                 \
        dequantise_##name(const uint8_t* from, element* out, int values) {                                            \
        dequantise::blocks<dequantise::Format>(from, out, values);                                                    \
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

// One byte a value; scales [rows], and what comes after them for all.
#define ROWS(name, value)                                                                                             \
    extern "C" __global__ void __launch_bounds__(dequantise::THREADS)                                                 \
        dequantise_##name(const uint8_t* from, element* out, int values, int cols, const float* scales, float after) {\
        const auto decode = [](uint32_t bits) { return dequantise::value(bits); };                                    \
        dequantise::rows(from, out, values, cols, scales, after, decode);                                             \
    }

ROWS(e4m3, e4m3)
ROWS(e5m2, e5m2)
ROWS(int8, signed_byte)

// Groups of columns, powers of 4, that were rotated; wide ones have more than 256 columns.
#define ROTATED(name, wide)                                                                                           \
    extern "C" __global__ void __launch_bounds__(dequantise::THREADS)                                                 \
        dequantise_##name(const uint8_t* from, element* out, int values, int cols, const float* scales, int group,    \
                          float root) {                                                                               \
        dequantise::rotated<wide>(from, out, values, cols, scales, group, root);                                      \
    }

ROTATED(int8_rotated, false)
ROTATED(int8_rotated_wide, true)

// Blocks of 16 codes of e2m1, two a byte, the first in the high half or the low one; scales of e4m3, times `tensor`.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_nvfp4(const uint8_t* from, element* out, int values, int cols, const uint8_t* scales, int first_row,
                     int swizzled, float tensor, int high_first) {
    using namespace dequantise;
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
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_mxfp8(const uint8_t* from, element* out, int values, int cols, const uint8_t* scales, int first_row,
                     int swizzled) {
    using namespace dequantise;
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const uint32_t row = i / uint32_t(cols), block = (i - row * cols) / 32;
        const float scale = e8m0(__ldg(scales + scale_at(first_row + row, block, cols / 32, swizzled)));
        const uint2 raw = load_8(from + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(e4m3(byte_of(raw, j)), scale);
    });
}

// Codes of 4 bits, the first in the high half of a byte: table[code] times the largest magnitude of the block of the
// flattened tensor, in which the first value is at `first_value`.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_codebook4(const uint8_t* from, element* out, int values, const float* table, const float* maxima,
                         int of_block, int first_value) {
    using namespace dequantise;
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
