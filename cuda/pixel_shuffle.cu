// pixel_shuffle: every pixel becomes a square of scale x scale, + the pixel of a base
//
//   x      [height * width, channels * scale * scale]  element, row stride ld_x
//   base   none, or [height * width, channels]         element, row stride ld_base
//   out    [rows, channels]                            element, dense: channel (c * scale + dy) * scale + dx of pixel
//          (y, x) is channel c of pixel (scale * y + dy, scale * x + dx)
//
// Mapping   a thread per written value: images have three channels.
// Rounding  once, at the store.
// Bytes     height * width * channels * scale * scale * 4.   1024 x 1024, x4: 201 MB
// Bound     HBM. 201 MB at 4.8 TB/s (H200) = 42 us
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    pixel_shuffle(const element* x, long long ld_x, const element* base, long long ld_base, element* out, int rows,
                  int channels, int width, int scale) {
    for_each_run<1>(rows, channels, [=](long long row, int column) {
        const long long out_width = (long long)width * scale, y = row / out_width, out_x = row % out_width;
        const long long from = y / scale * width + out_x / scale;
        const int corner = int(y % scale) * scale + int(out_x % scale);
        float value = to_float(x[from * ld_x + (column * scale * scale + corner)]);
        if (base) value += to_float(base[from * ld_base + column]);
        out[row * channels + column] = to_element(value);
    });
}
