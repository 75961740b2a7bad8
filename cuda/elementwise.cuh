// Shared code of ops with one or two operands: silu.cu, relu.cu, softcap.cu, and add.cu and mul.cu.
#pragma once

#include "common.cuh"

// out = f(x); a run is read before it is written, so out may be x.
template <int N, class F>
__device__ __forceinline__ void map_values(const element* x, long long ld_x, element* out, long long ld_out,
                                           int rows, int cols, F f) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N];
        load(x + row * ld_x + column, a);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = f(a[i]);
        store(out + row * ld_out + column, a);
    });
}

// out = x * y if PRODUCT, x + y otherwise.
template <int N, bool PRODUCT>
__device__ __forceinline__ void combine(const element* x, long long ld_x, const element* y, long long ld_y,
                                        element* out, long long ld_out, int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float a[N], b[N];
        load(x + row * ld_x + column, a);
        load(y + row * ld_y + column, b);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = PRODUCT ? a[i] * b[i] : a[i] + b[i];
        store(out + row * ld_out + column, a);
    });
}
