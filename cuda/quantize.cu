// quantize: out * scales = x, rounded to e4m3 with one scale per row; see e4m3.cuh
//
//   x       [rows, cols]        bf16, row stride ld_x
//   out     [grid rows, ld_out] e4m3, dense; zeros after `rows` and `cols`
//   scales  [grid rows]         f32
//
// For activations from a kernel that never holds a whole row: attention writes one tile of one head at a time. For
// weights see quantize_weight.cu.
//
// Mapping   one block per row of out; a thread holds up to 4 chunks of 8 values, so x is read once. 3072: 128 threads,
//           3 chunks.
// Needs     cols % 8 == 0, ld_out <= 4 * 8 * 512, x 16-byte aligned. Otherwise `_any`: one value at a time, x read
//           twice.
// Bytes     rows * cols * 3.   4608 x 12288: 170 MB
// Bound     HBM. 170 MB at 4.8 TB/s (H200) = 35 us
// Measured  43 us (3.9 TB/s), standalone on an H200 after a kernel that writes x; docs/kernels-norms.md
#include "e4m3.cuh"

static constexpr int MAX_CHUNKS = 4;

extern "C" __global__ void __launch_bounds__(512)
    quantize_bf16(const bf16* x, long long ld_x, e4m3* out, long long ld_out, float* scales, int rows, int cols) {
    const long long row = blockIdx.x;
    uint4 chunks[MAX_CHUNKS];
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++)
        chunks[i] = load_chunk(x + row * ld_x, threadIdx.x + i * blockDim.x, row < rows ? cols / 8 : 0);
    quantize_row(chunks, ld_out / 8, out + row * ld_out, scales + row);
}

extern "C" __global__ void __launch_bounds__(256)
    quantize_bf16_any(const bf16* x, long long ld_x, e4m3* out, long long ld_out, float* scales, int rows, int cols) {
    const long long row = blockIdx.x;
    const bf16* from = x + row * ld_x;
    quantize_row_any(row < rows ? cols : 0, ld_out, out + row * ld_out, scales + row,
                     [=](int i) { return __bfloat162float(from[i]); });
}
