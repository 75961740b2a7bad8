// upsample: every pixel becomes a square of four
//
//   x      [height * width, channels]      element, row stride ld_x
//   out    [2 height * 2 width, channels]  element, dense
//
// Mapping   a thread reads 8 channels of a pixel (16 bytes) and writes them four times.
// Needs     channels % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Bytes     height * width * channels * 10.   512 x 512 x 256: 671 MB
// Bound     HBM. 671 MB at 4.8 TB/s (H200) = 140 us
// Measured  512 x 512 x 256: 169 us, 3.97 TB/s, 83% of bound; H200, driver 580.159, CUDA 13.0;
//           tests/bench/runs/2026-11-21-h200
#include "common.cuh"

template <int N>
__device__ __forceinline__ void upsample(const element* x, long long ld_x, element* out, int height, int width,
                                         int channels) {
    for_each_run<N>(height * width, channels, [=](long long row, int column) {
        float values[N];
        load(x + row * ld_x + column, values);
        const long long pixel_y = row / width, pixel_x = row % width;
        element* corner = out + (2 * pixel_y * 2 * width + 2 * pixel_x) * channels + column;
        store(corner, values);
        store(corner + channels, values);
        store(corner + 2ll * width * channels, values);
        store(corner + (2ll * width + 1) * channels, values);
    });
}

extern "C" __global__ void __launch_bounds__(256)
    upsample(const element* x, long long ld_x, element* out, int height, int width, int channels) {
    upsample<8>(x, ld_x, out, height, width, channels);
}

extern "C" __global__ void __launch_bounds__(256)
    upsample_any(const element* x, long long ld_x, element* out, int height, int width, int channels) {
    upsample<1>(x, ld_x, out, height, width, channels);
}
