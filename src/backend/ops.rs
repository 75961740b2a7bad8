//! `trait Ops`: the ops of a backend.
//!
//! The primitives are required: every backend implements them. The fused ops are provided: their default body is the
//! composition of primitives.

use super::{Device, Group, WeightStore};
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::{
    self, Adaln, Attended, Attention, Conv2d, Convolved, DenseBlock, GatedAddAdaln, GroupNorm, Halo, Heads,
    InpaintBlend, LinearArgs, Norm, Patches, PixelShuffle, Products, Projection, QkNormRope, Rope, RowSplit,
    TokenLayout, TokenSplit,
};
use crate::tensor::Tensor;

/// The ops, one method each, named as in `ops/`. Callers use the methods of [`Tensor`], which check shapes once;
/// backends rely on these checks.
pub trait Ops: Device + Group + WeightStore {
    /// Means and variances of a tensor's channels, if the op that computed the tensor also computed them.
    type ChannelStatistics: Send + Sync;

    /// See [`Tensor::linear`], [`Tensor::linear_add`], [`Tensor::linear_rows`] and [`Tensor::linear_concat`].
    fn linear(&self, args: LinearArgs<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::conv2d`], [`Tensor::conv2d_over`], [`Tensor::conv2d_add`], [`Tensor::norm_conv2d`],
    /// [`Tensor::norm_conv2d_add`] and [`Tensor::upsample_conv2d`].
    fn conv2d(&self, conv2d: Conv2d<'_, Self>) -> Result<Convolved<Self>>;
    /// See [`Tensor::attention`] and [`Tensor::attention_cached`].
    fn attention(&self, attention: Attention<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::layer_norm`].
    fn layer_norm(&self, x: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::rms_norm`].
    fn rms_norm(&self, x: &Tensor<Self>, weight: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::group_norm`].
    fn group_norm(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::rope`].
    fn rope(&self, x: Tensor<Self>, rope: &Rope<Self>, layout: TokenLayout) -> Result<Tensor<Self>>;
    /// See [`Tensor::silu`].
    fn silu(&self, x: Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::relu`].
    fn relu(&self, x: Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::leaky_relu`].
    fn leaky_relu(&self, x: Tensor<Self>, slope: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::softcap`].
    fn softcap(&self, x: Tensor<Self>, cap: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::add`].
    fn add(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::mul`].
    fn mul(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::scale_shift`].
    fn scale_shift(&self, x: Tensor<Self>, scale: &Tensor<Self>, shift: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::concat_rows`].
    fn concat_rows(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
    /// See [`Tensor::concat_cols`].
    fn concat_cols(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
    /// See [`Tensor::upsample`].
    fn upsample(&self, x: &Tensor<Self>, height: usize, width: usize) -> Result<Tensor<Self>>;
    /// See [`Tensor::pixel_shuffle`].
    fn pixel_shuffle(&self, operands: PixelShuffle<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::patchify`].
    fn patchify(&self, patches: Patches<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::unpatchify`].
    fn unpatchify(&self, patches: Patches<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::euler_step`].
    fn euler_step(&self, latents: Tensor<Self>, velocity: &Tensor<Self>, dt: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::inpaint_blend`].
    fn inpaint_blend(&self, operands: InpaintBlend<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::guide`].
    fn guide(&self, positive: &Tensor<Self>, negative: &Tensor<Self>, guidance: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::linear_sum`].
    fn linear_sum(&self, parts: &[(&Tensor<Self>, &Linear<Self>)]) -> Result<Tensor<Self>> {
        ops::linear::compose_sum(self, parts)
    }
    /// See [`Tensor::low_rank`], and [`Tensor::linear_concat`] for weights with factors.
    fn low_rank(&self, products: Products<'_, Self>) -> Result<Tensor<Self>> {
        ops::low_rank::compose(self, products)
    }
    /// See [`Tensor::dense_block`].
    fn dense_block(&self, x: Tensor<Self>, block: &DenseBlock<'_, Self>) -> Result<Tensor<Self>> {
        ops::dense_block::compose(self, x, block)
    }
    /// See [`Tensor::dense_block_sum`].
    fn dense_block_sum(
        &self,
        x: Tensor<Self>,
        blocks: &[DenseBlock<'_, Self>],
        scale: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        ops::dense_block::compose_sum(self, x, blocks, scale)
    }
    /// See [`Tensor::adaln`].
    fn adaln(&self, x: &Tensor<Self>, shift: &Tensor<Self>, scale: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        ops::adaln::compose(self, x, shift, scale, eps)
    }
    /// See [`Tensor::adaln_rows`].
    fn adaln_rows(&self, x: &Tensor<Self>, norms: [Norm<'_, Self>; 2], adaln: Adaln) -> Result<Tensor<Self>> {
        ops::adaln::compose_rows(self, x, norms, adaln)
    }
    /// See [`Tensor::gated_add`].
    fn gated_add(&self, x: Tensor<Self>, gate: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::gated_add::compose(self, x, gate, y)
    }
    /// See [`Tensor::gated_add_adaln`].
    fn gated_add_adaln(&self, operands: GatedAddAdaln<'_, Self>) -> Result<(Tensor<Self>, Operand<Self>)> {
        ops::gated_add_adaln::compose(self, operands)
    }
    /// See [`Tensor::swiglu`].
    fn swiglu(&self, gate: Tensor<Self>, up: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::swiglu::compose(self, gate, up)
    }
    /// See [`Tensor::project`].
    fn project(
        &self,
        parts: &[(&Operand<Self>, &Linear<Self>)],
        heads: Option<&Heads<'_, Self>>,
    ) -> Result<Projection<Self>> {
        ops::project::compose(self, parts, heads)
    }
    /// See [`Tensor::project_attention`].
    fn project_attention(
        &self,
        parts: Vec<(Operand<Self>, &Linear<Self>)>,
        heads: &Heads<'_, Self>,
    ) -> Result<Attended<Self>> {
        ops::project_attention::compose(self, parts, heads)
    }
    /// See [`Tensor::qk_norm_rope`].
    fn qk_norm_rope(&self, operands: QkNormRope<'_, Self>) -> Result<(Tensor<Self>, Tensor<Self>)> {
        ops::qk_norm_rope::compose(self, operands)
    }
    /// See [`Tensor::group_norm_silu`].
    fn group_norm_silu(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        ops::group_norm::compose_silu(self, x, norm)
    }
    /// See [`Tensor::all_to_all_heads`].
    fn all_to_all_heads(&self, kvq: [Tensor<Self>; 3], split: &TokenSplit) -> Result<[Tensor<Self>; 3]> {
        ops::all_to_all::compose_heads(self, kvq, split)
    }
    /// See [`Tensor::all_to_all_rows`].
    fn all_to_all_rows(&self, x: Tensor<Self>, split: &TokenSplit) -> Result<Tensor<Self>> {
        ops::all_to_all::compose_rows(self, x, split)
    }
    /// See [`Tensor::all_gather_rows`].
    fn all_gather_rows(&self, x: Tensor<Self>, rows: &RowSplit) -> Result<Tensor<Self>> {
        ops::all_gather::compose(self, x, rows)
    }
    /// See [`Tensor::swap_halves`].
    fn swap_halves(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::swap::compose(self, x)
    }
    /// See [`Tensor::halo_rows`].
    fn halo_rows(&self, x: &Tensor<Self>, halo: [usize; 2]) -> Result<Halo<Self>> {
        ops::halo::compose(self, x, halo)
    }
    /// See [`Tensor::all_reduce_statistics`].
    fn all_reduce_statistics(
        &self,
        _x: &Tensor<Self>,
        _own: Option<&Self::ChannelStatistics>,
    ) -> Result<Option<Self::ChannelStatistics>> {
        ops::all_reduce::compose(self)
    }
    /// See [`Tensor::broadcast`].
    fn broadcast(&self, x: Option<Tensor<Self>>, shape: [usize; 2]) -> Result<Tensor<Self>> {
        ops::broadcast::compose(self, x, shape)
    }
}
