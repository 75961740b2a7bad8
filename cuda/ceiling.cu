// multiply_native, multiply_int8, multiply_e4m3: only mma.sync, as often as `rounds` steps of 64 bytes of a tile of 128
// x 256 need, in every launched block: the reference rate for kernels that use it
//
//   out      [blocks * 256]  sums of all results, so that the compiler removes nothing
//
// Mapping   a block of 8 warps, 64 x 64 sums per warp, with operands in registers.
// Flops     2 * 128 * 256 * 64 per round and block, in 16 bits half as many.
#include "mma.cuh"

namespace ceiling {

static constexpr int THREADS = 256, TILES_M = 4, TILES_N = 8, MULTIPLIES = 2;

// Words are random bits, with only the bits of `keep` kept and those of `set` set, so that all values are numbers.
template <class Sum, class Multiply>
__device__ __forceinline__ void run(int rounds, Sum* out, uint32_t keep, uint32_t set, Multiply multiply) {
    uint32_t x[TILES_M][4], weight[TILES_N][2], bits = threadIdx.x * 0x9e3779b9u + blockIdx.x;
    const auto next = [&] {
        bits = bits * 0x915f77f5u + 0x6a09e667u;
        return ((bits >> 7 ^ bits) & keep) | set;
    };
#pragma unroll
    for (int i = 0; i < TILES_M; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) x[i][j] = next();
    }
#pragma unroll
    for (int i = 0; i < TILES_N; i++) weight[i][0] = next(), weight[i][1] = next();
    Sum sums[TILES_M][TILES_N][4] = {};
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int k = 0; k < MULTIPLIES; k++) {
#pragma unroll
            for (int i = 0; i < TILES_M; i++) {
#pragma unroll
                for (int j = 0; j < TILES_N; j++) multiply(sums[i][j], x[i], weight[j]);
            }
        }
    }
    Sum all = 0;
#pragma unroll
    for (int i = 0; i < TILES_M; i++) {
#pragma unroll
        for (int j = 0; j < TILES_N; j++) all += sums[i][j][0] + sums[i][j][1] + sums[i][j][2] + sums[i][j][3];
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

}  // namespace ceiling

// Magnitudes of 0.5 to 1, of either sign.
extern "C" __global__ void __launch_bounds__(ceiling::THREADS, 1) multiply_native(int rounds, float* out) {
#ifdef ELEMENT_F16
    constexpr uint32_t keep = 0x83ff83ffu, set = 0x38003800u;
#else
    constexpr uint32_t keep = 0x807f807fu, set = 0x3f003f00u;
#endif
    ceiling::run(rounds, out, keep, set, [](float (&sums)[4], const uint32_t (&x)[4], const uint32_t (&weight)[2]) {
        multiply_add(sums, x, weight[0], weight[1]);
    });
}

extern "C" __global__ void __launch_bounds__(ceiling::THREADS, 1) multiply_int8(int rounds, int* out) {
    ceiling::run(rounds, out, ~0u, 0u, [](int (&sums)[4], const uint32_t (&x)[4], const uint32_t (&weight)[2]) {
        multiply_add_int8(sums, x, weight);
    });
}

#ifdef MULTIPLIES_E4M3

// Magnitudes below 2.
extern "C" __global__ void __launch_bounds__(ceiling::THREADS, 1) multiply_e4m3(int rounds, float* out) {
    ceiling::run(rounds, out, 0xbfbfbfbfu, 0u,
                 [](float (&sums)[4], const uint32_t (&x)[4], const uint32_t (&weight)[2]) {
                     multiply_add_e4m3(sums, x, weight);
                 });
}

#endif
