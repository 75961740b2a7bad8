// dequantise: out = a weight in few bits, rounded once to bf16
//
//   from  the weight's bytes as they lie in its file, blocks of a row one after the other; 16-byte aligned
//   out   [values] bf16, dense: rows follow each other, as their blocks do
//
// Each value is that of `dequantise_rows` of src/files/dequantise.rs to the last bit: it is computed in float32 in the
// order written there, which no fused multiply-add changes.
//
// Mapping   A block takes TILE values. Where their blocks hold their own scales, which are of odd sizes, 16 bytes at a
//           time go through shared memory, so that every byte is fetched once. Where the scales are beside the values, a
//           thread takes 8 values from global memory. Each thread stores 16 bytes at a time.
// Needs     values % 8 == 0, and whole blocks
// Bytes     values * (bytes of a block / values of a block + 2).   27648 x 3072 in Q8_0: 260 MB
// Bound     HBM. 260 MB at 4.8 TB/s (H200) = 54 us
// Measured  27648 x 3072, of a copy's 4047 GB/s: Q8_0 94%, Q4_0 86, Q4_1 83, Q5_0 81, Q5_1 80, Q2_K 91, Q3_K 85, Q4_K
//           84, Q5_K 79, Q6_K 75, IQ4_NL 79, IQ4_XS 81, fp8 and int8 94, nvfp4 85, mxfp8 91, codebooks 87, rotated int8
//           22 to 28. H200, driver 580.159, CUDA 13.0, c79ab44; the test of its bandwidth in tests/parity/dequantise.rs
// Tried     scales of a part computed by each thread for its 8 values, and codes one by one: Q4_K 76%, Q5_K 65, Q6_K 69,
//           nvfp4 71 to 77 with 64-bit indices, codebooks 43
#include <cuda_fp16.h>

#include "common.cuh"

namespace dequantise {

typedef const uint8_t* Bytes;

constexpr int THREADS = 256, TILE = 8192, CHUNK = 8;

// Products and sums that are rounded one by one.
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }

__device__ __forceinline__ float signed_byte(uint32_t byte) { return float(int8_t(byte)); }

__device__ __forceinline__ float half_at(Bytes at) {
    return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(at)));
}

// Eight bytes, of which four are worked on at a time.
struct Eight {
    uint32_t words[2];

    // From an address that is a multiple of ALIGN.
    template <int ALIGN>
    __device__ __forceinline__ static Eight at(Bytes from) {
        if constexpr (ALIGN >= 8) {
            const uint2 both = *reinterpret_cast<const uint2*>(from);
            return {{both.x, both.y}};
        } else if constexpr (ALIGN == 4) {
            const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
            return {{words[0], words[1]}};
        } else {
            const uint16_t* pairs = reinterpret_cast<const uint16_t*>(from);
            return {{pairs[0] | uint32_t(pairs[1]) << 16, pairs[2] | uint32_t(pairs[3]) << 16}};
        }
    }

    // The lowest bits of each byte shifted right.
    __device__ __forceinline__ Eight bits(int shift, uint32_t mask) const {
        return {{words[0] >> shift & mask * 0x01010101, words[1] >> shift & mask * 0x01010101}};
    }

    // Other bits above those.
    __device__ __forceinline__ Eight with(Eight high, int shift) const {
        return {{words[0] | high.words[0] << shift, words[1] | high.words[1] << shift}};
    }

    // Byte i as a number, less a constant. A byte behind the bits of 2^23 is 2^23 and that byte.
    template <int LESS>
    __device__ __forceinline__ float number(int i) const {
        return sub(__uint_as_float(__byte_perm(words[i / 4], 0x4b000000, 0x7540 | i % 4)), 8388608.0f + LESS);
    }

    // The same of signed bytes.
    __device__ __forceinline__ float signed_number(int i) const {
        return Eight{{words[0] ^ 0x80808080, words[1] ^ 0x80808080}}.number<128>(i);
    }
};

