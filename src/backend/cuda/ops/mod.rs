//! One launcher for each op: which kernel it starts, with which arguments, and what it needs.

mod adaln;
mod attention;
mod attention_generic;
mod conv2d;
mod conv2d_hopper;
pub(crate) mod conv2d_input;
mod elementwise;
mod gated_add;
mod gated_add_adaln;
mod group_norm;
mod linear;
mod norm_conv2d;
mod projection;
mod qk_norm_rope;
pub(crate) mod quantise;
mod rms_norm;
mod rows;
mod sampler;
mod swiglu;
