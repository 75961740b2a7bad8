// conv2d: 3 x 3 convolution for Hopper, + bias + residual: stride 1 and zeros around the image, or stride 2 and zeros
// after the last row and column; see conv2d_sm90a.cuh, and conv2d_narrow_sm90a.cuh for at most 64 outputs
#include "conv2d_narrow_sm90a.cuh"
#include "conv2d_sm90a.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The shapes: taps, tile width, tile height, stages of pixels, stages of weights, stride.
CONV2D(conv2d_bf16_16x16x128_sm90, 3, 16, 16, 2, 5)
CONV2D(conv2d_bf16_16x8x128_sm90, 3, 16, 8, 4, 6)
CONV2D(conv2d_halve_bf16_16x8x128_sm90, 3, 16, 8, 3, 5, 2)

// Up to 8, 32 and 64 outputs: outputs, stages of weights.
CONV2D_NARROW(conv2d_bf16_32x16x8_sm90, 8, 18)
CONV2D_NARROW(conv2d_bf16_32x16x32_sm90, 32, 14)
CONV2D_NARROW(conv2d_bf16_32x16x64_sm90, 64, 8)

#endif
