// Shared code of the attention kernels: the rows of tokens, the keys that a query sees, and exp2.

#pragma once
#include "common.cuh"

namespace attention {

// exp2(x); -inf gives 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The rows of one sample: token t is in row t + (t < txt ? to_txt : to_img).
struct SampleRows {
    int txt;
    int to_txt;
    int to_img;

    // Rows of a tensor without the first `skipped` ones.
    __device__ __forceinline__ SampleRows(int sample, int batch, int txt, int img, int skipped)
        : txt(txt), to_txt(sample * txt - skipped), to_img(batch * txt + sample * img - txt - skipped) {}

    __device__ __forceinline__ int row(int token) const { return token + (token < txt ? to_txt : to_img); }

    // Returns true if the rows of `tokens` tokens are contiguous.
    __device__ __forceinline__ bool are_one_run(int first, int tokens) const {
        return first >= txt || first + tokens <= txt;
    }
};

// Returns the number of keys that the query at `token` sees: the first ones of its sample. `keys` is the causal mask's,
// 0 without a mask.
__device__ __forceinline__ int visible_keys(int token, int tokens, int keys) {
    return keys == 0 ? tokens : min(token + 1, keys);
}

}  // namespace attention
