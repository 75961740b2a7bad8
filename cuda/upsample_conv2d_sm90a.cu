// upsample_conv2d: 3 x 3 convolution for Hopper of an image that repeats every pixel four times, + bias; see
// conv2d_sm90a.cuh, and conv2d_narrow_sm90a.cuh for at most 64 outputs. Its weights are sums of the 3 x 3 ones,
// computed by collapse_taps.cu.
#include "conv2d_narrow_sm90a.cuh"
#include "conv2d_sm90a.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The shapes: taps, tile width, tile height, stages of pixels, stages of weights.
CONV2D(upsample_conv2d_bf16_16x16x128_sm90, 2, 16, 16, 3, 3)
CONV2D(upsample_conv2d_bf16_16x8x128_sm90, 2, 16, 8, 4, 7)

// Outputs, stages of weights, taps.
CONV2D_NARROW(upsample_conv2d_bf16_32x16x64_sm90, 64, 8, 2)

#endif
