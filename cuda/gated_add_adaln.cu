// gated_add_adaln: out = x + gate * y;  h = (1 + scale) * layer_norm(out) + shift
// gated_add_adaln_e4m3: with h quantized for fp8 matrix multiplications (see e4m3.cuh), without writing bf16 first
// gated_add_adaln_int8: with h quantized to integers, groups of columns rotated (see int8.cuh)
//
//   x      [rows, dim]  element, row stride ld_x
//   y      [rows, dim]  element, row stride ld_y
//   out    [rows, dim]  element, row stride ld_out; may be x
//   h      [rows, dim]  element, row stride ld_h; quantized [rows, ld_h], zeros after dim
//   h_scales [rows]     f32, if h is quantized
//   gate, shift, scale  [dim]: one each for text rows (row < txt_rows) and for image rows
//
// Mapping   one block per row; a thread holds up to 4 chunks of 8 values, chunk i at thread + i * threads. All 16-byte
//           loads of x, y and gate are issued before the first value is used. The sum stays in registers in f32; both
//           passes (mean, variance) and h are computed from it. 3072: 128 threads, 3 chunks. x and y are read, and out
//           is written, as lines that leave the caches first, because the next op reads h. Rows of up to 3072 have a
//           kernel that holds 3 chunks, in fewer registers.
// Needs     dim % 8 == 0, dim <= 8192, rows and vectors 16-byte aligned. Otherwise the launcher composes.
// Rounding  once, at each store: h is computed from the unrounded sum. Before quantization, h is rounded to an element,
//           so that the result equals that of gated_add_adaln and quantize or quantize_int8.
// Bytes     rows * dim * 8 + 6 * dim * 2.   4608 x 3072: 113 MB
// Bound     HBM. 113 MB at 4.8 TB/s (H200) = 23.6 us
// Measured  32.6 us at 4608 x 3072, 3.47 TB/s, 72% of bound; gated_add and adaln separately 45.2 us, all composed 66.8
//           us; gated_add_adaln_e4m3 only within a step, gated_add_adaln_int8 not measured; H200, driver 580.159, CUDA
//           13.0; `flux bench ops/`
#include "int8.cuh"
#include "layer_norm.cuh"
#ifndef ELEMENT_F16
#include "e4m3.cuh"
#endif

__device__ __forceinline__ uint4 load_once(const element* from) { return __ldcs(reinterpret_cast<const uint4*>(from)); }

// Calls write(i, chunk, values) with chunk `chunk` of h, the thread's i-th.
template <int CHUNKS, class Write>
__device__ __forceinline__ void gated_add_adaln(const element* x, long long ld_x, const element* y, long long ld_y,
                                                element* out, long long ld_out, const element* txt_gate,
                                                const element* txt_shift, const element* txt_scale,
                                                const element* img_gate, const element* img_shift,
                                                const element* img_scale, int txt_rows, int dim, float eps,
                                                Write write) {
    const long long row = blockIdx.x;
    const bool is_txt = row < txt_rows;
    const element* gate = is_txt ? txt_gate : img_gate;
    const element* shift = is_txt ? txt_shift : img_shift;
    const element* scale = is_txt ? txt_scale : img_scale;
    const element *x_row = x + row * ld_x, *y_row = y + row * ld_y;
    element* out_row = out + row * ld_out;
    const int chunks = dim / 8;

    uint4 raw_x[CHUNKS], raw_y[CHUNKS], raw_gate[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        // Zeros past the row's end add nothing to the sum.
        raw_x[i] = raw_y[i] = raw_gate[i] = make_uint4(0, 0, 0, 0);
        if (chunk < chunks) {
            raw_x[i] = load_once(x_row + chunk * 8);
            raw_y[i] = load_once(y_row + chunk * 8);
            raw_gate[i] = *reinterpret_cast<const uint4*>(gate + chunk * 8);
        }
    }
    float values[CHUNKS][8];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        float b[8], g[8];
        unpack(raw_x[i], values[i]);
        unpack(raw_y[i], b);
        unpack(raw_gate[i], g);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            values[i][j] += g[j] * b[j];
            sum += values[i][j];
        }
        if (chunk < chunks) __stcs(reinterpret_cast<uint4*>(out_row + chunk * 8), pack(values[i]));
    }
    const float mean = block_sum(sum) / dim;
    const float rstd = rstd_of_row(values, chunks, mean, dim, eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        if (chunk >= chunks) break;
        float s[8], b[8];
        load(scale + chunk * 8, s);
        load(shift + chunk * 8, b);
#pragma unroll
        for (int j = 0; j < 8; j++) s[j] = (1.0f + s[j]) * ((values[i][j] - mean) * rstd) + b[j];
        write(i, chunk, s);
    }
}

