// euler_step: out = x + dt * velocity;  guide: out = negative + guidance * (positive - negative)
//
//   all tensors [tokens, channels] bf16, row strides ld_*; out of euler_step may be x; dt is one bf16 value
//
// Mapping   a thread takes one value: 4096 x 128 values once a step are no time.
// Rounding  as the reference does. euler_step: dt is bf16, the product is rounded, the sum is in f32 and then rounded.
//           guide: difference, product and sum are rounded each.
//           Source: diffusers `FlowMatchEulerDiscreteScheduler.step`; the guidance line of its pipeline in bf16.
// Bytes     tokens * channels * 6.   4096 x 128: 3.1 MB
// Bound     launch latency
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) euler_step_bf16(const bf16* x, long long ld_x, const bf16* velocity, long long ld_velocity,
                                                                  bf16* out, long long ld_out, int rows, int cols, const bf16* dt_value) {
    const float dt = __bfloat162float(*dt_value);
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float step = round_to_bf16(__fmul_rn(dt, __bfloat162float(velocity[row * ld_velocity + column])));
        out[row * ld_out + column] = __float2bfloat16_rn(__fadd_rn(__bfloat162float(x[row * ld_x + column]), step));
    });
}

extern "C" __global__ void __launch_bounds__(256) guide_bf16(const bf16* positive, long long ld_positive, const bf16* negative, long long ld_negative,
                                                             bf16* out, long long ld_out, int rows, int cols, float guidance) {
    for_each_run<1>(rows, cols, [=](long long row, int column) {
        const float from = __bfloat162float(negative[row * ld_negative + column]);
        const float difference = round_to_bf16(__fsub_rn(__bfloat162float(positive[row * ld_positive + column]), from));
        const float product = round_to_bf16(__fmul_rn(guidance, difference));
        out[row * ld_out + column] = __float2bfloat16_rn(__fadd_rn(from, product));
    });
}
