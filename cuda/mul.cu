// mul: out = x * y
//
//   x      [rows, cols]  element, row stride ld_x
//   y      [rows, cols]  element, row stride ld_y; 0 lets one row serve all
//   out    [rows, cols]  element, row stride ld_out; may be x
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
// Needs     cols % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     rows * cols * 6.   4608 x 3072: 84.9 MB
// Bound     HBM. 84.9 MB at 4.8 TB/s (H200) = 17.7 us
#include "elementwise.cuh"

extern "C" __global__ void __launch_bounds__(256) mul(const element* x, long long ld_x, const element* y,
                                                      long long ld_y, element* out, long long ld_out, int rows,
                                                      int cols) {
    combine<8, true>(x, ld_x, y, ld_y, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256)
    mul_any(const element* x, long long ld_x, const element* y, long long ld_y, element* out, long long ld_out,
            int rows, int cols) {
    combine<1, true>(x, ld_x, y, ld_y, out, ld_out, rows, cols);
}
