// Kernels that convert weights and images between their host and device layouts.
//
//   from_f32, from_f16, from_bf16   n plain values, rounded to nearest even
//   place_weight               from [rows, channels, taps] dense -> to [to_rows, ld_to], columns ordered (tap,
//                              channel); zeros elsewhere
//   to_rgb8                    x [rows, cols] element, row stride ld_x -> out [rows, cols] u8: round_half_even(255 *
//                              clamp(x / 2 + 1 / 2)); the byte after the last is set to 1 if a value is NaN, and
//                              unchanged otherwise
//   from_rgb8                  n bytes -> n element values, 2 * (byte / 255) - 1 in f32, rounded to nearest even
//
// Mapping   grid-stride over values; the copy over the bus takes longer.
// Bytes     from_f32: 6 per value;  to_rgb8, from_rgb8: 3 per value
#include "common.cuh"

static __device__ __forceinline__ long long thread_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ __forceinline__ long long thread_count() { return (long long)gridDim.x * blockDim.x; }

extern "C" __global__ void __launch_bounds__(256) from_f32(const float* from, element* to, long long n) {
    for (long long i = thread_index(); i < n; i += thread_count()) to[i] = to_plain(from[i]);
}

extern "C" __global__ void __launch_bounds__(256) from_f16(const __half* from, element* to, long long n) {
    for (long long i = thread_index(); i < n; i += thread_count()) to[i] = to_plain(__half2float(from[i]));
}

extern "C" __global__ void __launch_bounds__(256) from_bf16(const bf16* from, element* to, long long n) {
    for (long long i = thread_index(); i < n; i += thread_count()) to[i] = to_plain(__bfloat162float(from[i]));
}

extern "C" __global__ void __launch_bounds__(256)
    place_weight(const element* from, element* to, int rows, int channels, int taps, int to_rows, long long ld_to) {
    const long long cols = (long long)channels * taps, n = to_rows * ld_to;
    for (long long i = thread_index(); i < n; i += thread_count()) {
        const long long row = i / ld_to, column = i % ld_to;
        const bool inside = row < rows && column < cols;
        const long long tap = column / channels, channel = column % channels;
        to[i] = inside ? from[(row * channels + channel) * taps + tap] : to_plain(0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256) from_rgb8(const unsigned char* from, element* to, long long n) {
    for (long long i = thread_index(); i < n; i += thread_count())
        to[i] = to_element(__fsub_rn(__fmul_rn(2.0f, __fdiv_rn(float(from[i]), 255.0f)), 1.0f));
}

extern "C" __global__ void __launch_bounds__(256)
    to_rgb8(const element* x, long long ld_x, unsigned char* out, int rows, int cols) {
    const long long n = (long long)rows * cols;
    for (long long i = thread_index(); i < n; i += thread_count()) {
        const float value = to_float(x[i / cols * ld_x + i % cols]);
        // Several threads may store this byte; all store the same.
        if (isnan(value)) out[n] = 1;
        // For a NaN and a number, fmaxf returns the number.
        const float unit = fminf(fmaxf(__fadd_rn(__fmul_rn(value, 0.5f), 0.5f), 0.0f), 1.0f);
        out[i] = (unsigned char)__float2int_rn(__fmul_rn(unit, 255.0f));
    }
}
