//! Launchers, one for each op: the choice of the kernel, its arguments, and their checks. They know nothing about
//! models; shapes are checked by [`crate::tensor::Tensor`]. If an op has several files, their names begin with its
//! name. To start reading, see `add`.

mod adaln;
mod add;
mod all_gather;
mod all_reduce;
mod all_to_all;
mod attention;
mod attention_512;
pub mod attention_e4m3;
mod attention_hopper;
mod attention_softmax;
mod broadcast;
mod ceiling;
mod concat;
mod conv2d;
pub(crate) mod conv2d_input;
mod conv2d_output;
mod conv2d_sm90a;
mod conv2d_taps;
mod dense_block;
pub(crate) mod dequantize;
mod elementwise;
mod euler_step;
mod factors;
mod gated_add;
mod gated_add_adaln;
mod group_norm;
mod guide;
mod halo;
mod inpaint_blend;
mod layer_norm;
mod leaky_relu;
mod linear;
mod linear_quantized;
mod low_rank;
mod mul;
mod norm_conv2d;
#[cfg(test)]
mod occupancy;
mod patchify;
mod pixel_shuffle;
mod project;
mod project_attention;
mod project_tiles;
mod qk_norm_rope;
pub(crate) mod quantize;
mod relu;
mod rms_norm;
mod rope;
mod scale_shift;
mod silu;
mod softcap;
mod swiglu;
mod unpatchify;
mod upsample;
mod upsample_conv2d;