// The formats: VALUES of a block in BYTES, of which PART have the same scales, which are floats that the rest is
// computed with; and eight values, `first` (a multiple of 8) and those behind it. What is read of a block begins at
// multiples of ALIGN.
struct Q8_0 {
    static constexpr int VALUES = 32, BYTES = 34, PART = 32, ALIGN = 2;
    __device__ __forceinline__ static float2 scales(Bytes block, int) { return {half_at(block), 0.0f}; }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight q = Eight::at<ALIGN>(block + 2 + first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, q.signed_number(i));
    }
};

// Codes of 4 bits: values 0 to 15 in the low halves of 16 bytes, 16 to 31 in the high ones.
template <int ALIGN>
__device__ __forceinline__ Eight nibbles(Bytes at, int first) {
    return Eight::at<ALIGN>(at + first % 16).bits(first / 16 * 4, 15);
}

// The same, with their fifth bits in four bytes before them.
template <int ALIGN>
__device__ __forceinline__ Eight five_bits(Bytes at, int first) {
    // Of bits 0 to 3 each in a byte of its own.
    const auto spread = [](uint32_t bits) { return (bits & 15) * 0x00204081 & 0x01010101; };
    const uint32_t high = at[first / 8];
    return nibbles<ALIGN>(at + 4, first).with({{spread(high), spread(high >> 4)}}, 4);
}

struct Q4_0 {
    static constexpr int VALUES = 32, BYTES = 18, PART = 32, ALIGN = 2;
    __device__ __forceinline__ static float2 scales(Bytes block, int) { return {half_at(block), 0.0f}; }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight codes = nibbles<ALIGN>(block + 2, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, codes.number<8>(i));
    }
};

struct Q4_1 {
    static constexpr int VALUES = 32, BYTES = 20, PART = 32, ALIGN = 4;
    __device__ __forceinline__ static float2 scales(Bytes block, int) { return {half_at(block), half_at(block + 2)}; }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight codes = nibbles<ALIGN>(block + 4, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = add(mul(s.x, codes.number<0>(i)), s.y);
    }
};

struct Q5_0 {
    static constexpr int VALUES = 32, BYTES = 22, PART = 32, ALIGN = 2;
    __device__ __forceinline__ static float2 scales(Bytes block, int) { return {half_at(block), 0.0f}; }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight codes = five_bits<ALIGN>(block + 2, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, codes.number<16>(i));
    }
};

struct Q5_1 {
    static constexpr int VALUES = 32, BYTES = 24, PART = 32, ALIGN = 8;
    __device__ __forceinline__ static float2 scales(Bytes block, int) { return {half_at(block), half_at(block + 2)}; }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight codes = five_bits<ALIGN>(block + 4, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = add(mul(s.x, codes.number<0>(i)), s.y);
    }
};

// Codes of IQ4 as the signed bytes that they stand for. Two tables of eight bytes are looked up, and one is taken.
__device__ __forceinline__ Eight iq4(Eight codes) {
    const auto look_up = [](uint32_t word) {
        const uint32_t low = word & 0x07070707, pairs = (low | low >> 4) & 0x00ff00ff, places = pairs | pairs >> 8;
        const uint32_t upper = (word >> 3 & 0x01010101) * 0xff;
        return (__byte_perm(0xbfad9881, 0xf6eaddcf, places) & ~upper) |
               (__byte_perm(0x26190d01, 0x71594535, places) & upper);
    };
    return {{look_up(codes.words[0]), look_up(codes.words[1])}};
}

struct Iq4Nl {
    static constexpr int VALUES = 32, BYTES = 18, PART = 32, ALIGN = 2;
    __device__ __forceinline__ static float2 scales(Bytes block, int) { return {half_at(block), 0.0f}; }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight values = iq4(nibbles<ALIGN>(block + 2, first));
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, values.signed_number(i));
    }
};

