// What add.cu and mul.cu share.
#pragma once

#include "common.cuh"

// out = x * y where PRODUCT, x + y otherwise.
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
