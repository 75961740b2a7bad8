// conv2d: 3 x 3 convolution for Hopper, + bias + residual: stride 1 and zeros around the image, or stride 2 and zeros
// after the last row and column; see conv2d_sm90a.cuh
#include "conv2d_sm90a.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The shapes: taps, tile width, tile height, outputs, stages of pixels, stages of weights, stride.
CONV2D(conv2d_bf16_16x16x128_sm90, 3, 16, 16, 128, 2, 5)
CONV2D(conv2d_bf16_16x8x128_sm90, 3, 16, 8, 128, 4, 6)
CONV2D(conv2d_bf16_32x8x8_sm90, 3, 32, 8, 8, 5, 15)
CONV2D(conv2d_halve_bf16_16x8x128_sm90, 3, 16, 8, 128, 3, 5, 2)

#endif
