// linear_w4a8: 8-bit integer matrix multiplication with weights in 4 bits; see linear_quantized.cuh, and
// src/files/w4a8.rs for the definition
//
// A row of the weight has 32 bytes per 64 columns, followed by 4 multipliers in fp16 per 64 columns, one for 16 columns
// each. A word has 4 columns and the 4 columns 16 further, each plus 8: the former in bits 0 to 3, 16 to 19, 4 to 7 and
// 20 to 23, the latter in the bits 8 above these.
//
// Mapping   4-bit values go through shared memory. A warp unpacks its own fragments while it loads them: 4 bits become
//           the lowest bits of an fp16 number from 1024 on, or 16 times that; minus the offset they are n. n times the
//           multiplier, plus 96, has the integer in its lower byte.
// Needs     k <= 133144; rows of the weight in whole steps of 64 columns.
// Rounding  integers to nearest even, once; sums are exact.
// Measured  with quantize_int8.cu 4608 x 3072 -> 27648 1298 us, 603 TOPS; 12288 -> 3072 649 us (H200)
#include "linear_quantized.cuh"

namespace w4a8_linear {

struct Packed {
    static constexpr bool PACKED = true;

    // a b + c of both halves; b is its half `HALF` twice.
    template <int HALF>
    static __device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
        uint32_t sum;
        if constexpr (HALF == 0)
            asm("{.reg .b16 l, h; .reg .b32 b; mov.b32 {l, h}, %2; mov.b32 b, {l, l}; fma.rn.f16x2 %0, %1, b, %3;}"
                : "=r"(sum)
                : "r"(a), "r"(b), "r"(c));
        else
            asm("{.reg .b16 l, h; .reg .b32 b; mov.b32 {l, h}, %2; mov.b32 b, {h, h}; fma.rn.f16x2 %0, %1, b, %3;}"
                : "=r"(sum)
                : "r"(a), "r"(b), "r"(c));
        return sum;
    }

    // bits & MASK | MORE, as one instruction instead of the compiler's two.
    template <uint32_t MASK, uint32_t MORE>
    static __device__ __forceinline__ uint32_t masked(uint32_t bits) {
        asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(bits) : "n"(MASK), "n"(MORE));
        return bits;
    }

    // Returns the integers of four columns; `HALF` selects their multiplier.
    template <int HALF>
    static __device__ __forceinline__ uint32_t integers(uint32_t bits, uint32_t multipliers) {
        // Pairs of 1024, 1, -1032, 1 / 16, -72 and 96.
        constexpr uint32_t THOUSAND = 0x64006400, ONE = 0x3c003c00, LESS = 0xe408e408, SIXTEENTH = 0x2c002c00,
                           LESS_OF_UPPER = 0xd480d480, OFFSET = 0x56005600;
        const uint32_t lower = multiply_add<0>(masked<0x000f000f, THOUSAND>(bits), ONE, LESS);
        const uint32_t upper = multiply_add<0>(masked<0x00f000f0, THOUSAND>(bits), SIXTEENTH, LESS_OF_UPPER);
        return __byte_perm(multiply_add<HALF>(lower, multipliers, OFFSET),
                           multiply_add<HALF>(upper, multipliers, OFFSET), 0x6420);
    }

    // Unpacks a word: bytes 0 to 3 and 16 to 19 of 32; `multipliers` has both multipliers.
    static __device__ __forceinline__ void unpack(uint32_t (&to)[2], uint32_t word, uint32_t multipliers) {
        to[0] = integers<0>(word, multipliers);
        to[1] = integers<1>(word >> 8, multipliers);
    }
};

struct Values {
    typedef int Sum;
    typedef Packed Weight;

    static __device__ __forceinline__ float to_float(int sum) { return __int2float_rn(sum); }

    static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32_t (&x)[4],
                                                    const uint32_t (&weight)[2]) {
        multiply_add_int8(sums, x, weight);
    }
};

}  // namespace w4a8_linear

LINEAR_QUANTIZED(linear_w4a8, w4a8_linear::Values, 128, 64, 3)  // two blocks in 100 KiB, or in 64 in fp16
