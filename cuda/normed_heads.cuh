// Bounds of normed heads: quantizing them needs no pass over them.
#pragma once

#include "common.cuh"

// Returns the bound of heads of text and image rows with norms [128] each; for a whole warp. A head has 128 values with
// squares that add up to 128 before they are multiplied by the norm's weights. So no value, and no length of a head, is
// larger than sqrt(128) times the largest weight, and rotating pairs changes neither.
__device__ __forceinline__ float bound_of_heads(const bf16* txt_norm, const bf16* img_norm) {
    const int first = threadIdx.x % 32 * 4;
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = fmaxf(most, fmaxf(fabsf(float(txt_norm[first + i])), fabsf(float(img_norm[first + i]))));
    return 11.3137085f * warp_max(most);
}
