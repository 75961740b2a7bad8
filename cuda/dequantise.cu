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
// Measured  `flux bench ops/dequantise`
#include <cuda_fp16.h>

#include "common.cuh"

namespace dequantise {

typedef const uint8_t* Bytes;

constexpr int THREADS = 256, TILE = 8192, CHUNK = 8;

// Products and sums that are rounded one by one.
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }

__device__ __forceinline__ float half_at(Bytes at) {
    return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(at)));
}

// Eight bytes from an even address.
struct Eight {
    uint16_t pairs[4];
    __device__ __forceinline__ explicit Eight(Bytes at) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = reinterpret_cast<const uint16_t*>(at)[i];
    }
    __device__ __forceinline__ uint32_t operator[](int i) const { return pairs[i / 2] >> (i % 2 * 8) & 0xff; }
};

__device__ __forceinline__ float signed_byte(uint32_t byte) { return float(int8_t(byte)); }

// What the codes 0 to 15 of IQ4 stand for.
__device__ __forceinline__ float iq4(uint32_t code) {
    constexpr uint32_t WORDS[4] = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};
    const uint32_t word = code < 8 ? (code < 4 ? WORDS[0] : WORDS[1]) : (code < 12 ? WORDS[2] : WORDS[3]);
    return signed_byte(word >> (code % 4 * 8) & 0xff);
}

// The formats: VALUES of a block in BYTES, and eight values of one, `first` (a multiple of 8) and those behind it.
struct Q8_0 {
    static constexpr int VALUES = 32, BYTES = 34;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const float d = half_at(block);
        const Eight q(block + 2 + first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(d, signed_byte(q[i]));
    }
};

// Codes of 4 bits: values 0 to 15 in the low halves of 16 bytes, 16 to 31 in the high ones.
struct Nibbles {
    Eight bytes;
    int shift;
    __device__ __forceinline__ Nibbles(Bytes at, int first) : bytes(at + first % 16), shift(first / 16 * 4) {}
    __device__ __forceinline__ uint32_t operator[](int i) const { return bytes[i] >> shift & 15; }
};

// The same, with their fifth bits in four bytes before them.
struct FiveBits {
    Nibbles low;
    uint32_t high;
    __device__ __forceinline__ FiveBits(Bytes at, int first) : low(at + 4, first) {
        const uint16_t* bits = reinterpret_cast<const uint16_t*>(at);
        high = (bits[0] | uint32_t(bits[1]) << 16) >> first;
    }
    __device__ __forceinline__ uint32_t operator[](int i) const { return low[i] | (high >> i & 1) << 4; }
};

struct Q4_0 {
    static constexpr int VALUES = 32, BYTES = 18;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const float d = half_at(block);
        const Nibbles codes(block + 2, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(d, float(int(codes[i]) - 8));
    }
};

struct Q4_1 {
    static constexpr int VALUES = 32, BYTES = 20;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const float d = half_at(block), m = half_at(block + 2);
        const Nibbles codes(block + 4, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = add(mul(d, float(codes[i])), m);
    }
};

struct Q5_0 {
    static constexpr int VALUES = 32, BYTES = 22;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const float d = half_at(block);
        const FiveBits codes(block + 2, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(d, float(int(codes[i]) - 16));
    }
};

struct Q5_1 {
    static constexpr int VALUES = 32, BYTES = 24;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const float d = half_at(block), m = half_at(block + 2);
        const FiveBits codes(block + 4, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = add(mul(d, float(codes[i])), m);
    }
};

struct Iq4Nl {
    static constexpr int VALUES = 32, BYTES = 18;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const float d = half_at(block);
        const Nibbles codes(block + 2, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(d, iq4(codes[i]));
    }
};

struct Iq4Xs {
    static constexpr int VALUES = 256, BYTES = 136;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const int part = first / 32;
        const uint32_t low = block[4 + part / 2] >> (part % 2 * 4) & 15,
                       high = *reinterpret_cast<const uint16_t*>(block + 2) >> (2 * part) & 3;
        const float scale = mul(half_at(block), float(int(low | high << 4) - 32));
        const Nibbles codes(block + 8 + 16 * part, first % 32);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = mul(scale, iq4(codes[i]));
    }
};

// The first byte of the codes of 2 bits of eight values, and how far they are shifted: a byte holds values that are 32
// apart.
struct TwoBits {
    Eight bytes;
    int shift;
    __device__ __forceinline__ TwoBits(Bytes at, int first)
        : bytes(at + first / 128 * 32 + first % 32), shift(first / 32 % 4 * 2) {}
    __device__ __forceinline__ uint32_t operator[](int i) const { return bytes[i] >> shift & 3; }
};

