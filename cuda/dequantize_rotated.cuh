// Inverse rotation of 8-bit integers, on the tensor cores: part of dequantize.
//
// Groups of columns are multiplied by the Kronecker power of [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1,
// 1]]: by that matrix along each base-4 digit of the column index. Two digits are one multiplication with a matrix [16,
// 16], so two multiplications rotate 256 columns, X [16, 16]: Z = A X, and then B Z^T. A thread's part of the first
// result is its part of the transposed operand of the second. Sums of 16 bytes are exact in float16, and sums of 256 in
// float32.
#pragma once

#include "dequantize.cuh"

namespace dequantize {

// Multiplies a matrix [16, 16] of float16 by [16, 8], two pairs per thread. Before sm_80 each half of the matrix is
// multiplied separately; the sums are exact in any order.
__device__ __forceinline__ void multiply(uint32_t (&out)[2], const uint32_t (&matrix)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(matrix[0]), "r"(matrix[1]), "r"(matrix[2]), "r"(matrix[3]), "r"(b0), "r"(b1), "r"(0));
#else
    out[0] = out[1] = 0;
#pragma unroll
    for (int half = 0; half < 2; half++)
        asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
            : "+r"(out[0]), "+r"(out[1])
            : "r"(matrix[2 * half]), "r"(matrix[2 * half + 1]), "r"(half == 0 ? b0 : b1));
#endif
}

__device__ __forceinline__ void multiply(float (&out)[4], const uint32_t (&matrix)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3])
        : "r"(matrix[0]), "r"(matrix[1]), "r"(matrix[2]), "r"(matrix[3]), "r"(b0), "r"(b1), "f"(0.0f));
#else
    out[0] = out[1] = out[2] = out[3] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
            : "r"(matrix[2 * half]), "r"(matrix[2 * half + 1]), "r"(half == 0 ? b0 : b1));
#endif
}

// Returns an entry of the matrix of a digit, or of the identity.
__device__ __forceinline__ float turn(int row, int column, bool turns) {
    return turns ? (row + column == 3 ? -1.0f : 1.0f) : row == column ? 1.0f : 0.0f;
}

// Digits 0 and 2 are the rows of X, 1 and 3 its columns; digits beyond `group` are unchanged.
struct Rotation {
    uint32_t matrices[2][4];

    __device__ __forceinline__ explicit Rotation(int group) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int product = 0; product < 2; product++) {
            // Bits 0 and 3 of an index are the near digit, 0 or 1. A thread has both bits of one digit and a bit of the
            // other, which in this order are those of eight neighbours.
            const auto near = [&](int i) { return product == 0 ? i % 2 + i / 8 * 2 : i / 8 + i % 2 * 2; };
            const auto far = [](int i) { return i / 2 % 4; };
            const bool turns_near = group >= (product == 0 ? 4 : 16), turns_far = group >= (product == 0 ? 64 : 256);
            const auto entry = [&](int row, int column) {
                return turn(near(row), near(column), turns_near) * turn(far(row), far(column), turns_far);
            };
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i % 2 * 8, column = lane % 4 * 2 + i / 2 * 8;
                const __half2 pair = __floats2half2_rn(entry(row, column), entry(row, column + 1));
                matrices[product][i] = *reinterpret_cast<const uint32_t*>(&pair);
            }
        }
    }

    // Returns the first of a thread's eight columns in the 256 of its warp.
    __device__ __forceinline__ static int place() {
        const int lane = threadIdx.x % 32;
        return lane / 4 % 2 * 8 + lane % 4 * 16 + lane / 8 * 64;
    }

    // Computes the sums at the place of eight columns.
    __device__ __forceinline__ void operator()(uint2 raw, float (&sums)[CHUNK]) const {
        // Converts two bytes to float16: a byte in the low bits of 1024 is 1024 plus that byte.
        const auto halves = [](uint32_t word, uint32_t order) {
            const uint32_t bits = __byte_perm(word ^ 0x80808080, 0x64646464, order);
            const __half2 pair = __hsub2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(1024.0f + 128.0f));
            return *reinterpret_cast<const uint32_t*>(&pair);
        };
        uint32_t near[2][2];
        multiply(near[0], matrices[0], halves(raw.x, 0x4140), halves(raw.x, 0x4342));
        multiply(near[1], matrices[0], halves(raw.y, 0x4140), halves(raw.y, 0x4342));
        float far[2][4];
        multiply(far[0], matrices[1], near[0][0], near[1][0]);
        multiply(far[1], matrices[1], near[0][1], near[1][1]);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sums[j] = far[j / 2 % 2][j / 4 * 2 + j % 2];
    }
};

// Decodes rotated groups, times the scale of the row, and times `root`. WIDE groups have more than 256 columns: their
// further digits are rotated in shared memory.
template <bool WIDE>
__device__ __forceinline__ void rotated(const uint8_t* from, element* out, int values, int cols, const float* scales,
                                        int group, float root) {
    const Rotation rotation(group);
    const auto finish = [&](int i, float (&sums)[CHUNK]) {
        const float scale = __ldg(scales + uint32_t(i) / uint32_t(cols));
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sums[j] = mul(mul(sums[j], scale), root);
        store_plain(out + i, sums);
    };
    constexpr int STEPS = TILE / (THREADS * CHUNK);
    const int first = blockIdx.x * TILE;
    const auto at = [&](int step) { return (step * THREADS / 32 + threadIdx.x / 32) * 256 + Rotation::place(); };
    uint2 raw[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        raw[step] = first + at(step) < values ? load_8(from + first + at(step)) : uint2{0, 0};
    __shared__ __align__(16) float tile[WIDE ? TILE : 1];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        float sums[CHUNK];
        rotation(raw[step], sums);
        if constexpr (WIDE) {
#pragma unroll
            for (int j = 0; j < CHUNK; j++) tile[at(step) + j] = sums[j];
        } else if (first + at(step) < values) {
            finish(first + at(step), sums);
        }
    }
    if constexpr (WIDE) {
        for (int stride = 256; stride < group; stride *= 4) {
            __syncthreads();
            for (int i = threadIdx.x; i < TILE / 4; i += THREADS) {
                float* quadruple = tile + i / stride * 4 * stride + i % stride;
                const float a = quadruple[0], b = quadruple[stride];
                const float c = quadruple[2 * stride], d = quadruple[3 * stride];
                quadruple[0] = add(add(a, b), sub(c, d));
                quadruple[stride] = sub(add(a, b), sub(c, d));
                quadruple[2 * stride] = add(add(c, d), sub(a, b));
                quadruple[3 * stride] = sub(add(c, d), sub(a, b));
            }
        }
        __syncthreads();
        for (int i = threadIdx.x * CHUNK; i < TILE && first + i < values; i += THREADS * CHUNK) {
            float sums[CHUNK];
#pragma unroll
            for (int j = 0; j < CHUNK; j++) sums[j] = tile[i + j];
            finish(first + i, sums);
        }
    }
}

}  // namespace dequantize
