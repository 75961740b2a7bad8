// silu: out = x / (1 + exp(-x))
//
//   x      [rows, cols]  element, row stride ld_x
//   out    [rows, cols]  element, row stride ld_out; may be x
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
// Needs     cols % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     rows * cols * 4.   4608 x 3072: 56.6 MB
// Bound     HBM. 56.6 MB at 4.8 TB/s (H200) = 11.8 us
#include "elementwise.cuh"

extern "C" __global__ void __launch_bounds__(256)
    silu(const element* x, long long ld_x, element* out, long long ld_out, int rows, int cols) {
    map_values<8>(x, ld_x, out, ld_out, rows, cols, [](float a) { return silu(a); });
}

extern "C" __global__ void __launch_bounds__(256)
    silu_any(const element* x, long long ld_x, element* out, long long ld_out, int rows, int cols) {
    map_values<1>(x, ld_x, out, ld_out, rows, cols, [](float a) { return silu(a); });
}
