// rope: out = x with the pairs of each head rotated by the token's position
//
//   x      [rows, heads * 2 * half]  element, row stride ld_x
//   out    the same shape, row stride ld_out; may be x
//   cos, sin  [txt + img, half] f32, row stride ld_table; the table row of a token is its place in its sample: row %
//             txt for text (row < txt_rows), txt + (row - txt_rows) % img for images
//
// A pair (a, b) becomes (a cos - b sin, b cos + a sin). Pairs are columns (2 i, 2 i + 1), or with `halves` (i, i +
// half).
//
// Mapping   a thread per pair, which it reads before it writes it. Only the composition of qk_norm_rope uses this
//           kernel; no model does.
// Rounding  once, at the store.
// Bytes     rows * cols * 4 + tables.   4608 x 3072: 56.6 MB + 2.4 MB
// Bound     HBM. 59 MB at 4.8 TB/s (H200) = 12.3 us
#include "common.cuh"
#include "rope.cuh"

extern "C" __global__ void __launch_bounds__(256)
    rope(const element* x, long long ld_x, element* out, long long ld_out, const float* cos, const float* sin,
         long long ld_table, int rows, int cols, int txt_rows, int txt, int img, int half, int halves) {
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const int token = token_of((int)row, txt_rows, txt, img);
    for (int item = threadIdx.x; item < cols / 2; item += blockDim.x) {
        const int head = item / half, pair = item % half;
        const int first = head * 2 * half + (halves ? pair : 2 * pair), second = halves ? first + half : first + 1;
        const float a = to_float(x[row * ld_x + first]), b = to_float(x[row * ld_x + second]);
        const float c = cos[token * ld_table + pair], s = sin[token * ld_table + pair];
        out[row * ld_out + first] = to_element(a * c - b * s);
        out[row * ld_out + second] = to_element(b * c + a * s);
    }
}
