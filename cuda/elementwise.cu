// silu: out = x / (1 + exp(-x));  add: out = x + y;  mul: out = x * y;  scale_shift: out = (1 + scale) * x + shift
//
//   x      [rows, cols]  bf16, row stride ld_x
//   y      [rows, cols]  bf16, row stride ld_y; 0 lets one row serve all
//   scale, shift [cols]  bf16
//   out    [rows, cols]  bf16, row stride ld_out; may be x
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
// Needs     cols % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     rows * cols * 2 per matrix read or written.   add, 4608 x 3072: 84.9 MB
// Bound     HBM. 84.9 MB at 4.8 TB/s (H200) = 17.7 us
// Measured  add 24.5 us at 4608 x 3072, 3.46 TB/s, 72% of bound; H200, driver 580.159, CUDA 13.0; tests/bench/runs/2026-11-21-h200
// Tried
#include "common.cuh"

template <int N>
__device__ __forceinline__ void silu_rows(const bf16* x, long long ld_x, bf16* out, long long ld_out, int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N];
        load(x + row * ld_x + column, a);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = silu(a[i]);
        store(out + row * ld_out + column, a);
    });
}

template <int N, bool PRODUCT>
__device__ __forceinline__ void combine(const bf16* x, long long ld_x, const bf16* y, long long ld_y, bf16* out, long long ld_out, int rows,
                                        int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N], b[N];
        load(x + row * ld_x + column, a);
        load(y + row * ld_y + column, b);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = PRODUCT ? a[i] * b[i] : a[i] + b[i];
        store(out + row * ld_out + column, a);
    });
}

template <int N>
__device__ __forceinline__ void scale_shift(const bf16* x, long long ld_x, const bf16* scale, const bf16* shift, bf16* out, long long ld_out,
                                            int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N], s[N], b[N];
        load(x + row * ld_x + column, a);
        load(scale + column, s);
        load(shift + column, b);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = (1.0f + s[i]) * a[i] + b[i];
        store(out + row * ld_out + column, a);
    });
}

extern "C" __global__ void __launch_bounds__(256) silu_bf16(const bf16* x, long long ld_x, bf16* out, long long ld_out, int rows, int cols) {
    silu_rows<8>(x, ld_x, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) silu_bf16_any(const bf16* x, long long ld_x, bf16* out, long long ld_out, int rows, int cols) {
    silu_rows<1>(x, ld_x, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) add_bf16(const bf16* x, long long ld_x, const bf16* y, long long ld_y, bf16* out, long long ld_out,
                                                           int rows, int cols) {
    combine<8, false>(x, ld_x, y, ld_y, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) add_bf16_any(const bf16* x, long long ld_x, const bf16* y, long long ld_y, bf16* out,
                                                               long long ld_out, int rows, int cols) {
    combine<1, false>(x, ld_x, y, ld_y, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) mul_bf16(const bf16* x, long long ld_x, const bf16* y, long long ld_y, bf16* out, long long ld_out,
                                                           int rows, int cols) {
    combine<8, true>(x, ld_x, y, ld_y, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) mul_bf16_any(const bf16* x, long long ld_x, const bf16* y, long long ld_y, bf16* out,
                                                               long long ld_out, int rows, int cols) {
    combine<1, true>(x, ld_x, y, ld_y, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) scale_shift_bf16(const bf16* x, long long ld_x, const bf16* scale, const bf16* shift, bf16* out,
                                                                   long long ld_out, int rows, int cols) {
    scale_shift<8>(x, ld_x, scale, shift, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256) scale_shift_bf16_any(const bf16* x, long long ld_x, const bf16* scale, const bf16* shift, bf16* out,
                                                                       long long ld_out, int rows, int cols) {
    scale_shift<1>(x, ld_x, scale, shift, out, ld_out, rows, cols);
}
