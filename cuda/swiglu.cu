// swiglu: out = silu(gate) * up
//
//   gate   [tokens, mlp]  element, row stride ld_gate
//   up     [tokens, mlp]  element, row stride ld_up
//   out    [tokens, mlp]  element, row stride ld_out; may be gate
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
// Needs     mlp % 8 == 0 and rows 16-byte aligned. Otherwise `_any`: one value at a time.
// Rounding  once, at the store.
// Bytes     tokens * mlp * 6.   4608 x 9216: 255 MB
// Bound     HBM. 255 MB at 4.8 TB/s (H200) = 53 us
// Measured  68.6 us at 4608 x 9216 in rows of 27648, 3.71 TB/s, 77% of bound; composed 116 us; H200, driver 580.159,
//           CUDA 13.0; `flux bench ops/`
#include "common.cuh"

template <int N>
__device__ __forceinline__ void swiglu(const element* gate, long long ld_gate, const element* up, long long ld_up,
                                       element* out, long long ld_out, int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float g[N], u[N];
        load(gate + row * ld_gate + column, g);
        load(up + row * ld_up + column, u);
#pragma unroll
        for (int i = 0; i < N; i++) g[i] = silu(g[i]) * u[i];
        store(out + row * ld_out + column, g);
    });
}

extern "C" __global__ void __launch_bounds__(256)
    swiglu(const element* gate, long long ld_gate, const element* up, long long ld_up, element* out, long long ld_out,
           int rows, int cols) {
    swiglu<8>(gate, ld_gate, up, ld_up, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256)
    swiglu_any(const element* gate, long long ld_gate, const element* up, long long ld_up, element* out,
               long long ld_out, int rows, int cols) {
    swiglu<1>(gate, ld_gate, up, ld_up, out, ld_out, rows, cols);
}
