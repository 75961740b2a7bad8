// linear_int8: products of integers of 8 bits with i32 sums; see linear_quantised.cuh, and quantise_int8.cu for rows
//
// Needs     k <= 133144, so that no sum is too large.
// Rounding  sums are exact.
// Measured  with quantise_int8.cu 4608 x 3072 -> 27648 856 us, 914 TOPS, 75% of mma.sync alone; 12288 -> 3072 442 us,
//           787 TOPS; by 128 x 256 in steps of 64 bytes 943 and 513 us (H200)
// Tried     tiles of 192 x 256, 96 x 64 a warp, which read a quarter less of L2: fragments loaded 16 rows at a time
//           1128 us, all of 32 bytes at once 1255 us, for no registers are left to load them beforehand
#include "linear_quantised.cuh"

namespace int8_linear {

struct Values {
    typedef int Sum;
    typedef quantised_linear::Bytes Weight;

    static __device__ __forceinline__ float to_float(int sum) { return __int2float_rn(sum); }

    static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32_t (&x)[4],
                                                    const uint32_t (&weight)[2]) {
        multiply_add_int8(sums, x, weight);
    }
};

}  // namespace int8_linear

LINEAR_QUANTISED(linear_int8_256x64, int8_linear::Values, 256, 64, 4)    // a block in 100 KiB, or 64 in fp16
#ifndef ELEMENT_F16
LINEAR_QUANTISED(linear_int8_128x64, int8_linear::Values, 128, 64, 4)    // two in 164
LINEAR_QUANTISED(linear_int8_128x128, int8_linear::Values, 128, 128, 3)  // two in 228
#endif
