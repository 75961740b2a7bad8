// euler_step: out = x + dt * velocity
//
//   all tensors [tokens, channels] bf16, row strides ld_*; out may be x; dt is one bf16 value
//
// Mapping   a thread takes one value: 4096 x 128 values once a step take next to no time.
// Rounding  as the reference does: dt is bf16, the product is rounded, the sum is in f32 and then
//           rounded. Source: diffusers `FlowMatchEulerDiscreteScheduler.step`.
// Bytes     tokens * channels * 6.   4096 x 128: 3.1 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    euler_step_bf16(const bf16* x, long long ld_x, const bf16* velocity, long long ld_velocity, bf16* out,
                    long long ld_out, int rows, int cols, const bf16* dt_value) {
    const float dt = __bfloat162float(*dt_value);
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float step = round_to_bf16(__fmul_rn(dt, __bfloat162float(velocity[row * ld_velocity + column])));
        out[row * ld_out + column] = __float2bfloat16_rn(__fadd_rn(__bfloat162float(x[row * ld_x + column]), step));
    });
}
