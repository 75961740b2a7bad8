// inpaint_blend: out = mask * x + (1 - mask) * (sigma * noise + (1 - sigma) * image)
//
//   x, noise, image, out  [tokens, channels] bf16, row strides ld_*; out may be x
//   mask                  [tokens] bf16, ld_mask values from one to the next
//   sigma                 one f32 value: near 1 it is what decides how much of the image there is
//
// Mapping   a thread takes one value: 4096 x 128 values once a step take next to no time.
// Rounding  once, at the store.
// Bytes     tokens * channels * 8.   4096 x 128: 4.2 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    inpaint_blend_bf16(const bf16* x, long long ld_x, const bf16* noise, long long ld_noise, const bf16* image,
                       long long ld_image, const bf16* mask, long long ld_mask, bf16* out, long long ld_out, int rows,
                       int cols, const float* sigma_value) {
    const float sigma = *sigma_value;
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float repainted = __bfloat162float(mask[row * ld_mask]);
        const float noisy = sigma * __bfloat162float(noise[row * ld_noise + column]) +
                            (1.0f - sigma) * __bfloat162float(image[row * ld_image + column]);
        const float value = __bfloat162float(x[row * ld_x + column]);
        out[row * ld_out + column] = __float2bfloat16_rn(repainted * value + (1.0f - repainted) * noisy);
    });
}
