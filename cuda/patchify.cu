// patchify: VAE latents to packed latents, with (x - mean) / std
//
//   x          [2 height * 2 width, channels]  element, row stride ld_x
//   mean, std  [4 * channels]                  f32
//   out        [height * width, 4 * channels]  element, dense: column 4 c + 2 dy + dx of token (y, x) is channel c of
//              pixel (2 y + dy, 2 x + dx)
//
// Mapping   a thread per written value: there are 32 channels of a latent, and one call per image.
// Rounding  once, at the store.
// Bytes     height * width * channels * 16.   64 x 64 x 32: 2.1 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    patchify(const element* x, long long ld_x, const float* mean, const float* std, element* out, int height, int width,
             int channels) {
    for_each_run<1>(height * width, 4 * channels, [=](long long row, int column) {
        const long long y = 2 * (row / width) + (column >> 1 & 1), pixel_x = 2 * (row % width) + (column & 1);
        const float value = to_float(x[(y * 2 * width + pixel_x) * ld_x + (column >> 2)]);
        out[row * 4 * channels + column] = to_element((value - mean[column]) / std[column]);
    });
}
