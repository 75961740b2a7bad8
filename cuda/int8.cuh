// Rows quantized to 8-bit integers with one f32 scale per row, value = integer * scale, after a rotation of groups of
// columns. Bit-identical to src/files/int8.rs.
//
// A group is multiplied by the Kronecker power of [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], over
// the root of its size: by that matrix along each base-4 digit of the column index, the last digit first. Each value
// becomes (itself minus the value with the digit 3 minus its own) + (the sum of the other two).
//
// The largest magnitude becomes 127; values round to nearest even. A row with a non-finite value gets a non-finite
// scale, so that damaged weights still end in an error.
#pragma once

#include "common.cuh"

namespace int8 {

static constexpr float MAX = 127.0f;
// The min amax, so that a row of zeros does not divide by zero; no value of a model is that small.
static constexpr float LEAST_AMAX = 1e-30f;
// Values of a chunk, which a thread loads at once. The chunks of a warp are the largest group.
static constexpr int CHUNK = 8;

// Rotates along a digit in two bits of the lane; `bit` is the lower one. One shuffle combines two of the four values,
// and the next adds the sum of the other two.
__device__ __forceinline__ float turn_lanes(float value, int bit) {
    const float opposite = __shfl_xor_sync(0xffffffffu, value, 3 * bit);
    return (value - opposite) + __shfl_xor_sync(0xffffffffu, value + opposite, bit);
}

// Rotates groups of `group` columns, a power of 4 up to 256. A thread has the 8 columns from 8 times its lane on: bits
// 0 and 1 of a column are digit 0, bit 2 and bit 0 of the lane digit 1, and further bits of the lane digits 2 and 3.
// Threads past the end of a row take part, too; they share no group with others.
__device__ __forceinline__ void rotate(float (&v)[CHUNK], int group) {
    if (group < 4) return;
#pragma unroll
    for (int i = 0; i < CHUNK; i += 4) {
        const float a = v[i], b = v[i + 1], c = v[i + 2], d = v[i + 3];
        v[i] = (a - d) + (b + c);
        v[i + 1] = (b - c) + (a + d);
        v[i + 2] = (c - b) + (a + d);
        v[i + 3] = (d - a) + (b + c);
    }
    if (group < 16) return;
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++) {
        const float low = v[i], high = v[i + 4];
        const float other_low = __shfl_xor_sync(0xffffffffu, low, 1);
        const float other_high = __shfl_xor_sync(0xffffffffu, high, 1);
        v[i] = (low - other_high) + (high + other_low);
        v[i + 4] = (high - other_low) + (low + other_high);
    }
    if (group < 64) return;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) v[i] = turn_lanes(v[i], 2);
    if (group < 256) return;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) v[i] = turn_lanes(v[i], 8);
}

// Returns one over the root of a group's size, which is a power of 4.
__device__ __forceinline__ float per_root(int group) { return __int_as_float((127 - (31 - __clz(group)) / 2) << 23); }

// Returns the larger of two magnitudes, by their bits: NaN is above all numbers.
__device__ __forceinline__ float larger(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}

// Returns the largest magnitude over a block, at least LEAST_AMAX.
__device__ __forceinline__ float block_amax(float amax) {
    const float all = block_reduce(amax, 0.0f, [](float value) {
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) value = larger(value, __shfl_xor_sync(0xffffffffu, value, step));
        return value;
    });
    return larger(all, LEAST_AMAX);
}

// Packs four integers as bytes, the first one in the lowest.
__device__ __forceinline__ unsigned pack_bytes(int a, int b, int c, int d) {
    unsigned bytes;
    asm("{.reg .u32 upper; cvt.pack.sat.s8.s32.b32 upper, %4, %3, 0; cvt.pack.sat.s8.s32.b32 %0, %2, %1, upper;}"
        : "=r"(bytes)
        : "r"(a), "r"(b), "r"(c), "r"(d));
    return bytes;
}

// Stores a row of plain values that the block holds, chunk threadIdx.x + i * blockDim.x in chunks[i] and zeros past its
// end: its scale, and `out_chunks` chunks of 8 bytes, 8-byte aligned. The block has whole warps.
template <int N>
__device__ __forceinline__ void quantize_row(const uint4 (&chunks)[N], int group, int out_chunks, int8_t* out,
                                             float* scale) {
    const float root = per_root(group);
    float values[N][CHUNK], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        unpack_plain(chunks[i], values[i]);
        rotate(values[i], group);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            values[i][j] *= root;
            amax = larger(amax, fabsf(values[i][j]));
        }
    }
    amax = block_amax(amax);
    const float inverse = __fdiv_rn(MAX, amax);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        if (chunk >= out_chunks) break;
        int q[CHUNK];
#pragma unroll
        for (int j = 0; j < CHUNK; j++) q[j] = __float2int_rn(values[i][j] * inverse);
        *reinterpret_cast<uint2*>(out + chunk * CHUNK) =
            make_uint2(pack_bytes(q[0], q[1], q[2], q[3]), pack_bytes(q[4], q[5], q[6], q[7]));
    }
    if (threadIdx.x == 0) *scale = __fdiv_rn(amax, MAX);
}

// As quantize_row, for a row of any size and alignment, by a block of 256 threads: value(i) is computed twice, and
// zeros fill the columns from `cols` to `out_cols`.
template <class Value>
__device__ __forceinline__ void quantize_row_any(int cols, int group, int out_cols, int8_t* out, float* scale,
                                                 Value value) {
    static constexpr int THREADS = 256;
    __shared__ float window[THREADS];
    const float root = per_root(group);
    // Returns the rotated value of the thread's column of the 256 from `first` on, which are whole groups.
    const auto rotated = [&](int first) {
        const int i = threadIdx.x;
        float own = first + i < cols ? value(first + i) : 0.0f;
        for (int stride = 1; stride < group; stride *= 4) {
            __syncthreads();
            window[i] = own;
            __syncthreads();
            own = (own - window[i ^ 3 * stride]) + (window[i ^ stride] + window[i ^ 2 * stride]);
        }
        return own * root;
    };
    float amax = 0.0f;
    for (int first = 0; first < cols; first += THREADS) amax = larger(amax, fabsf(rotated(first)));
    amax = block_amax(amax);
    const float inverse = __fdiv_rn(MAX, amax);
    for (int first = 0; first < out_cols; first += THREADS) {
        const int q = __float2int_rn(rotated(first) * inverse), i = first + threadIdx.x;
        if (i < out_cols) out[i] = static_cast<int8_t>(q);
    }
    if (threadIdx.x == 0) *scale = __fdiv_rn(amax, MAX);
}

}  // namespace int8
