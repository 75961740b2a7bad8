// unpatchify: packed latents to VAE latents, with x * std + mean
//
//   x          [height * width, 4 * channels]  element, row stride ld_x
//   mean, std  [4 * channels]                  f32
//   out        [2 height * 2 width, channels]  element, dense: column 4 c + 2 dy + dx of token (y, x) is channel c of
//              pixel (2 y + dy, 2 x + dx)
//
// Mapping   a thread per written value: there are 32 channels of a latent, and one call per image.
// Rounding  once, at the store.
// Bytes     height * width * channels * 16.   64 x 64 x 32: 2.1 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    unpatchify(const element* x, long long ld_x, const float* mean, const float* std, element* out, int height,
               int width, int channels) {
    for_each_run<1>(4 * height * width, channels, [=](long long row, int column) {
        const long long out_y = row / (2 * width), out_x = row % (2 * width);
        const int from = 4 * column + 2 * (int)(out_y & 1) + (int)(out_x & 1);
        const float value = to_float(x[((out_y >> 1) * width + (out_x >> 1)) * ld_x + from]);
        out[row * channels + column] = to_element(value * std[from] + mean[from]);
    });
}
