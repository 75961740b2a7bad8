//! Keys and values of reference images that are made once, for models that are trained so.
//!
//! In such a model reference tokens see reference tokens only, and are modulated as at timestep 0. So what they become
//! depends on the references alone: not on the prompt, the noise, the size or the step. One pass over them makes the
//! keys and values of every block, and every step of every image reads these.

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{KeyValues, Mask, Rope, TokenSplit};
use crate::tensor::Tensor;

/// Keys and values of the reference tokens in every block, after the norm and the rotation. Of several devices, each
/// has those of its own heads.
pub struct ReferenceCache<B: Backend> {
    /// Double blocks, then single blocks.
    pub(super) blocks: Vec<KeyValues<B>>,
}

impl<B: Backend> ReferenceCache<B> {
    /// Tokens of all references.
    pub fn tokens(&self) -> usize {
        self.blocks.first().map_or(0, |block| block.k.rows())
    }

    /// Keys and values of block `block`, [tokens, dim / world] each; double blocks come first.
    pub fn block(&self, block: usize) -> Option<&KeyValues<B>> {
        self.blocks.get(block)
    }
}

/// The tokens of a sequence and their positions.
pub struct Sequence<'a, B: Backend> {
    /// The tokens, and which of them this device has.
    pub split: TokenSplit,
    /// A row for each token of a sample that this device has.
    pub rope: &'a Rope<B>,
}

impl<B: Backend> Sequence<'_, B> {
    /// Whether references are among the tokens of all devices.
    pub(super) fn has_references(&self) -> bool {
        self.split.whole().references > 0
    }
}

// A derived implementation would demand a backend that is `Copy`.
impl<B: Backend> Clone for Sequence<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Sequence<'_, B> {}

/// What becomes of the keys and values of the rows of a block.
pub enum Keys<'a, B: Backend> {
    /// Attention reads them alone.
    Rows,
    /// The same, and they are recorded.
    Recorded(&'a mut Vec<KeyValues<B>>),
    /// Attention reads cached ones as well.
    Cached(&'a KeyValues<B>),
}

/// The same for all blocks.
pub(super) enum AllKeys<'a, B: Backend> {
    Rows,
    Recorded(Vec<KeyValues<B>>),
    Cached(&'a ReferenceCache<B>),
}

impl<B: Backend> AllKeys<'_, B> {
    pub(super) fn of_block(&mut self, block: usize) -> Keys<'_, B> {
        match self {
            Self::Rows => Keys::Rows,
            Self::Recorded(blocks) => Keys::Recorded(blocks),
            Self::Cached(cache) => Keys::Cached(&cache.blocks[block]),
        }
    }
}

/// Attention of a block: k, v [split.own().rows(), dim], q [split.own().query_rows(), dim] -> as q. In between, each
/// device has its share of the heads of all tokens.
pub(super) fn attend<B: Backend>(
    kvq: [Tensor<B>; 3],
    head_dim: usize,
    split: &TokenSplit,
    keys: Keys<'_, B>,
) -> Result<Tensor<B>> {
    let ([k, v, q], layout) = (Tensor::all_to_all_heads(kvq, head_dim, split)?, split.whole());
    let attn = match keys {
        Keys::Rows => q.attention(&k, &v, head_dim, layout, Mask::None),
        Keys::Recorded(blocks) => {
            // Copies, because k and v are columns of a tensor that holds far more.
            blocks.push(KeyValues { k: Tensor::concat_rows(&[&k])?, v: Tensor::concat_rows(&[&v])? });
            q.attention(&k, &v, head_dim, layout, Mask::None)
        }
        Keys::Cached(cached) => q.attention_cached(&k, &v, cached, head_dim, layout),
    };
    attn?.all_to_all_rows(split)
}
