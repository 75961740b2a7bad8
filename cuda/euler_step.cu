// euler_step: out = x + dt * velocity
//
//   all tensors [tokens, channels] element, row strides ld_*; out may be x; dt is one element
//
// Mapping   a thread computes one value: 4096 x 128 values once per step take negligible time.
// Rounding  as the reference does: dt is bf16, the product is rounded, the sum is in f32 and then rounded. Source:
//           diffusers `FlowMatchEulerDiscreteScheduler.step`.
// Bytes     tokens * channels * 6.   4096 x 128: 3.1 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    euler_step(const element* x, long long ld_x, const element* velocity, long long ld_velocity, element* out,
               long long ld_out, int rows, int cols, const element* dt_value) {
    const float dt = to_float(*dt_value);
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float step = round_to_element(__fmul_rn(dt, to_float(velocity[row * ld_velocity + column])));
        out[row * ld_out + column] = to_element(__fadd_rn(to_float(x[row * ld_x + column]), step));
    });
}
