// gated_add: out = x + gate * y
//
//   x      [tokens, dim]  element, row stride ld_x
//   gate   [dim]          element
//   y      [tokens, dim]  element, row stride ld_y
//   out    [tokens, dim]  element, row stride ld_out; may be x
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
// Needs     dim % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     tokens * dim * 6.   4608 x 3072: 84.9 MB
// Bound     HBM. 84.9 MB at 4.8 TB/s (H200) = 17.7 us
// Measured  24.7 us at 4608 x 3072, 3.44 TB/s, 72% of bound; composed 40.7 us; H200, driver 580.159, CUDA 13.0;
//           tests/bench/runs/2026-11-21-h200
#include "common.cuh"

template <int N>
__device__ __forceinline__ void gated_add(const element* x, long long ld_x, const element* gate, const element* y,
                                          long long ld_y, element* out, long long ld_out, int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N], g[N], b[N];
        load(x + row * ld_x + column, a);
        load(y + row * ld_y + column, b);
        load(gate + column, g);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] += g[i] * b[i];
        store(out + row * ld_out + column, a);
    });
}

extern "C" __global__ void __launch_bounds__(256)
    gated_add(const element* x, long long ld_x, const element* gate, const element* y, long long ld_y, element* out,
              long long ld_out, int rows, int cols) {
    gated_add<8>(x, ld_x, gate, y, ld_y, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256)
    gated_add_any(const element* x, long long ld_x, const element* gate, const element* y, long long ld_y, element* out,
                  long long ld_out, int rows, int cols) {
    gated_add<1>(x, ld_x, gate, y, ld_y, out, ld_out, rows, cols);
}