// Concurrent blocks of gated_add_adaln_3072 per multiprocessor, limited by registers: with 10, an H200 holds all rows
// of 512 x 512 pixels.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
static constexpr int SHORT_BLOCKS = 8;
#else
static constexpr int SHORT_BLOCKS = 10;
#endif

#define GATED_ADD_ADALN(NAME, CHUNKS, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                                                         \
        NAME(const element* x, long long ld_x, const element* y, long long ld_y, element* out, long long ld_out,      \
             element* h, long long ld_h, const element* txt_gate, const element* txt_shift,                           \
             const element* txt_scale, const element* img_gate, const element* img_shift, const element* img_scale,   \
             int txt_rows, int dim, float eps) {                                                                      \
        element* h_row = h + blockIdx.x * ld_h;                                                                       \
        gated_add_adaln<CHUNKS>(x, ld_x, y, ld_y, out, ld_out, txt_gate, txt_shift, txt_scale, img_gate, img_shift,   \
                                img_scale, txt_rows, dim, eps,                                                        \
                                [=](int, int chunk, const float (&values)[8]) { store(h_row + chunk * 8, values); }); \
    }

GATED_ADD_ADALN(gated_add_adaln, MAX_CHUNKS, 256)
GATED_ADD_ADALN(gated_add_adaln_3072, 3, 128, SHORT_BLOCKS)

#ifndef ELEMENT_F16
extern "C" __global__ void __launch_bounds__(256)
    gated_add_adaln_e4m3(const element* x, long long ld_x, const element* y, long long ld_y, element* out,
                         long long ld_out, e4m3* h, long long ld_h, float* h_scales, const element* txt_gate,
                         const element* txt_shift, const element* txt_scale, const element* img_gate,
                         const element* img_shift, const element* img_scale, int txt_rows, int dim, float eps) {
    uint4 chunks[MAX_CHUNKS] = {};
    gated_add_adaln<MAX_CHUNKS>(x, ld_x, y, ld_y, out, ld_out, txt_gate, txt_shift, txt_scale, img_gate, img_shift,
                                img_scale, txt_rows, dim, eps,
                                [&](int i, int, const float (&values)[8]) { chunks[i] = pack(values); });
    quantize_row(chunks, ld_h / 8, h + blockIdx.x * ld_h, h_scales + blockIdx.x);
}
#endif

extern "C" __global__ void __launch_bounds__(256)
    gated_add_adaln_int8(const element* x, long long ld_x, const element* y, long long ld_y, element* out,
                         long long ld_out, int8_t* h, long long ld_h, float* h_scales, const element* txt_gate,
                         const element* txt_shift, const element* txt_scale, const element* img_gate,
                         const element* img_shift, const element* img_scale, int txt_rows, int dim, float eps,
                         int group) {
    uint4 chunks[MAX_CHUNKS] = {};
    gated_add_adaln<MAX_CHUNKS>(x, ld_x, y, ld_y, out, ld_out, txt_gate, txt_shift, txt_scale, img_gate, img_shift,
                                img_scale, txt_rows, dim, eps,
                                [&](int i, int, const float (&values)[8]) { chunks[i] = pack(values); });
    int8::quantize_row(chunks, group, ld_h / 8, h + blockIdx.x * ld_h, h_scales + blockIdx.x);
}
