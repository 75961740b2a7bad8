// concat: concatenates the rows of many tensors
//
//   parts   tensors [rows of each, cols] element, each with a row stride, passed as launch parameters
//   out     [sum of rows, cols], row stride ld_out
//
// The driver copies each of a few tensors. If only some tokens are recomputed, the cached ones are dozens of runs of
// rows, with keys and values that are copied in each block: there launches take the time, not bytes.
//
// Mapping   one row of `blockDim.x` threads for each row of out, 16 bytes per thread at once; each finds its tensor
//           among the ends of all
// Needs     16-byte aligned rows, cols % 8 == 0
// Bytes     4 * rows * cols.   1344 x 3072: 16.5 MB
// Bound     HBM. 16.5 MB at 4.8 TB/s (H200) = 3.4 us
// Measured  only as part of `flux bench live/ live/reuse`
#include "common.cuh"

// `PARTS` in backend/cuda/ops/concat.rs. A launch takes at most 4 KB of arguments.
static constexpr int PARTS = 240;

struct Parts {
    const element* from[PARTS];
    int stride[PARTS];
    int end[PARTS];  // the row of out after its last; for missing parts the last row of all
};

extern "C" __global__ void __launch_bounds__(256)
    concat_rows(const __grid_constant__ Parts parts, element* out, long long ld_out, int rows, int cols) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    int part = 0;
    for (int last = PARTS - 1; part < last;) {
        const int middle = (part + last) / 2;
        if (parts.end[middle] > row) last = middle;
        else part = middle + 1;
    }
    const int first = part > 0 ? parts.end[part - 1] : 0;
    const element* from = parts.from[part] + (long long)(row - first) * parts.stride[part];
    element* to = out + row * ld_out;
    for (int col = threadIdx.x * 8; col < cols; col += blockDim.x * 8)
        *reinterpret_cast<uint4*>(to + col) = *reinterpret_cast<const uint4*>(from + col);
}
