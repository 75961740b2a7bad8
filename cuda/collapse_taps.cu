// collapse_taps: converts the weight of a 3 x 3 convolution of an image with every pixel repeated four times to 2 x 2
// taps of the image itself, for each place of a square
//
//   weight  [outs, 9 * channels]      element, row stride ld_weight: columns (ky, kx, channel)
//   out     [4 * outs, 4 * channels]  element, dense: for place (py, px) and output o, row (2 py + px) * outs + o has
//           taps ordered (dy, dx)
//
// Mapping   a thread sums runs of 8 channels (16 bytes) of a tap.
// Needs     channels % 8 == 0, ld_weight % 8 == 0
// Rounding  a sum of up to four weights once
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    collapse_taps(const element* weight, long long ld_weight, element* out, int outs, int channels) {
    for_each_run<8>(16 * outs, channels, [=](long long row, int column) {
        const int tap = row % 4, o = row / 4 % outs, place = row / 4 / outs;
        // In an even place tap 0 is k 0, and tap 1 is k 1 and 2. In an odd place tap 0 is k 0 and 1, and tap 1 is k 2.
        const auto is_of = [](int k, int odd, int tap) { return (k > odd) == (tap > 0); };
        float sums[8] = {};
#pragma unroll
        for (int ky = 0; ky < 3; ky++) {
#pragma unroll
            for (int kx = 0; kx < 3; kx++) {
                if (!is_of(ky, place / 2, tap / 2) || !is_of(kx, place % 2, tap % 2)) continue;
                float values[8];
                const element* from = weight + o * ld_weight + (ky * 3 + kx) * channels + column;
                unpack_plain(*reinterpret_cast<const uint4*>(from), values);
#pragma unroll
                for (int i = 0; i < 8; i++) sums[i] += values[i];
            }
        }
        store_plain(out + row * channels + column, sums);
    });
}
