// What is known of heads that a norm made: quantising them needs no pass over them.
#pragma once

#include "common.cuh"

// A head has 128 values whose squares add up to 128 before they are multiplied by the norm's weights. So no value is
// larger than sqrt(128) times the largest weight, no head is longer, and rotating pairs changes neither. Of the heads
// of text and image rows, whose norms are [128] each; for a whole warp.
__device__ __forceinline__ float bound_of_heads(const bf16* txt_norm, const bf16* img_norm) {
    const int first = threadIdx.x % 32 * 4;
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = fmaxf(most, fmaxf(fabsf(float(txt_norm[first + i])), fabsf(float(img_norm[first + i]))));
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
    return 11.3137085f * most;
}
