// linear_e4m3: e4m3 matrix multiplication with float32 sums by mma.sync, for GPUs on which cuBLASLt supports no scale
// per row; see linear_quantized.cuh, and quantize.cu for rows
//
// Needs     tensor cores of 8.9 or 12.x. Those of 9.0, on which tests run this kernel, multiply e4m3 only by wgmma:
//           ptxas converts both operands to f16 before each multiply, and spills.
// Rounding  products are exact; the accuracy of their sums depends on the tensor cores.
// Measured  not on a GPU that it is for; on an H100 4608 x 3072 -> 27648 2.8 ms
#include "linear_quantized.cuh"

namespace e4m3_linear {

struct Values {
    typedef float Sum;
    typedef quantized_linear::Bytes Weight;

    static __device__ __forceinline__ float to_float(float sum) { return sum; }

    static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&x)[4],
                                                    const uint32_t (&weight)[2]) {
        multiply_add_e4m3(sums, x, weight);
    }
};

}  // namespace e4m3_linear

LINEAR_QUANTIZED(linear_e4m3, e4m3_linear::Values, 256, 64, 4)
