// concat: rows of many tensors, one under the other
//
//   parts   tensors [rows of each, cols] element, each with a row stride, which come with the launch
//   out     [sum of rows, cols], row stride ld_out
//
// Of a few tensors the driver copies each. Tokens that are kept while others are computed are runs of rows, dozens of
// them, whose keys and values are copied in each block: there launches are what takes time, not bytes.
//
// Mapping   one row of `blockDim.x` threads for each row of out, 16 bytes a thread at once; each finds its tensor among
//           the ends of all
// Needs     16-byte aligned rows, cols % 8 == 0
// Bytes     4 * rows * cols.   1344 x 3072: 16.5 MB
// Bound     HBM. 16.5 MB at 4.8 TB/s (H200) = 3.4 us
// Measured  not by itself, only in `flux bench live/ live/reuse`
#include "common.cuh"

// `PARTS` in backend/cuda/ops/concat.rs. A launch takes 4 KB of arguments at most.
static constexpr int PARTS = 240;

struct Parts {
    const element* from[PARTS];
    int stride[PARTS];
    int end[PARTS];  // the row of out behind its last; of parts that are not there, that behind all
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
