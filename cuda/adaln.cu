// adaln: out = (1 + scale) * layer_norm(x) + shift
//
//   x      [tokens, dim]  element, row stride ld_x
//   shift, scale  [dim]   element: one each for text rows (row < txt_rows) and for image rows
//   out    [tokens, dim]  element, row stride ld_out
//
// Mapping   one block per token; a thread holds up to 4 chunks of 8 values (16-byte loads), chunk i at thread + i *
//           threads, so x is read once and both passes (mean, variance) run from registers in f32. 3072: 128 threads, 3
//           chunks.
// Needs     dim % 8 == 0, dim <= 4 * 8 * 1024, rows and vectors 16-byte aligned. Otherwise `_any`: one value at a time,
//           x read three times, any size and alignment.
// Rounding  once, at the store.
// Bytes     tokens * dim * 2 read + tokens * dim * 2 written + dim * 4.   4608 x 3072: 56.6 MB
// Bound     HBM. 56.6 MB at 4.8 TB/s (H200) = 11.8 us
// Measured  20.5 us at 4608 x 3072, 2.76 TB/s, 58% of bound; composed 31.2 us; H200, driver 580.159, CUDA 13.0;
//           tests/bench/runs/2026-11-21-h200
#include "layer_norm.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    adaln(const element* x, long long ld_x, const element* txt_shift, const element* txt_scale,
          const element* img_shift, const element* img_scale, element* out, long long ld_out, int txt_rows, int dim,
          float eps) {
    const bool is_txt = int(blockIdx.x) < txt_rows;
    layer_norm_vector<true>(x, ld_x, is_txt ? txt_shift : img_shift, is_txt ? txt_scale : img_scale, out, ld_out, dim,
                            eps);
}

extern "C" __global__ void __launch_bounds__(256)
    adaln_any(const element* x, long long ld_x, const element* txt_shift, const element* txt_scale,
              const element* img_shift, const element* img_scale, element* out, long long ld_out, int txt_rows,
              int dim, float eps) {
    const bool is_txt = int(blockIdx.x) < txt_rows;
    layer_norm_any<true>(x, ld_x, is_txt ? txt_shift : img_shift, is_txt ? txt_scale : img_scale, out, ld_out, dim,
                         eps);
}
