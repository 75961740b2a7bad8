// inpaint_blend: out = mask * x + (1 - mask) * (sigma * noise + (1 - sigma) * image)
//
//   x, noise, image, out  [tokens, channels] element, row strides ld_*; out may be x
//   mask                  [tokens] element, stride ld_mask
//   sigma                 one f32 value: the noise level of the image part
//
// Mapping   a thread computes one value: 4096 x 128 values once per step take negligible time.
// Rounding  once, at the store.
// Bytes     tokens * channels * 8.   4096 x 128: 4.2 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    inpaint_blend(const element* x, long long ld_x, const element* noise, long long ld_noise, const element* image,
                  long long ld_image, const element* mask, long long ld_mask, element* out, long long ld_out, int rows,
                  int cols, const float* sigma_value) {
    const float sigma = *sigma_value;
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float repainted = to_float(mask[row * ld_mask]);
        const float noisy = sigma * to_float(noise[row * ld_noise + column]) +
                            (1.0f - sigma) * to_float(image[row * ld_image + column]);
        const float value = to_float(x[row * ld_x + column]);
        out[row * ld_out + column] = to_element(repainted * value + (1.0f - repainted) * noisy);
    });
}
