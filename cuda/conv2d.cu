// im2col: gathers the pixels under the kernel into rows; the convolution is then a GEMM with the weight
//
//   x      [rows * width, channels]     element, row stride ld_x: rows of pixels from `first_y` on, as many as the
//          output pixels read. The image has `height` rows, including a halo of `above` rows at the top and some at the
//          bottom, which have no output pixels. With `halvings` 1 the image is twice as high and wide as x: each pixel
//          of x is a square of two by two
//   out    [rows, taps * channels]      element, row stride ld_out, for output pixels first_row .. first_row + rows;
//          columns ordered (ky, kx, channel), zeros outside the image and in columns taps * channels .. ld_out
//
// Mapping   a block copies one tap of a tile of output pixels, a thread runs of 8 channels (16 bytes). Neighbouring
//           blocks copy the taps of one tile, so that only the first of them reads its input from HBM.
// Needs     channels % 8 == 0 and rows of x 16-byte aligned. Otherwise `_any`: a thread gathers a run of eight columns,
//           of any taps and channels. Rows of out are 16-byte aligned.
// Bytes     rows * taps * channels * 2 written + the input read.   1048576 x 9 x 128: 2.4 GB + 0.27 GB
// Bound     HBM. 2.7 GB at 4.8 TB/s (H200) = 560 us, in pieces of 256 MiB
// Measured  with its GEMM, 3 x 3, us (TFLOP/s): 256 x 256, 512 -> 512: 653 (474); 512 x 512, 512 -> 512: 2632 (470);
//           256 -> 256: 921 (336); 1024 x 1024, 256 -> 256: 3884 (319); 256 -> 128: 3305 (187); 128 -> 128: 1657 (187);
//           H200, driver 580.159, CUDA 13.0; tests/bench/runs/2026-11-21-h200
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    im2col(const element* x, long long ld_x, element* out, long long ld_out, int first_row, int rows, int channels,
           int height, int width, int kernel, int stride, int pad_before, int out_width, int above, int first_y,
           int halvings) {
    const int taps = kernel * kernel;
    const int row = blockIdx.x / taps * blockDim.y + threadIdx.y, tap = blockIdx.x % taps;
    if (row >= rows) return;
    const int out_pixel = first_row + row;
    const int y = above + out_pixel / out_width * stride + tap / kernel - pad_before;
    const int x_pixel = out_pixel % out_width * stride + tap % kernel - pad_before;
    const bool inside = y >= 0 && y < height && x_pixel >= 0 && x_pixel < width;
    const element* from =
        x + ((long long)((y >> halvings) - first_y) * (width >> halvings) + (x_pixel >> halvings)) * ld_x;
    element* to = out + (long long)row * ld_out + (long long)tap * channels;
    const int end = tap == taps - 1 ? (int)(ld_out - (long long)tap * channels) : channels;
    for (int column = threadIdx.x * 8; column < end; column += blockDim.x * 8) {
        float values[8] = {};
        if (inside && column < channels) load(from + column, values);
        store(to + column, values);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    im2col_any(const element* x, long long ld_x, element* out, long long ld_out, int first_row, int rows, int channels,
               int height, int width, int kernel, int stride, int pad_before, int out_width, int above, int first_y,
               int halvings) {
    for_each_run<8>(rows, (int)ld_out, [=](long long row, int column) {
        const int out_pixel = first_row + (int)row;
        const int y = above + out_pixel / out_width * stride - pad_before;
        const int x_pixel = out_pixel % out_width * stride - pad_before;
        int channel = column % channels, ky = column / channels / kernel, kx = column / channels % kernel;
        float values[8] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at_y = y + ky, at_x = x_pixel + kx;
            if (ky < kernel && at_y >= 0 && at_y < height && at_x >= 0 && at_x < width) {
                const long long from = (long long)((at_y >> halvings) - first_y) * (width >> halvings);
                values[i] = to_float(x[(from + (at_x >> halvings)) * ld_x + channel]);
            }
            if (++channel < channels) continue;
            channel = 0;
            if (++kx == kernel) kx = 0, ky++;
        }
        store(out + row * ld_out + column, values);
    });
}
