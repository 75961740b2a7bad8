// quantize_w4a8: quantizes a weight for linear_w4a8.cu, groups of its columns rotated, with a scale for each row;
// bit-identical to src/files/w4a8.rs, see also int8.cuh
//
//   weight  [rows, cols]        element, row stride ld_weight, plain values
//   out     [grid rows, ld_out] bytes; zeros after `rows` and `cols`, also in the padding of a row to 16 bytes
//   scales  [grid rows]         f32
//
// Mapping   one block per row of out; a thread holds up to 4 chunks of 8 values. Two lanes have a block of 16.
// Needs     cols % 64 == 0, group a power of 4 up to 256 that divides cols, cols <= 4 * 8 * 512, weight 16-byte aligned
// Bytes     rows * cols * 2.6.   27648 x 3072: 221 MB, once when the weight is loaded
#include <cuda_fp16.h>

#include "int8.cuh"

static constexpr int MAX_CHUNKS = 4, COLUMNS = 64, STEP_BYTES = 32, MULTIPLIER_BYTES = 8;

struct Candidate {
    __half multiplier;
    int codes[int8::CHUNK];
    float error;

    // Rounds eight values of up to 127 to 4 bits, and sums the squared errors of both halves of 16.
    __device__ __forceinline__ Candidate(const float (&values)[int8::CHUNK], float wanted) {
        multiplier = __float2half_rn(wanted);
        const float rounded = __half2float(multiplier);
        const float per_integer = rounded == 0.0f ? 0.0f : __fdiv_rn(0.0625f, rounded);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < int8::CHUNK; i++) {
            const float n = fminf(fmaxf(rintf(__fmul_rn(values[i], per_integer)), -8.0f), 7.0f);
            const float off = __fadd_rn(values[i], -rintf(n * rounded * 16.0f));
            sum = __fadd_rn(sum, __fmul_rn(off, off));
            codes[i] = __float2int_rn(n) + 8;
        }
        error = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    }
};

extern "C" __global__ void __launch_bounds__(512)
    quantize_w4a8(const element* weight, long long ld_weight, uint8_t* out, long long ld_out, float* scales, int rows,
                  int cols, int group) {
    const long long row = blockIdx.x;
    const int all_chunks = cols / int8::CHUNK, chunks = row < rows ? all_chunks : 0;
    const uint4* from = reinterpret_cast<const uint4*>(weight + row * ld_weight);
    uint8_t* to = out + row * ld_out;
    const float root = int8::per_root(group);
    float values[MAX_CHUNKS][int8::CHUNK], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        unpack_plain(chunk < chunks ? from[chunk] : make_uint4(0, 0, 0, 0), values[i]);
        int8::rotate(values[i], group);
#pragma unroll
        for (int j = 0; j < int8::CHUNK; j++) {
            values[i][j] *= root;
            amax = int8::larger(amax, fabsf(values[i][j]));
        }
    }
    amax = int8::block_amax(amax);
    const float inverse = __fdiv_rn(int8::MAX, amax);
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        float most = 0.0f, least = 0.0f;
#pragma unroll
        for (int j = 0; j < int8::CHUNK; j++) {
            values[i][j] *= inverse;
            most = fmaxf(most, values[i][j]), least = fminf(least, values[i][j]);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, 1));
        const float largest = most >= -least ? most : least;
        const Candidate eight(values[i], largest * (-1.0f / 128.0f));
        const Candidate seven(values[i], fabsf(largest) * (1.0f / 112.0f));
        const bool is_seven = seven.error < eight.error;
        // All lanes take part in the shuffles of the next turn.
        if (chunk >= all_chunks) continue;
        const int unit = chunk / 8, half = chunk / 4 % 2, quarter = chunk % 4;
#pragma unroll
        for (int word = 0; word < 2; word++) {
            uint8_t* at = to + unit * STEP_BYTES + half * 16 + (quarter % 2 * 2 + word) * 4 + quarter / 2;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int first = word * 4 + j, second = first + 2;
                at[2 * j] = is_seven ? seven.codes[first] | seven.codes[second] << 4
                                     : eight.codes[first] | eight.codes[second] << 4;
            }
        }
        if (chunk % 2 == 0)
            *reinterpret_cast<__half*>(to + cols / COLUMNS * STEP_BYTES + unit * MULTIPLIER_BYTES + chunk % 8) =
                is_seven ? seven.multiplier : eight.multiplier;
    }
    if (threadIdx.x == 0) {
        scales[row] = __fdiv_rn(amax, int8::MAX);
        const int units = cols / COLUMNS;
        if (units % 2 != 0)
            *reinterpret_cast<uint2*>(to + units * (STEP_BYTES + MULTIPLIER_BYTES)) = make_uint2(0, 0);
    }
}