struct Q2K {
    static constexpr int VALUES = 256, BYTES = 84;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const uint32_t packed = block[first / 16];
        const float scale = mul(half_at(block + 80), float(packed & 15)),
                    least = mul(half_at(block + 82), float(packed >> 4));
        const TwoBits codes(block + 16, first);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) out[i] = sub(mul(scale, float(codes[i])), least);
    }
};

struct Q3K {
    static constexpr int VALUES = 256, BYTES = 110;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const Bytes packed = block + 96;
        const int part = first / 16;
        const uint32_t low = packed[part % 8] >> (part / 8 * 4) & 15,
                       high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
        const float scale = mul(half_at(block + 108), float(int(low | high << 4) - 32));
        const TwoBits codes(block + 32, first);
        const Eight third(block + first % 32);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const int code = int(codes[i] | (third[i] >> (first / 32) & 1) << 2) - 4;
            out[i] = mul(scale, float(code));
        }
    }
};

// `d s` and `dmin m` of a part of 32 values of Q4_K and Q5_K.
struct ScaleAndLeast {
    float scale, least;
    __device__ __forceinline__ ScaleAndLeast(Bytes block, int part) {
        const Bytes packed = block + 4;
        uint32_t s, m;
        if (part < 4) {
            s = packed[part] & 63, m = packed[part + 4] & 63;
        } else {
            s = (packed[part + 4] & 15) | packed[part - 4] >> 6 << 4, m = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
        }
        scale = mul(half_at(block), float(s)), least = mul(half_at(block + 2), float(m));
    }
};

struct Q4K {
    static constexpr int VALUES = 256, BYTES = 144;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const int part = first / 32, shift = part % 2 * 4;
        const ScaleAndLeast of_part(block, part);
        const Eight codes(block + 16 + part / 2 * 32 + first % 32);
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            out[i] = sub(mul(of_part.scale, float(codes[i] >> shift & 15)), of_part.least);
    }
};

struct Q5K {
    static constexpr int VALUES = 256, BYTES = 176;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const int part = first / 32, shift = part % 2 * 4;
        const ScaleAndLeast of_part(block, part);
        const Eight fifth(block + 16 + first % 32), codes(block + 48 + part / 2 * 32 + first % 32);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const uint32_t code = (codes[i] >> shift & 15) | (fifth[i] >> part & 1) << 4;
            out[i] = sub(mul(of_part.scale, float(code)), of_part.least);
        }
    }
};

struct Q6K {
    static constexpr int VALUES = 256, BYTES = 210;
    __device__ __forceinline__ static void decode(Bytes block, int first, float (&out)[CHUNK]) {
        const int half = first / 128, quarter = first / 32 % 4, place = first % 32;
        const float scale = mul(half_at(block + 208), signed_byte(block[192 + first / 16]));
        const Eight low(block + 64 * half + quarter % 2 * 32 + place), high(block + 128 + 32 * half + place);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const uint32_t code =
                (low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4;
            out[i] = mul(scale, float(int(code) - 32));
        }
    }
};

// Blocks that hold their scales.
template <class Format>
__device__ __forceinline__ void blocks(const uint8_t* from, bf16* out, long long values) {
    constexpr int TILE_BYTES = TILE / Format::VALUES * Format::BYTES;
    static_assert(TILE_BYTES % 16 == 0, "tiles begin at a multiple of 16 bytes");
    __shared__ __align__(16) uint8_t tile[TILE_BYTES];
    const long long first = (long long)blockIdx.x * TILE;
    const int here = int(min((long long)TILE, values - first)), bytes = here / Format::VALUES * Format::BYTES;
    from += first / Format::VALUES * Format::BYTES;
    for (int i = threadIdx.x * 16; i + 16 <= bytes; i += THREADS * 16)
        *reinterpret_cast<uint4*>(tile + i) = __ldg(reinterpret_cast<const uint4*>(from + i));
    for (int i = bytes / 16 * 16 + threadIdx.x; i < bytes; i += THREADS) tile[i] = from[i];
    __syncthreads();
    for (int i = threadIdx.x * CHUNK; i < here; i += THREADS * CHUNK) {
        float decoded[CHUNK];
        Format::decode(tile + i / Format::VALUES * Format::BYTES, i % Format::VALUES, decoded);
        store<CHUNK>(out + first + i, decoded);
    }
}

