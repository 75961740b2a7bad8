// unscale: out = x / scale, a scale for each row
//
//   x      [rows, cols]  bf16, row stride ld_x
//   scale  [rows]        f32, not 0
//   out    [rows, cols]  bf16, row stride ld_out
//
// For addends of a sum of e4m3 that has no scales yet: see cuda/project_sm90a.cu.
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row.
// Needs     cols % 8 == 0 and rows 16-byte aligned.
// Rounding  once, at the store.
// Bytes     rows * cols * 4.   27648 x 32: 3.5 MB
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    unscale(const element* x, long long ld_x, const float* scale, element* out, long long ld_out, int rows, int cols) {
    for_each_run<8>(rows, cols, [&](long long row, int column) {
        float a[8];
        load(x + row * ld_x + column, a);
        const float of_row = scale[row];
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] /= of_row;
        store(out + row * ld_out + column, a);
    });
}
