// quantize_int8: out * scales = x, groups of its columns rotated, rounded to 8-bit integers with one scale per row; see
// int8.cuh
//
//   x       [rows, cols]        element, row stride ld_x: stored activations, or a weight
//   out     [grid rows, ld_out] int8, dense; zeros after `rows` and `cols`
//   scales  [grid rows]         f32
//
// Mapping   one block per row of out; a thread holds up to 4 chunks of 8 values, so x is read once. A warp holds 256
//           columns, the largest group: rotating them is 16 additions and 5 shuffles per value. 3072: 128 threads, 3
//           chunks.
// Needs     cols % 8 == 0, group a power of 4 up to 256 that divides cols, ld_out <= 4 * 8 * 512, x 16-byte aligned.
//           Otherwise `_any`: one value at a time, x read twice, in 256 threads.
// Bytes     rows * cols * 3.   4608 x 3072: 42.5 MB
// Bound     HBM. 42.5 MB at 3.35 TB/s (H100) = 12.7 us; shuffles, 70.8 M lanes, 32 in a cycle of each of 132 SM at
//           1.755 GHz (H100) = 9.5 us
// Measured  4608 x 3072 in groups of 256 24 us, 1.75 TB/s (H100)
#include "int8.cuh"

static constexpr int MAX_CHUNKS = 4;

extern "C" __global__ void __launch_bounds__(512)
    quantize_int8(const element* x, long long ld_x, int8_t* out, long long ld_out, float* scales, int rows, int cols,
                  int group) {
    const long long row = blockIdx.x;
    const int chunks = row < rows ? cols / 8 : 0;
    const uint4* from = reinterpret_cast<const uint4*>(x + row * ld_x);
    uint4 raw[MAX_CHUNKS];
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        raw[i] = chunk < chunks ? from[chunk] : make_uint4(0, 0, 0, 0);
    }
    int8::quantize_row(raw, group, ld_out / 8, out + row * ld_out, scales + row);
}

extern "C" __global__ void __launch_bounds__(256)
    quantize_int8_any(const element* x, long long ld_x, int8_t* out, long long ld_out, float* scales, int rows,
                      int cols, int group) {
    const long long row = blockIdx.x;
    const element* from = x + row * ld_x;
    int8::quantize_row_any(row < rows ? cols : 0, group, ld_out, out + row * ld_out, scales + row,
                           [=](int i) { return from_plain(from[i]); });
}
