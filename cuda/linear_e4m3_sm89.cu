// linear_e4m3: products of e4m3 with float32 sums by mma.sync, for GPUs on which cuBLASLt takes no scale for each row;
// see linear_quantised.cuh, and quantise.cu for rows
//
// Needs     tensor cores of 8.9 or 12.x. Those of 9.0, where tests run this kernel, multiply e4m3 by wgmma alone: ptxas
//           brings both sides to f16 in front of each multiply, and spills.
// Rounding  products are exact; how exact their sums are, is up to the tensor cores.
// Measured  never on a GPU that it is for; on an H100 4608 x 3072 -> 27648 2.8 ms
#include "linear_quantised.cuh"

namespace e4m3_linear {

struct Values {
    typedef float Sum;
    typedef quantised_linear::Bytes Weight;

    static __device__ __forceinline__ float to_float(float sum) { return sum; }

    static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&x)[4],
                                                    const uint32_t (&weight)[2]) {
        multiply_add_e4m3(sums, x, weight);
    }
};

}  // namespace e4m3_linear

LINEAR_QUANTISED(linear_e4m3, e4m3_linear::Values, 256, 64, 4)