struct Iq4Xs {
    static constexpr int VALUES = 256, BYTES = 136, PART = 32, ALIGN = 8;
    __device__ __forceinline__ static float2 scales(Bytes block, int part) {
        const uint32_t low = block[4 + part / 2] >> (part % 2 * 4) & 15,
                       high = *reinterpret_cast<const uint16_t*>(block + 2) >> (2 * part) & 3;
        return {mul(half_at(block), float(int(low | high << 4) - 32)), 0.0f};
    }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight values = iq4(nibbles<ALIGN>(block + 8 + first / 32 * 16, first % 32));
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, values.signed_number(i));
    }
};

// Codes of 2 bits: a byte holds values that are 32 apart.
template <int ALIGN>
__device__ __forceinline__ Eight two_bits(Bytes at, int first) {
    return Eight::at<ALIGN>(at + first / 128 * 32 + first % 32).bits(first / 32 % 4 * 2, 3);
}

struct Q2K {
    static constexpr int VALUES = 256, BYTES = 84, PART = 16, ALIGN = 4;
    __device__ __forceinline__ static float2 scales(Bytes block, int part) {
        const uint32_t packed = block[part];
        return {mul(half_at(block + 80), float(packed & 15)), mul(half_at(block + 82), float(packed >> 4))};
    }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight codes = two_bits<ALIGN>(block + 16, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = sub(mul(s.x, codes.number<0>(i)), s.y);
    }
};

struct Q3K {
    static constexpr int VALUES = 256, BYTES = 110, PART = 16, ALIGN = 2;
    __device__ __forceinline__ static float2 scales(Bytes block, int part) {
        const Bytes packed = block + 96;
        const uint32_t low = packed[part % 8] >> (part / 8 * 4) & 15,
                       high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
        return {mul(half_at(block + 108), float(int(low | high << 4) - 32)), 0.0f};
    }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight third = Eight::at<ALIGN>(block + first % 32).bits(first / 32, 1);
        const Eight codes = two_bits<ALIGN>(block + 32, first).with(third, 2);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, codes.number<4>(i));
    }
};

// `d s` and `dmin m` of a part of 32 values of Q4_K and Q5_K.
__device__ __forceinline__ float2 scale_and_least(Bytes block, int part) {
    const Bytes packed = block + 4;
    uint32_t s, m;
    if (part < 4) {
        s = packed[part] & 63, m = packed[part + 4] & 63;
    } else {
        s = (packed[part + 4] & 15) | packed[part - 4] >> 6 << 4, m = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
    }
    return {mul(half_at(block), float(s)), mul(half_at(block + 2), float(m))};
}

struct Q4K {
    static constexpr int VALUES = 256, BYTES = 144, PART = 32, ALIGN = 8;
    __device__ __forceinline__ static float2 scales(Bytes block, int part) { return scale_and_least(block, part); }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight codes = Eight::at<ALIGN>(block + 16 + first / 64 * 32 + first % 32).bits(first / 32 % 2 * 4, 15);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = sub(mul(s.x, codes.number<0>(i)), s.y);
    }
};

struct Q5K {
    static constexpr int VALUES = 256, BYTES = 176, PART = 32, ALIGN = 8;
    __device__ __forceinline__ static float2 scales(Bytes block, int part) { return scale_and_least(block, part); }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const Eight fifth = Eight::at<ALIGN>(block + 16 + first % 32).bits(first / 32, 1);
        const Eight low = Eight::at<ALIGN>(block + 48 + first / 64 * 32 + first % 32).bits(first / 32 % 2 * 4, 15);
        const Eight codes = low.with(fifth, 4);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = sub(mul(s.x, codes.number<0>(i)), s.y);
    }
};

struct Q6K {
    static constexpr int VALUES = 256, BYTES = 210, PART = 16, ALIGN = 2;
    __device__ __forceinline__ static float2 scales(Bytes block, int part) {
        return {mul(half_at(block + 208), float(int8_t(block[192 + part]))), 0.0f};
    }
    __device__ __forceinline__ static void decode(Bytes block, int first, float2 s, float (&out)[CHUNK]) {
        const int half = first / 128, quarter = first / 32 % 4, place = first % 32;
        const Eight high = Eight::at<ALIGN>(block + 128 + 32 * half + place).bits(quarter * 2, 3);
        const Eight low = Eight::at<ALIGN>(block + 64 * half + quarter % 2 * 32 + place).bits(quarter / 2 * 4, 15);
        const Eight codes = low.with(high, 4);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(s.x, codes.number<32>(i));
    }
};

