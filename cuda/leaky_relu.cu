// leaky_relu: out = x, or slope * x where x is negative; NaN stays NaN
//
//   x      [rows, cols]  element, row stride ld_x
//   slope  [cols]        element
//   out    [rows, cols]  element, row stride ld_out; may be x
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
// Needs     cols % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     rows * cols * 4.   1024 x 1024 pixels of 64 channels: 268 MB
// Bound     HBM. 268 MB at 4.8 TB/s (H200) = 56 us
#include "common.cuh"

template <int N>
__device__ __forceinline__ void leaky_relu(const element* x, long long ld_x, const element* slope, element* out,
                                           long long ld_out, int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N], s[N];
        load(x + row * ld_x + column, a);
        load(slope + column, s);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = a[i] < 0.0f ? s[i] * a[i] : a[i];
        store(out + row * ld_out + column, a);
    });
}

extern "C" __global__ void __launch_bounds__(256)
    leaky_relu(const element* x, long long ld_x, const element* slope, element* out, long long ld_out, int rows,
               int cols) {
    leaky_relu<8>(x, ld_x, slope, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256)
    leaky_relu_any(const element* x, long long ld_x, const element* slope, element* out, long long ld_out, int rows,
                   int cols) {
    leaky_relu<1>(x, ld_x, slope, out, ld_out, rows, cols);
}
