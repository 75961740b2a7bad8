// linear_int8: 8-bit integer matrix multiplication with i32 sums; see linear_quantized.cuh, and quantize_int8.cu for
// rows
//
// Needs     k <= 133144, so that no sum overflows.
// Rounding  sums are exact.
// Measured  with quantize_int8.cu 4608 x 3072 -> 27648 856 us, 914 TOPS, 75% of mma.sync alone; 12288 -> 3072 442 us,
//           787 TOPS; with tiles of 128 x 256 in steps of 64 bytes 943 and 513 us (H200)
#include "linear_quantized.cuh"

namespace int8_linear {

struct Values {
    typedef int Sum;
    typedef quantized_linear::Bytes Weight;

    static __device__ __forceinline__ float to_float(int sum) { return __int2float_rn(sum); }

    static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32_t (&x)[4],
                                                    const uint32_t (&weight)[2]) {
        multiply_add_int8(sums, x, weight);
    }
};

}  // namespace int8_linear

LINEAR_QUANTIZED(linear_int8_256x64, int8_linear::Values, 256, 64, 4)    // a block in 100 KiB, or in 64 KiB with fp16
#ifndef ELEMENT_F16
LINEAR_QUANTIZED(linear_int8_128x64, int8_linear::Values, 128, 64, 4)    // two in 164 KiB
LINEAR_QUANTIZED(linear_int8_128x128, int8_linear::Values, 128, 128, 3)  // two in 228 KiB
#endif