// Blocks that hold their scales.
template <class Format>
__device__ __forceinline__ void blocks(const uint8_t* from, bf16* out, int values) {
    constexpr int TILE_BYTES = TILE / Format::VALUES * Format::BYTES, PARTS = Format::VALUES / Format::PART;
    static_assert(TILE_BYTES % 16 == 0, "tiles begin at a multiple of 16 bytes");
    __shared__ __align__(16) uint8_t tile[TILE_BYTES];
    __shared__ float2 scales[TILE / Format::PART];
    const int first = blockIdx.x * TILE;
    const int here = min(TILE, values - first), bytes = here / Format::VALUES * Format::BYTES;
    from += (long long)blockIdx.x * TILE_BYTES;
    out += first;
    for (int i = threadIdx.x * 16; i + 16 <= bytes; i += THREADS * 16)
        *reinterpret_cast<uint4*>(tile + i) = __ldg(reinterpret_cast<const uint4*>(from + i));
    for (int i = bytes / 16 * 16 + threadIdx.x; i < bytes; i += THREADS) tile[i] = from[i];
    __syncthreads();
    for (int i = threadIdx.x; i < here / Format::PART; i += THREADS)
        scales[i] = Format::scales(tile + i / PARTS * Format::BYTES, i % PARTS);
    __syncthreads();
    const auto chunk = [&](int i) {
        float decoded[CHUNK];
        Format::decode(tile + i / Format::VALUES * Format::BYTES, i % Format::VALUES, scales[i / Format::PART], decoded);
        store<CHUNK>(out + i, decoded);
    };
    if (here == TILE) {
#pragma unroll
        for (int i = 0; i < TILE; i += THREADS * CHUNK) chunk(i + threadIdx.x * CHUNK);
    } else {
        for (int i = threadIdx.x * CHUNK; i < here; i += THREADS * CHUNK) chunk(i);
    }
}

// Eight values of a tile at a time: body(place of the first, values).
template <class Body>
__device__ __forceinline__ void chunks(bf16* out, int values, Body body) {
    const int first = blockIdx.x * TILE + threadIdx.x * CHUNK, end = min(values - first, TILE);
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS * CHUNK) {
        if (i >= end) break;
        float decoded[CHUNK];
        body(uint32_t(first + i), decoded);
        store<CHUNK>(out + first + i, decoded);
    }
}

__device__ __forceinline__ uint2 load_8(const uint8_t* from) { return __ldg(reinterpret_cast<const uint2*>(from)); }

__device__ __forceinline__ uint32_t byte_of(uint2 eight, int i) { return (i < 4 ? eight.x : eight.y) >> (i % 4 * 8) & 0xff; }

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
__device__ __forceinline__ void rows(const uint8_t* from, bf16* out, int values, int cols, const float* scales,
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

#define BLOCKS(name, Format)                                                                          \
    extern "C" __global__ void __launch_bounds__(dequantise::THREADS)                                 \
        dequantise_##name(const uint8_t* from, bf16* out, int values) {                         \
        dequantise::blocks<dequantise::Format>(from, out, values);                                    \
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
        dequantise_##name(const uint8_t* from, bf16* out, int values, int cols, const float* scales,            \
                          float after) {                                                                              \
        dequantise::rows(from, out, values, cols, scales, after, [](uint32_t bits) { return dequantise::value(bits); }); \
    }

ROWS(e4m3, e4m3)
ROWS(e5m2, e5m2)
ROWS(int8, signed_byte)

