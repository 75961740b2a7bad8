//! One launcher for each op: which kernel it launches, with which arguments, and what that needs. If an op has more
//! files, their names begin with its name.

mod adaln;
mod add;
mod attention;
mod attention_512;
mod attention_hopper;
mod attention_softmax;
mod concat;
mod conv2d;
pub(crate) mod conv2d_input;
mod conv2d_sm90a;
pub(crate) mod dequantise;
mod elementwise;
mod euler_step;
mod gated_add;
mod gated_add_adaln;
mod group_norm;
mod guide;
mod inpaint_blend;
mod layer_norm;
mod linear;
mod low_rank;
mod mul;
mod norm_conv2d;
mod patchify;
mod project;
mod qk_norm_rope;
pub(crate) mod quantise;
mod rms_norm;
mod rope;
mod scale_shift;
mod silu;
mod swiglu;
mod unpatchify;
mod upsample;
mod upsample_conv2d;
