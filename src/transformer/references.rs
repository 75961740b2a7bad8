//! Keys and values that are reused by later passes.
//!
//! In models trained for it, reference tokens see only reference tokens and are modulated as at timestep 0. Their keys
//! and values then depend on the references alone: not on the prompt, the noise, the size or the step. One pass over
//! the references computes the keys and values of every block, and every step of every image reads these.
//!
//! Keys and values of any tokens that a later pass does not recompute may also be kept, see
//! [`ActiveTokens`](crate::ops::ActiveTokens).

use std::iter;
use std::ops::Range;

use super::regions::Regions;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::{Linear, Operand};
use crate::ops::project::borrowed;
use crate::ops::{Attended, Heads, KeyValues, Mask, Projection, Rope, TokenSplit};
use crate::tensor::Tensor;

/// Keys and values of tokens in every block, after the norm and the rotation. With several devices, each has those of
/// its own heads.
pub struct KeyCache<B: Backend> {
    /// Double blocks, then single blocks.
    pub(super) blocks: Vec<KeyValues<B>>,
}

impl<B: Backend> KeyCache<B> {
    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.blocks.first().map_or(0, |block| block.k.rows())
    }

    /// Returns keys and values of block `block`, [tokens, dim / world] each; double blocks come first.
    pub fn block(&self, block: usize) -> Option<&KeyValues<B>> {
        self.blocks.get(block)
    }

    /// Copies the keys and values of some tokens. One copy handles all blocks: with dozens of runs in each block,
    /// launches would take most of the time.
    ///
    /// Errors if memory runs out. Panics if `rows` is empty.
    pub fn copy_rows(&self, rows: &[Range<usize>]) -> Result<Self> {
        let tensors = self.blocks.iter().flat_map(|block| [&block.k, &block.v]);
        let runs: Vec<_> = tensors.flat_map(|tensor| rows.iter().map(|run| tensor.row_view(run.clone()))).collect();
        let all = Tensor::concat_rows(&runs.iter().collect::<Vec<_>>())?;
        let count = rows.iter().map(Range::len).sum::<usize>();
        let at = |place: usize| all.row_view(place * count..(place + 1) * count);
        let of_block = |block: usize| KeyValues { k: at(2 * block), v: at(2 * block + 1) };
        Ok(Self { blocks: (0..self.blocks.len()).map(of_block).collect() })
    }
}

/// Factors of the keys and values of reference images, in every block where they meet the image.
pub struct ReferenceWeights<B: Backend> {
    /// Tokens of each reference, and its factor [1, columns of the own heads]; `None` for 1.
    references: Vec<(usize, Option<Tensor<B>>)>,
}

impl<B: Backend> ReferenceWeights<B> {
    /// Creates the factors of references with these numbers of tokens. Keys have `cols` columns on this device.
    ///
    /// Errors if memory runs out.
    pub fn new(backend: &B, references: impl IntoIterator<Item = (usize, f32)>, cols: usize) -> Result<Self> {
        let factor = |(tokens, weight): (usize, f32)| {
            let row = (weight != 1.0).then(|| backend.upload(&vec![weight; cols], 1, cols)).transpose()?;
            Ok((tokens, row))
        };
        Ok(Self { references: references.into_iter().map(factor).collect::<Result<_>>()? })
    }

    /// Returns keys or values of one sample with the rows of references multiplied; the first reference begins at
    /// `first`.
    fn apply(&self, x: &Tensor<B>, first: usize) -> Result<Tensor<B>> {
        let (mut runs, mut scaled, mut start) = (Vec::new(), Vec::new(), first);
        for (tokens, factor) in &self.references {
            let run = start..start + tokens;
            start = run.end;
            if let Some(factor) = factor {
                scaled.push(x.copy_runs(std::slice::from_ref(&run))?.mul(factor)?);
                runs.push(run);
            }
        }
        if runs.is_empty() {
            return Ok(x.row_view(0..x.rows()));
        }
        x.with_runs(&runs, &Tensor::concat_rows(&scaled.iter().collect::<Vec<_>>())?)
    }
}

/// The tokens of a sequence and their positions.
pub struct Sequence<'a, B: Backend> {
    /// The tokens, and this device's share of them.
    pub split: TokenSplit,
    /// A row for each token of a sample on this device.
    pub rope: &'a Rope<B>,
    /// Factors of keys and values of the references in the sequence.
    pub weights: Option<&'a ReferenceWeights<B>>,
    /// Regions of the image; there is one sample on one device then.
    pub regions: Option<&'a Regions>,
}

