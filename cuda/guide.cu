// guide: out = negative + guidance * (positive - negative)
//
//   all tensors [tokens, channels] element, row strides ld_*
//
// Mapping   a thread computes one value: 4096 x 128 values once per step take negligible time.
// Rounding  as the reference does: difference, product and sum are rounded each. Source: the guidance line of the
//           diffusers pipeline in bf16.
// Bytes     tokens * channels * 6.   4096 x 128: 3.1 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    guide(const element* positive, long long ld_positive, const element* negative, long long ld_negative, element* out,
          long long ld_out, int rows, int cols, float guidance) {
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float from = to_float(negative[row * ld_negative + column]);
        const float difference = round_to_element(__fsub_rn(to_float(positive[row * ld_positive + column]), from));
        const float product = round_to_element(__fmul_rn(guidance, difference));
        out[row * ld_out + column] = to_element(__fadd_rn(from, product));
    });
}
