// unscale: out = x / scale, a scale for each row, of up to four matrices
//
//   x      [rows, cols]  bf16, row stride ld_x
//   scale  [rows]        f32, not 0
//   out    [rows, cols]  bf16, row stride ld_out
//
// What is beside a sum of e4m3 that has no scales yet: see cuda/project_sm90a.cu.
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; blockIdx.y is the matrix.
// Needs     cols % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     rows * cols * 4.   27648 x 32: 3.5 MB
#include "common.cuh"

constexpr int MATRICES = 4;

struct Matrices {
    const element* x[MATRICES];
    long long ld_x[MATRICES];
    const float* scale[MATRICES];
    element* out[MATRICES];
    long long ld_out[MATRICES];
    int rows[MATRICES];
    int cols[MATRICES];
};

template <int N>
__device__ __forceinline__ void unscale(const Matrices& of) {
    const int i = blockIdx.y;
    for_each_run<N>(of.rows[i], of.cols[i], [&](long long row, int column) {
        float a[N];
        load(of.x[i] + row * of.ld_x[i] + column, a);
        const float scale = of.scale[i][row];
#pragma unroll
        for (int j = 0; j < N; j++) a[j] /= scale;
        store(of.out[i] + row * of.ld_out[i] + column, a);
    });
}

extern "C" __global__ void __launch_bounds__(256) unscale(const __grid_constant__ Matrices of) { unscale<8>(of); }

extern "C" __global__ void __launch_bounds__(256) unscale_any(const __grid_constant__ Matrices of) { unscale<1>(of); }