// As int8, and then each `group` columns, a power of 4, times the Kronecker power of [[1, 1, 1, -1], [1, 1, -1, 1],
// [1, -1, 1, 1], [-1, 1, 1, 1]] by `root`: by the matrix along each digit to base 4 of the columns' numbers.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_int8_rotated(const uint8_t* from, bf16* out, int values, int cols, const float* scales, int group,
                            float root) {
    using namespace dequantise;
    __shared__ __align__(16) float tile[TILE];
    const int first = blockIdx.x * TILE, here = min(TILE, values - first);
    for (int i = threadIdx.x * CHUNK; i < here; i += THREADS * CHUNK) {
        const float scale = __ldg(scales + (first + i) / cols);
        const uint2 raw = load_8(from + first + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) tile[i + j] = mul(signed_byte(byte_of(raw, j)), scale);
    }
    for (int stride = 1; stride < group; stride *= 4) {
        __syncthreads();
        for (int i = threadIdx.x; i < here / 4; i += THREADS) {
            float* at = tile + i / stride * 4 * stride + i % stride;
            const float a = at[0], b = at[stride], c = at[2 * stride], d = at[3 * stride];
            at[0] = sub(add(add(a, b), c), d);
            at[stride] = add(sub(add(a, b), c), d);
            at[2 * stride] = add(add(sub(a, b), c), d);
            at[3 * stride] = sub(add(add(b, c), d), a);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x * CHUNK; i < here; i += THREADS * CHUNK) {
        float rotated[CHUNK];
#pragma unroll
        for (int j = 0; j < CHUNK; j++) rotated[j] = mul(tile[i + j], root);
        store<CHUNK>(out + first + i, rotated);
    }
}

// Blocks of 16 codes of e2m1, two a byte, the first in the high half or the low one; scales of e4m3, times `tensor`.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_nvfp4(const uint8_t* from, bf16* out, int values, int cols, const uint8_t* scales, int first_row,
                     int swizzled, float tensor, int high_first) {
    using namespace dequantise;
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const uint32_t row = i / uint32_t(cols), block = (i - row * cols) / 16;
        const float scale = mul(e4m3(scales[scale_at(first_row + row, block, cols / 16, swizzled)]), tensor);
        const uint32_t raw = __ldg(reinterpret_cast<const uint32_t*>(from + i / 2));
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const int half = j % 2 == high_first ? 0 : 4;
            decoded[j] = mul(e2m1(raw >> (j / 2 * 8 + half) & 15), scale);
        }
    });
}

// Blocks of 32 values of e4m3; scales are powers of two.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_mxfp8(const uint8_t* from, bf16* out, int values, int cols, const uint8_t* scales, int first_row,
                     int swizzled) {
    using namespace dequantise;
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const uint32_t row = i / uint32_t(cols), block = (i - row * cols) / 32;
        const float scale = e8m0(scales[scale_at(first_row + row, block, cols / 32, swizzled)]);
        const uint2 raw = load_8(from + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(e4m3(byte_of(raw, j)), scale);
    });
}

// Codes of 4 bits, the first in the high half of a byte: table[code] times the largest magnitude of the block of the
// flattened tensor, in which the first value is at `first_value`.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_codebook4(const uint8_t* from, bf16* out, int values, const float* table, const float* maxima,
                         int of_block, int first_value) {
    using namespace dequantise;
    __shared__ float shared_table[16];
    if (threadIdx.x < 16) shared_table[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    const auto decode = [&](uint32_t raw, int j, float maximum) {
        return mul(shared_table[raw >> (j / 2 * 8 + (j % 2 == 0 ? 4 : 0)) & 15], maximum);
    };
    const bool whole = of_block % CHUNK == 0 && first_value % CHUNK == 0;
    chunks(out, values, [&](uint32_t i, float (&decoded)[CHUNK]) {
        const uint32_t raw = __ldg(reinterpret_cast<const uint32_t*>(from + i / 2));
        if (whole) {
            const float maximum = __ldg(maxima + (first_value + i) / uint32_t(of_block));
#pragma unroll
            for (int j = 0; j < CHUNK; j++) decoded[j] = decode(raw, j, maximum);
        } else {
#pragma unroll
            for (int j = 0; j < CHUNK; j++)
                decoded[j] = decode(raw, j, __ldg(maxima + (first_value + i + j) / uint32_t(of_block)));
        }
    });
}
