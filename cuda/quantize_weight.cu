// quantize_weight: out * scales = weight, rounded to e4m3 with one scale per row, the one of 32 with the least error;
// see e4m3.cuh
//
//   weight  [rows, cols]        bf16, row stride ld_weight
//   out     [grid rows, ld_out] e4m3, dense; zeros after `rows` and `cols`
//   scales  [grid rows]         f32
//
// It runs once, when a weight is loaded; a row is an output channel. The candidate scales are amax / 448 * (1 + i /
// 32). The result is bit-identical to `quantize_row` of src/files/e4m3.rs: errors are integers, with equal sums in any
// order, and everything before is rounded as there.
//
// Mapping   one block per row of out; a thread holds up to 4 chunks of 8 values, so weight is read once. For one scale
//           after the other, each thread sums the errors of its values, and each warp those of its threads. Then each
//           lane of a warp compares the error of one scale.
// Needs     cols % 8 == 0, ld_out <= 4 * 8 * 512, weight 16-byte aligned. Otherwise `_any`: one value at a time, weight
//           read 34 times.
// Flops     rows * cols * 32 scales * 7 instructions, 4 of them fused multiply-adds.   27648 x 3072: 19.0 G
//           instructions
// Bound     instruction issue. 128 per cycle on each of 132 SM at 1.98 GHz (H200) = 33.4 T/s: 0.57 ms; HBM 0.05 ms
// Measured  an image of klein 4B is complete 1.18 s after the start of the process, and after 1.06 s if quantized
//           weights are read from a file. Its final latents differ from float32 by 0.01275 instead of 0.01286 (512 x
//           512), 0.01245 instead of 0.01257 (1024 x 1024)
#include "e4m3.cuh"

static constexpr int MAX_CHUNKS = 4;
static constexpr int CANDIDATES = 32;
static_assert(CANDIDATES == 32, "one for each lane of a warp");
// Errors are counted in units of 1/32; the largest half step of e4m3 is 16. A thread's sum of squares is at most
// 32 * 512^2 = 2^23, and exact in f32.
static constexpr float STEPS = 32.0f;
// Adding and subtracting these rounds to a multiple of 1, and of 1/8 of a power of two: f32 has 23 bits after the
// first.
static constexpr float TO_INTEGER = 1.5f * (1 << 23);
static constexpr float TO_EIGHTH = 1.5f * (1 << 20);

// Returns candidate `i`. The factor is exact, and nothing overflows that did not with the smallest scale.
__device__ __forceinline__ RowScale candidate(RowScale largest, int i) {
    const float factor = 1.0f + static_cast<float>(i) / CANDIDATES;
    return {largest.scale * factor, largest.inverse / factor};
}

// Returns the square of the error of e4m3 for value * inverse, both times STEPS and rounded to an integer first: an
// integer up to 512^2. The value is finite, and no larger than 448 / inverse.
__device__ __forceinline__ float squared_error(float value, float inverse_in_steps) {
    // One rounding, as of the exact product in src/files/e4m3.rs.
    const float scaled = __fmaf_rn(value, inverse_in_steps, TO_INTEGER) - TO_INTEGER;
    // Integers below 8 are multiples of 1/8 of their power of two, so the smaller steps of e4m3 near 0 make no
    // difference. From here on products are exact, and fused with sums only to save instructions.
    const float power = __uint_as_float(__float_as_uint(scaled) & 0x7f800000u);
    const float error = scaled - __fmaf_rn(power, -TO_EIGHTH, __fmaf_rn(power, TO_EIGHTH, scaled));
    return error * error;
}

__device__ __forceinline__ float finite(float value) { return fabsf(value) < INFINITY ? value : 0.0f; }

// Returns the candidate of least error, starting from `largest`; the first of equal ones. All threads of the block get
// it. error_of(inverse_in_steps) is the sum of squared_error over the values of this warp.
template <class ErrorOf>
__device__ __forceinline__ RowScale least_error(RowScale largest, ErrorOf error_of) {
    __shared__ unsigned long long errors[32][CANDIDATES];  // of each warp
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
    for (int i = 0; i < CANDIDATES; i++) {
        const unsigned long long error = error_of(candidate(largest, i).inverse * STEPS);
        if (lane == 0) errors[warp][i] = error;
    }
    __syncthreads();
    // All warps do the same from here on. Errors are scaled to units of the first candidate's.
    unsigned long long error = 0;
    for (int of = 0; of < blockDim.x >> 5; of++) error += errors[of][lane];
    error *= (CANDIDATES + lane) * (CANDIDATES + lane);
    int least = lane;
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        const unsigned long long other_error = __shfl_xor_sync(0xffffffffu, error, step);
        const int other = __shfl_xor_sync(0xffffffffu, least, step);
        if (other_error < error || (other_error == error && other < least)) {
            error = other_error;
            least = other;
        }
    }
    return candidate(largest, least);
}

extern "C" __global__ void __launch_bounds__(512)
    quantize_weight_bf16(const bf16* weight, long long ld_weight, e4m3* out, long long ld_out, float* scales, int rows,
                         int cols) {
    const long long row = blockIdx.x;
    const int held = ceil_div(cols / 8, blockDim.x);
    uint4 chunks[MAX_CHUNKS];
    float values[MAX_CHUNKS][8];
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        chunks[i] = load_chunk(weight + row * ld_weight, threadIdx.x + i * blockDim.x, row < rows ? cols / 8 : 0);
        unpack(chunks[i], values[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) values[i][j] = finite(values[i][j]);
    }
    const RowScale best = least_error(row_scale(block_max(chunks_max(chunks))), [&](float inverse_in_steps) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS; i++) {
            if (i < held) {
#pragma unroll
                for (int j = 0; j < 8; j++) sum += squared_error(values[i][j], inverse_in_steps);
            }
        }
        return __reduce_add_sync(0xffffffffu, static_cast<unsigned>(sum));
    });
    store_row(chunks, best, ld_out / 8, out + row * ld_out, scales + row);
}

extern "C" __global__ void __launch_bounds__(256)
    quantize_weight_bf16_any(const bf16* weight, long long ld_weight, e4m3* out, long long ld_out, float* scales,
                             int rows, int cols) {
    const long long row = blockIdx.x;
    const bf16* from = weight + row * ld_weight;
    const int held = row < rows ? cols : 0;
    auto value = [=](int i) { return __bfloat162float(from[i]); };
    const RowScale best = least_error(row_scale(block_max(values_max(held, value))), [&](float inverse_in_steps) {
        unsigned long long sum = 0;
        for (int first = 0; first < held; first += blockDim.x) {
            const int i = first + threadIdx.x;
            sum += __reduce_add_sync(
                0xffffffffu, i < held ? static_cast<unsigned>(squared_error(finite(value(i)), inverse_in_steps)) : 0u);
        }
        return sum;
    });
    store_row_any(held, best, ld_out, out + row * ld_out, scales + row, value);
}