impl<'a, B: Backend> Sequence<'a, B> {
    /// Creates a sequence without regions whose references have no factors.
    pub fn new(split: TokenSplit, rope: &'a Rope<B>) -> Self {
        Self { split, rope, weights: None, regions: None }
    }
}

impl<B: Backend> Sequence<'_, B> {
    /// Returns `true` if there are references among the tokens of all devices.
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

/// The use of the keys and values of a block's rows.
pub enum Keys<'a, B: Backend> {
    /// Attention reads only them.
    Rows,
    /// Attention reads only them, and some rows are recorded.
    Recorded(&'a mut Recorder<B>),
    /// Attention also reads cached ones.
    Cached(&'a KeyValues<B>),
}

/// Records keys and values, block by block.
pub struct Recorder<B: Backend> {
    /// The rows to record.
    rows: Vec<Range<usize>>,
    blocks: Vec<KeyValues<B>>,
}

impl<B: Backend> Recorder<B> {
    /// Creates a recorder of all `rows` rows.
    pub(super) fn all(rows: usize) -> Self {
        Self::new(iter::once(0..rows).collect())
    }

    /// Creates a recorder of some rows.
    pub(super) fn new(rows: Vec<Range<usize>>) -> Self {
        Self { rows, blocks: Vec::new() }
    }

    /// Copies k and v, because they are columns of a much larger tensor.
    fn record(&mut self, k: &Tensor<B>, v: &Tensor<B>) -> Result<()> {
        self.blocks.push(copied(k, v, &self.rows)?);
        Ok(())
    }

    pub(super) fn into_cache(self) -> KeyCache<B> {
        KeyCache { blocks: self.blocks }
    }
}

/// Copies some rows of keys and values.
fn copied<B: Backend>(k: &Tensor<B>, v: &Tensor<B>, rows: &[Range<usize>]) -> Result<KeyValues<B>> {
    Ok(KeyValues { k: k.copy_runs(rows)?, v: v.copy_runs(rows)? })
}

/// [`Keys`] of all blocks.
pub(super) enum AllKeys<'a, B: Backend> {
    Rows,
    Recorded(&'a mut Recorder<B>),
    Cached(&'a KeyCache<B>),
}

impl<'a, B: Backend> AllKeys<'a, B> {
    /// Reads cached keys as well, if there are any.
    pub(super) fn from_cache(cached: Option<&'a KeyCache<B>>) -> Self {
        cached.map_or(Self::Rows, Self::Cached)
    }

    pub(super) fn block(&mut self, block: usize) -> Keys<'_, B> {
        match self {
            Self::Rows => Keys::Rows,
            Self::Recorded(recorder) => Keys::Recorded(recorder),
            Self::Cached(cache) => Keys::Cached(&cache.blocks[block]),
        }
    }
}

/// Runs the projection before a block's attention, as [`Tensor::project_attention`], and attention over the rows of
/// all devices. During attention, each device has its share of the heads of all tokens.
pub(super) fn attend<B: Backend>(
    parts: Vec<(Operand<B>, &Linear<B>)>,
    heads: &Heads<'_, B>,
    (split, sequence): (&TokenSplit, &Sequence<'_, B>),
    keys: Keys<'_, B>,
) -> Result<Attended<B>> {
    let Sequence { weights, regions, .. } = *sequence;
    if matches!(keys, Keys::Rows) && split.world() == 1 && weights.is_none() && regions.is_none() {
        return Tensor::project_attention(parts, heads);
    }
    let Projection { kvq, mlp } = Tensor::project(&borrowed(&parts), Some(heads))?;
    drop(parts); // frees memory for the next tensors
    let head_dim = heads.norm[0].q.cols();
    let ([k, v, q], layout) = (Tensor::all_to_all_heads(kvq, head_dim, split)?, split.whole());
    let [k, v] = match weights {
        Some(weights) => [weights.apply(&k, layout.txt_rows())?, weights.apply(&v, layout.txt_rows())?],
        None => [k, v],
    };
    let attn = match (keys, regions) {
        (Keys::Rows, None) => q.attention(&k, &v, head_dim, layout, Mask::None),
        (Keys::Rows, Some(regions)) => regions.attention(q, [&k, &v], head_dim, layout),
        (Keys::Recorded(recorder), None) => {
            recorder.record(&k, &v)?;
            q.attention(&k, &v, head_dim, layout, Mask::None)
        }
        (Keys::Cached(cached), None) => q.attention_cached(&k, &v, cached, head_dim, layout),
        (_, Some(_)) => Err(Error::new("regions cannot be used with cached keys")),
    };
    Ok(Attended { attn: attn?.all_to_all_rows(split)?, mlp })
}
