// Shared by the parts of dequantize: sizes, and arithmetic that is rounded at each step.
#pragma once

#include <cuda_fp16.h>

#include "common.cuh"

namespace dequantize {

// Values of a thread block, and values that a thread stores at once.
constexpr int THREADS = 256, TILE = 8192, CHUNK = 8;

// Products and sums that are rounded separately.
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }

__device__ __forceinline__ uint2 load_8(const uint8_t* from) { return __ldg(reinterpret_cast<const uint2*>(from)); }

}  // namespace dequantize
