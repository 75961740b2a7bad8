//! The middle block of the VAE: attention over all pixels between two residual blocks.

use super::ResnetBlock;
use super::grid::Grid;
use super::layers::GroupNorm;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::{Mask, TokenLayout};
use crate::tensor::Tensor;

/// A residual block, attention, and a residual block.
pub struct MidBlock<B: Backend> {
    resnets: [ResnetBlock<B>; 2],
    attention: Option<Attention<B>>,
}

/// Attention with one head as wide as the channels.
struct Attention<B: Backend> {
    channels: usize,
    group_norm: GroupNorm<B>,
    to_q: Projection<B>,
    to_k: Projection<B>,
    to_v: Projection<B>,
    to_out: Projection<B>,
}

struct Projection<B: Backend> {
    weight: Linear<B>, // [channels, channels]
    bias: Tensor<B>,   // [1, channels]
}

impl<B: Backend> Projection<B> {
    fn load(weights: &Weights<'_, B>, name: &str, channels: usize) -> Result<Self> {
        Ok(Self {
            weight: weights.linear(name, channels, channels)?,
            bias: weights.vector(&format!("{name}.bias"), channels)?,
        })
    }

    fn forward(&self, x: &Tensor<B>) -> Result<Tensor<B>> {
        x.linear(&self.weight, Some(&self.bias))
    }
}

impl<B: Backend> Attention<B> {
    fn load(weights: &Weights<'_, B>, channels: usize, groups: usize) -> Result<Self> {
        Ok(Self {
            channels,
            group_norm: GroupNorm::load(weights, "group_norm", channels, groups)?,
            to_q: Projection::load(weights, "to_q", channels)?,
            to_k: Projection::load(weights, "to_k", channels)?,
            to_v: Projection::load(weights, "to_v", channels)?,
            to_out: Projection::load(weights, "to_out.0", channels)?,
        })
    }

    fn forward(&self, x: Grid<B>) -> Result<Grid<B>> {
        let h = self.group_norm.forward(&x)?;
        let (own, band, q) = (h.rows(), x.band(), self.to_q.forward(&h)?);
        // A band needs keys and values of the whole image. Rows are exchanged once, and projected on all devices.
        let h = match x.rows() {
            Some(rows) => h.all_gather_rows(&rows)?,
            None => h,
        };
        let (k, v, all) = (self.to_k.forward(&h)?, self.to_v.forward(&h)?, h.rows());
        drop(h);
        // A query sees all keys, so the layout's choice of its own keys does not matter.
        let layout = TokenLayout { references: all - own, ..TokenLayout::single(own) }.image_queries();
        let layout = if own == all { TokenLayout::single(own) } else { layout };
        let attn = q.attention(&k, &v, self.channels, layout, Mask::None)?;
        drop((k, v));
        Ok(Grid::with_band(x.pixels.add(&self.to_out.forward(&attn)?)?, x.height, x.width, band))
    }
}

impl<B: Backend> MidBlock<B> {
    /// Loads the block.
    pub fn load(weights: &Weights<'_, B>, channels: usize, groups: usize, attention: bool) -> Result<Self> {
        let resnet = |i: usize| ResnetBlock::load(&weights.at("resnets").at(i), channels, channels, groups);
        Ok(Self {
            resnets: [resnet(0)?, resnet(1)?],
            attention: attention.then(|| Attention::load(&weights.at("attentions.0"), channels, groups)).transpose()?,
        })
    }

    /// Runs the block on x [height * width, channels] -> the same shape.
    pub fn forward(&self, x: Grid<B>) -> Result<Grid<B>> {
        let mut x = self.resnets[0].forward(x)?;
        if let Some(attention) = &self.attention {
            x = attention.forward(x)?;
        }
        self.resnets[1].forward(x)
    }
}
