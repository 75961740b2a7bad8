//! The ops: one file for each op, with its contract and shape check as a method of [`Tensor`]. Nothing here knows a
//! model or a device; backends implement [`Ops`](crate::backend::Ops). Start with the table below, then `linear`.
//!
//! A fused op has a `compose`, which defines it by simpler ops. A variant (`NAME_add`, `NAME_rows`) is in the file of
//! NAME. Fields of the argument struct of [`Ops`](crate::backend::Ops) methods select the variant.
//!
//! The methods also check that their operands have the right dtype and are on one device. Backends rely on this.
//!
//! The last ops of the table are collectives: all devices of a group call them in the same order, and on one device
//! they return their input.
//!
//! An op with a kernel of its own has the same name in four places: here, in `cuda/`, in `src/backend/cuda/ops/` and in
//! `tests/parity/`.
//!
//! | op | formula | shapes |
//! |---|---|---|
//! | [`linear`](Tensor::linear), [`linear_add`](Tensor::linear_add) | `x W^T + b` (+ residual) | [rows, in], [out, in] -> [rows, out] |
//! | [`linear_rows`](Tensor::linear_rows) | several linears, stacked | |
//! | [`linear_sum`](Tensor::linear_sum) | the sum of several linears | |
//! | [`linear_concat`](Tensor::linear_concat) | linear over concatenated columns | |
//! | [`low_rank`](Tensor::low_rank) | `x W^T + (x down^T) up^T` of several x and W, stacked | [rows, in], [out, in] -> [rows, out] |
//! | [`conv2d`](Tensor::conv2d), [`conv2d_add`](Tensor::conv2d_add), [`conv2d_relu`](Tensor::conv2d_relu), [`conv2d_add_relu`](Tensor::conv2d_add_relu), [`conv2d_leaky_relu`](Tensor::conv2d_leaky_relu) | convolution (+ residual), its activation | [h * w, in] -> [h' * w', out] |
//! | [`conv2d_band`](Tensor::conv2d_band), [`norm_conv2d_band`](Tensor::norm_conv2d_band), [`norm_conv2d_add_band`](Tensor::norm_conv2d_add_band), [`upsample_conv2d_band`](Tensor::upsample_conv2d_band) | convolutions of a band of an image, with a halo instead of zeros | |
//! | [`conv2d_over`](Tensor::conv2d_over) | `conv2d` that may overwrite its input | |
//! | [`upsample_conv2d`](Tensor::upsample_conv2d), [`upsample_conv2d_leaky_relu`](Tensor::upsample_conv2d_leaky_relu) | convolution of the upsampled image | [h * w, in] -> [4 * h * w, out] |
//! | [`dense_block`](Tensor::dense_block) | `x +` the last of several convolutions, each of x and the earlier results | [h * w, c] |
//! | [`dense_block_sum`](Tensor::dense_block_sum) | `x + scale *` the result of several dense blocks | [h * w, c] |
//! | [`attention`](Tensor::attention) | `softmax(q k^T / sqrt(head_dim)) v` per head | [tokens, dim] |
//! | [`attention_cached`](Tensor::attention_cached) | `attention` over cached keys and values as well | [tokens, dim] |
//! | [`adaln`](Tensor::adaln) | `(1 + scale) * layer_norm(x) + shift` | [tokens, dim] |
//! | [`adaln_rows`](Tensor::adaln_rows) | adaln of text rows and of image rows | [tokens, dim] |
//! | [`gated_add`](Tensor::gated_add) | `x + gate * y` | [tokens, dim] |
//! | [`gated_add_adaln`](Tensor::gated_add_adaln) | `gated_add`, then `adaln` of its result | [tokens, dim] |
//! | [`swiglu`](Tensor::swiglu) | `silu(gate) * up` | [tokens, mlp] |
//! | [`project`](Tensor::project) | linear, then `qk_norm_rope` of its columns q and k and `swiglu` of gate and up | [rows, in] -> k, v, q, mlp |
//! | [`project_attention`](Tensor::project_attention) | `project`, then `attention` of its q, k and v | [rows, in] -> [queries, dim], mlp |
//! | [`qk_norm_rope`](Tensor::qk_norm_rope) | `rope(rms_norm(q))` and `rope(rms_norm(k))` | [tokens, dim] |
//! | [`rms_norm`](Tensor::rms_norm), [`layer_norm`](Tensor::layer_norm) | over columns | |
//! | [`group_norm`](Tensor::group_norm), [`group_norm_silu`](Tensor::group_norm_silu) | over pixels and a group of channels | [h * w, channels] |
//! | [`norm_conv2d`](Tensor::norm_conv2d) | `conv2d(silu(group_norm(x)))` | [h * w, in] -> [h' * w', out] |
//! | [`norm_conv2d_add`](Tensor::norm_conv2d_add) | `norm_conv2d` + residual | |
//! | [`rope`](Tensor::rope) | rotation of pairs of columns by position | [tokens, dim] |
//! | [`silu`](Tensor::silu), [`relu`](Tensor::relu), [`leaky_relu`](Tensor::leaky_relu), [`softcap`](Tensor::softcap), [`add`](Tensor::add), [`mul`](Tensor::mul), [`scale_shift`](Tensor::scale_shift) | elementwise | |
//! | [`concat_rows`](Tensor::concat_rows), [`join_rows`](Tensor::join_rows), [`concat_cols`](Tensor::concat_cols) | rows stacked, columns side by side | |
//! | [`copy_runs`](Tensor::copy_runs), [`with_runs`](Tensor::with_runs) | copies runs of rows; replaces runs of rows | |
//! | [`upsample`](Tensor::upsample) | nearest neighbour, doubled height and width | [h * w, c] -> [4 * h * w, c] |
//! | [`pixel_shuffle`](Tensor::pixel_shuffle) | channels -> squares of pixels (+ the base's pixel) | [h * w, c * s * s] -> [h * s * w * s, c] |
//! | [`patchify`](Tensor::patchify) | VAE latents -> packed latents | [4 * h * w, c] -> [h * w, 4 * c] |
//! | [`unpatchify`](Tensor::unpatchify) | packed latents -> VAE latents | [h * w, 4 * c] -> [4 * h * w, c] |
//! | [`euler_step`](Tensor::euler_step), [`guide`](Tensor::guide) | sampler | [tokens, channels] |
//! | [`inpaint_blend`](Tensor::inpaint_blend) | `mask * x + (1 - mask) * (sigma * noise + (1 - sigma) * image)` | [tokens, channels] |
//! | [`all_to_all_heads`](Tensor::all_to_all_heads) | k, v, q of own tokens -> own heads of k, v, q of all tokens | [own rows, dim] -> [rows, dim / world] |
//! | [`all_to_all_rows`](Tensor::all_to_all_rows) | own heads of all queries -> own queries | [rows, dim / world] -> [own rows, dim] |
//! | [`all_gather_rows`](Tensor::all_gather_rows) | rows of all ranks at their places | [own rows, cols] -> [rows, cols] |
//! | [`swap_halves`](Tensor::swap_halves) | x of the rank at the same place in the other half | [rows, cols] |
//! | [`halo_rows`](Tensor::halo_rows) | the last and the first rows of the neighbours | [own rows, cols] -> [above, cols] and [below, cols] |
//! | [`all_reduce_statistics`](Tensor::all_reduce_statistics) | channel statistics of all ranks' pixels | [own pixels, channels] |
//! | [`broadcast`](Tensor::broadcast) | x of rank 0 | [rows, cols] |

