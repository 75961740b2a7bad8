// upsample_conv2d: 3 x 3 convolution for Hopper of an image that repeats every pixel four times, + bias; see
// conv2d_sm90a.cuh. Its weights are sums of the 3 x 3 ones, which `upsample_conv2d_taps_bf16` makes.
#include "conv2d_sm90a.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The shapes: taps, tile width, tile height, outputs, stages of pixels, stages of weights.
CONV2D(upsample_conv2d_bf16_16x16x128_sm90, 2, 16, 16, 128, 3, 3)
CONV2D(upsample_conv2d_bf16_16x8x128_sm90, 2, 16, 8, 128, 4, 7)

// weight [outs, 9 * channels], row stride ld_weight -> out [4 * outs, 4 * channels], dense: for place (py, px) of a
// square and output o, row (2 py + px) * outs + o holds taps (dy, dx) ordered so. channels % 8 == 0.
extern "C" __global__ void __launch_bounds__(256)
    upsample_conv2d_taps_bf16(const bf16* weight, long long ld_weight, bf16* out, int outs, int channels) {
    for_each_run<8>(16 * outs, channels, [=](long long row, int column) {
        const int tap = row % 4, o = row / 4 % outs, place = row / 4 / outs;
        // In an even place tap 0 is ky 0, and tap 1 is ky 1 and 2. In an odd place tap 0 is ky 0 and 1, and tap 1 is
        // ky 2.
        const auto first = [](int odd, int tap) { return tap == 0 ? 0 : 1 + odd; };
        const auto last = [](int odd, int tap) { return tap == 0 ? odd : 2; };
        float sums[8] = {};
        for (int ky = first(place / 2, tap / 2); ky <= last(place / 2, tap / 2); ky++)
            for (int kx = first(place % 2, tap % 2); kx <= last(place % 2, tap % 2); kx++) {
                float values[8];
                load(weight + o * ld_weight + (ky * 3 + kx) * channels + column, values);
#pragma unroll
                for (int i = 0; i < 8; i++) sums[i] += values[i];
            }
        store(out + row * channels + column, sums);
    });
}

#endif