// Eight values of a tile at a time: body(place of the first, values).
template <class Body>
__device__ __forceinline__ void chunks(bf16* out, long long values, Body body) {
    const long long first = (long long)blockIdx.x * TILE, end = min(first + TILE, values);
#pragma unroll 4
    for (long long i = first + threadIdx.x * CHUNK; i < end; i += THREADS * CHUNK) {
        float decoded[CHUNK];
        body(i, decoded);
        store<CHUNK>(out + i, decoded);
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
__device__ __forceinline__ void rows(const uint8_t* from, bf16* out, long long values, int cols, const float* scales,
                                     float after, Decode decode) {
    chunks(out, values, [&](long long i, float (&decoded)[CHUNK]) {
        const float scale = __ldg(scales + i / cols);
        const uint2 raw = load_8(from + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(mul(decode(byte_of(raw, j)), scale), after);
    });
}

// Where the scale of a block of a row is: [rows, blocks], or tiles of 128 rows and 4 blocks, in which rows that are 32
// apart follow each other.
__device__ __forceinline__ long long scale_at(long long row, int block, int blocks, int swizzled) {
    if (!swizzled) return row * blocks + block;
    const long long tile = row / 128 * ceil_div(blocks, 4) + block / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

}  // namespace dequantise

#define BLOCKS(name, Format)                                                                          \
    extern "C" __global__ void __launch_bounds__(dequantise::THREADS)                                 \
        dequantise_##name(const uint8_t* from, bf16* out, long long values) {                         \
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
        dequantise_##name(const uint8_t* from, bf16* out, long long values, int cols, const float* scales,            \
                          float after) {                                                                              \
        dequantise::rows(from, out, values, cols, scales, after, [](uint32_t bits) { return dequantise::value(bits); }); \
    }

ROWS(e4m3, e4m3)
ROWS(e5m2, e5m2)
ROWS(int8, signed_byte)

// As int8, and then each `group` columns, a power of 4, times the Kronecker power of [[1, 1, 1, -1], [1, 1, -1, 1],
// [1, -1, 1, 1], [-1, 1, 1, 1]] by `root`: by the matrix along each digit to base 4 of the columns' numbers.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_int8_rotated(const uint8_t* from, bf16* out, long long values, int cols, const float* scales, int group,
                            float root) {
    using namespace dequantise;
    __shared__ __align__(16) float tile[TILE];
    const long long first = (long long)blockIdx.x * TILE;
    const int here = int(min((long long)TILE, values - first));
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
    dequantise_nvfp4(const uint8_t* from, bf16* out, long long values, int cols, const uint8_t* scales, int first_row,
                     int swizzled, float tensor, int high_first) {
    using namespace dequantise;
    chunks(out, values, [&](long long i, float (&decoded)[CHUNK]) {
        const long long row = i / cols;
        const int block = int(i - row * cols) / 16;
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
    dequantise_mxfp8(const uint8_t* from, bf16* out, long long values, int cols, const uint8_t* scales, int first_row,
                     int swizzled) {
    using namespace dequantise;
    chunks(out, values, [&](long long i, float (&decoded)[CHUNK]) {
        const long long row = i / cols;
        const int block = int(i - row * cols) / 32;
        const float scale = e8m0(scales[scale_at(first_row + row, block, cols / 32, swizzled)]);
        const uint2 raw = load_8(from + i);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) decoded[j] = mul(e4m3(byte_of(raw, j)), scale);
    });
}

// Codes of 4 bits, the first in the high half of a byte: table[code] times the largest magnitude of the block of the
// flattened tensor, in which the first value is at `first_value`.
extern "C" __global__ void __launch_bounds__(dequantise::THREADS)
    dequantise_codebook4(const uint8_t* from, bf16* out, long long values, const float* table, const float* maxima,
                         int of_block, long long first_value) {
    using namespace dequantise;
    __shared__ float shared_table[16];
    if (threadIdx.x < 16) shared_table[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    chunks(out, values, [&](long long i, float (&decoded)[CHUNK]) {
        const uint32_t raw = __ldg(reinterpret_cast<const uint32_t*>(from + i / 2));
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            const float maximum = __ldg(maxima + (first_value + i + j) / of_block);
            decoded[j] = mul(shared_table[raw >> (j / 2 * 8 + (j % 2 == 0 ? 4 : 0)) & 15], maximum);
        }
    });
}