pub mod adaln;
pub mod add;
pub mod all_gather;
pub mod all_reduce;
pub mod all_to_all;
pub mod attention;
pub mod broadcast;
pub mod concat;
pub mod conv2d;
pub mod dense_block;
pub mod euler_step;
pub mod gated_add;
pub mod gated_add_adaln;
pub mod group_norm;
pub mod guide;
pub mod halo;
pub mod inpaint_blend;
pub mod layer_norm;
pub mod leaky_relu;
pub mod linear;
pub mod low_rank;
pub mod mul;
pub mod norm_conv2d;
pub mod patchify;
pub mod pixel_shuffle;
pub mod project;
pub mod project_attention;
pub mod qk_norm_rope;
pub mod relu;
pub mod rms_norm;
pub mod rope;
pub mod scale_shift;
pub mod silu;
pub mod softcap;
pub mod swap;
pub mod swiglu;
pub mod unpatchify;
pub mod upsample;
pub mod upsample_conv2d;

pub use crate::active_tokens::ActiveTokens;
pub use crate::token_layout::{Queries, TokenLayout};
pub use crate::token_split::{RowSplit, Sharing, TokenSplit};
pub use attention::{Attention, KeyValues, Mask};
pub use conv2d::{Activation, Conv, Conv2d, Convolved};
pub use dense_block::DenseBlock;
pub use gated_add_adaln::{Adaln, GatedAddAdaln, Norm};
pub use group_norm::GroupNorm;
pub use halo::Halo;
pub use inpaint_blend::InpaintBlend;
pub use linear::{LinearArgs, Products};
pub use patchify::Patches;
pub use pixel_shuffle::PixelShuffle;
pub use project::{Heads, Projection};
pub use project_attention::Attended;
pub use qk_norm_rope::{QkNorm, QkNormRope};
pub use rope::{Pairs, Rope};

#[cfg(doc)]
use crate::tensor::Tensor;
