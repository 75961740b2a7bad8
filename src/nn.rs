//! Layers of the models: weights on a backend, under the names that the checkpoint gives them.
//!
//! [`Weights`] is a view of the files under a key prefix, as the checkpoint nests its names:
//! `weights.at("transformer_blocks.0").at("attn")`. Models load [`Linear`] and [`ConvKernel`] layers through it, which
//! only products and convolutions take. [`WeightPolicy`] decides in how many bits a weight is stored; no model knows of
//! it. [`Layers`] are the layers of a component by their keys, from which another one is made that shares their
//! weights.

mod adapted;
mod blocks;
mod layers;
mod merged;
mod originals;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

pub use blocks::{Blocks, Pass};
pub use layers::Layers;

use crate::backend::{Backend, Storage, WeightStore};
use crate::error::{Error, Result};
use crate::files::own_models::OWN_MODELS;
use crate::files::{TensorFiles, TensorView};
use crate::tensor::Tensor;

/// The weight of a linear layer, [out, in], in the form in which its backend multiplies it.
pub struct Linear<B: WeightStore> {
    backend: B,
    name: String,
    weight: Arc<B::Weight>,
    rows: usize,
    cols: usize,
    low_rank: Option<Arc<LowRank<B>>>,
}

/// What is added to the product with a weight [out, in]: the product with `up down`.
pub struct LowRank<B: WeightStore> {
    /// [rank, in]
    pub down: Linear<B>,
    /// [out, rank]
    pub up: Linear<B>,
}

// A derived implementation would demand a weight that is `Clone`.
impl<B: Backend> Clone for Linear<B> {
    /// A handle to the same weight.
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            name: self.name.clone(),
            weight: Arc::clone(&self.weight),
            low_rank: self.low_rank.clone(),
            ..*self
        }
    }
}

impl<B: Backend> Linear<B> {
    /// Loads a matrix whose rows are the parts' rows, one part under the other. `name` is for messages.
    ///
    /// Errors when the parts differ in columns, or the backend cannot store them.
    pub fn load(backend: &B, name: impl Into<String>, parts: &[TensorView], storage: Storage) -> Result<Self> {
        Self::load_with((backend, None), name, parts, storage)
    }

    /// The same, uploaded with others.
    ///
    /// Errors as [`Linear::load`].
    pub fn load_with(
        (backend, uploads): (&B, Option<&B::Uploads>),
        name: impl Into<String>,
        parts: &[TensorView],
        storage: Storage,
    ) -> Result<Self> {
        Self::load_by(backend, name.into(), parts, || backend.load_weight(parts, storage, uploads))
    }

    fn load_by(
        backend: &B,
        name: String,
        parts: &[TensorView],
        load: impl FnOnce() -> Result<B::Weight>,
    ) -> Result<Self> {
        let shape = shape_of(&name, parts)?;
        Ok(Self::of_weight(backend, name, shape, load()?))
    }

    /// Layers whose products are summed ([`Tensor::linear_sum`]), each as [`Linear::load_with`] loads it.
    ///
    /// Errors as [`Linear::load`].
    pub fn load_summed(
        (backend, uploads): (&B, Option<&B::Uploads>),
        names: Vec<String>,
        weights: &[Vec<TensorView>],
        storage: Storage,
    ) -> Result<Vec<Self>> {
        Self::load_summed_by(backend, names, weights, || backend.load_summed_weights(weights, storage, uploads))
    }

    fn load_summed_by(
        backend: &B,
        names: Vec<String>,
        weights: &[Vec<TensorView>],
        load: impl FnOnce() -> Result<Vec<B::Weight>>,
    ) -> Result<Vec<Self>> {
        let shapes =
            names.iter().zip(weights).map(|(name, parts)| shape_of(name, parts)).collect::<Result<Vec<_>>>()?;
        let layers = names.into_iter().zip(shapes).zip(load()?);
        Ok(layers.map(|((name, shape), weight)| Self::of_weight(backend, name, shape, weight)).collect())
    }

    fn of_weight(backend: &B, name: String, [rows, cols]: [usize; 2], weight: B::Weight) -> Self {
        Self { backend: backend.clone(), name, weight: Arc::new(weight), rows, cols, low_rank: None }
    }

    /// The layer with another weight of its shape.
    pub(crate) fn with_weight(&self, weight: B::Weight) -> Self {
        Self { weight: Arc::new(weight), low_rank: None, ..self.clone() }
    }

    /// The layer with `up down` added to its product, in the form in which products beside its weight read them.
    ///
    /// Errors when memory runs out.
    pub fn with_low_rank(&self, low_rank: LowRank<B>) -> Result<Self> {
        Ok(self.with_factors(self.backend.factors_beside(self, low_rank)?))
    }

    /// The same, of factors that are in that form, or are to be merged.
    fn with_factors(&self, low_rank: LowRank<B>) -> Self {
        Self { low_rank: Some(Arc::new(low_rank)), ..self.clone() }
    }

    /// What is added to its product, if anything. Ops see to that; backends compute with the weight alone, but for
    /// [`Ops::low_rank`](crate::backend::Ops::low_rank) and [`Ops::project`](crate::backend::Ops::project).
    pub fn low_rank(&self) -> Option<&LowRank<B>> {
        self.low_rank.as_deref()
    }

    /// The key in the checkpoint, without `.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Where it lives.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend's own form. For backends.
    pub fn weight(&self) -> &B::Weight {
        &self.weight
    }
}

/// Rows and columns of a matrix whose rows are the parts' rows, one part under the other.
fn shape_of(name: &str, parts: &[TensorView]) -> Result<[usize; 2]> {
    let (rows, cols) = (parts.iter().map(TensorView::rows).sum(), parts.first().map_or(0, TensorView::cols));
    if parts.is_empty() || parts.iter().any(|part| part.cols() != cols) {
        return Err(Error::new(format!("the parts of `{name}` differ in columns")));
    }
    Ok([rows, cols])
}

/// An activation [rows, cols] that only products read. A backend may have brought it to the form in which they read it,
/// such as a quantised one.
pub struct Operand<B: Backend>(Tensor<B>);

impl<B: Backend> From<Tensor<B>> for Operand<B> {
    fn from(x: Tensor<B>) -> Self {
        Self(x)
    }
}

impl<B: Backend> Operand<B> {
    /// Tokens.
    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Features.
    pub fn cols(&self) -> usize {
        self.0.cols()
    }

    /// The first `rows` rows and the rest.
    pub fn split_rows(self, rows: usize) -> (Self, Self) {
        let (top, bottom) = self.0.split_rows(rows);
        (Self(top), Self(bottom))
    }

    /// The values; their dtype is the backend's choice. For backends.
    pub fn tensor(&self) -> &Tensor<B> {
        &self.0
    }
}

/// The weight of a convolution, [out, in, kernel, kernel], in the form in which its backend multiplies it.
pub struct ConvKernel<B: WeightStore> {
    backend: B,
    weight: B::ConvWeight,
    rows: usize,
    channels: usize,
    side: usize,
}

impl<B: Backend> ConvKernel<B> {
    /// Loads `view` [out, in, side, side].
    ///
    /// Errors when the view has another shape, or the backend cannot store it.
    pub fn load(backend: &B, view: &TensorView) -> Result<Self> {
        Self::load_with(backend, view, None)
    }

    fn load_with(backend: &B, view: &TensorView, uploads: Option<&B::Uploads>) -> Result<Self> {
        let &[rows, channels, side, width] = view.shape() else {
            return Err(Error::new(format!("a convolution's weight has 4 axes, not {:?}", view.shape())));
        };
        if side != width || side == 0 {
            return Err(Error::new(format!("a convolution's kernel is {side} x {width}, expected a square")));
        }
        Ok(Self { backend: backend.clone(), weight: backend.load_conv_weight(view, uploads)?, rows, channels, side })
    }

    /// Output channels.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Side of the square kernel.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Where it lives.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend's own form. For backends.
    pub fn weight(&self) -> &B::ConvWeight {
        &self.weight
    }
}

/// Decides in how many bits weights are stored; nothing else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPolicy {
    blocks: Storage,
}

impl WeightPolicy {
    /// Stores the transformer's blocks as `backend` was asked to store the weights of large products, and all other
    /// weights in the backend's own type.
    ///
    /// A step spends nearly all of its products in the blocks. The layers around them have few rows or columns, so
    /// little time would be saved there, and their errors would go into every block, or straight into the velocity.
    pub fn of<B: Backend>(backend: &B) -> Self {
        Self { blocks: backend.costs().products }
    }

    /// How the weight `name` is stored.
    pub fn storage(&self, name: &str) -> Storage {
        if Self::may_quantise(name) { self.blocks } else { Storage::Native }
    }

    /// How the weights of the transformer's blocks are stored.
    pub fn blocks(&self) -> Storage {
        self.blocks
    }

    /// Whether files of models in few bits have the matrix `name` in them: those of the transformer's blocks and of the
    /// text encoder's layers. What is around these stays in 16 bits, and so do norms and embeddings.
    pub fn is_quantised_in_files(name: &str) -> bool {
        Self::may_quantise(name) || name.starts_with("model.layers.")
    }

    /// Whether some policy stores the weight `name` in fewer bits.
    pub fn may_quantise(name: &str) -> bool {
        let mut blocks = OWN_MODELS.iter().flat_map(|model| model.layers.blocks);
        blocks.any(|(_, block, _)| name.strip_prefix(block).is_some_and(|rest| rest.starts_with('.')))
    }
}

/// Rows of a tensor of the checkpoint.
#[derive(Clone)]
pub struct TensorSlice {
    /// The tensor's key.
    pub key: String,
    /// The first of the rows, in the tensor.
    pub first: usize,
    /// The rows.
    pub view: TensorView,
}

impl TensorSlice {
    /// Some of the rows.
    pub fn row_range(&self, rows: Range<usize>) -> Self {
        Self { key: self.key.clone(), first: self.first + rows.start, view: self.view.row_range(rows) }
    }
}

/// Where the layers of a component come from.
enum WeightOrigin<'a, B: Backend> {
    /// The files.
    Files,
    /// The files; what is loaded is added here.
    Recorded(&'a RefCell<Layers<B>>),
    /// Layers that are there already.
    Layers(&'a Layers<B>),
}

impl<B: Backend> Clone for WeightOrigin<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for WeightOrigin<'_, B> {}

/// The weights under a key prefix, for a backend.
pub struct Weights<'a, B: Backend> {
    backend: &'a B,
    files: &'a TensorFiles,
    policy: WeightPolicy,
    prefix: String,
    source: WeightOrigin<'a, B>,
    blocks: Arc<Blocks<B>>,
    /// The block that the weights belong to, if any.
    block: Option<usize>,
    uploads: Option<&'a B::Uploads>,
}

impl<'a, B: Backend> Weights<'a, B> {
    /// All weights of `files`.
    pub fn new(backend: &'a B, files: &'a TensorFiles) -> Self {
        let (policy, blocks) = (WeightPolicy::of(backend), Arc::default());
        Self {
            backend,
            files,
            policy,
            prefix: String::new(),
            source: WeightOrigin::Files,
            blocks,
            block: None,
            uploads: None,
        }
    }

    /// The same weights, where `blocks` says; by default all are resident.
    pub fn with_blocks(self, blocks: Arc<Blocks<B>>) -> Self {
        Self { blocks, ..self }
    }

    /// The same weights, which are uploaded together.
    pub fn with_uploads<'b>(&self, uploads: &'b B::Uploads) -> Weights<'b, B>
    where
        'a: 'b,
    {
        Weights { uploads: Some(uploads), ..self.at_key(self.prefix.clone()) }
    }

    /// Where blocks are.
    pub fn blocks(&self) -> &Arc<Blocks<B>> {
        &self.blocks
    }

    /// The same weights, which belong to block `block` in the order of use.
    pub fn of_block(self, block: usize) -> Self {
        Self { block: Some(block), ..self }
    }

    /// The same weights; every linear layer and vector that is loaded is added to `layers` too.
    pub fn recorded<'b>(&self, layers: &'b RefCell<Layers<B>>) -> Weights<'b, B>
    where
        'a: 'b,
    {
        Weights { source: WeightOrigin::Recorded(layers), ..self.at_key(self.prefix.clone()) }
    }

    /// The same weights, but linear layers and vectors are those of `layers`, which share their memory.
    pub fn of_layers<'b>(&self, layers: &'b Layers<B>) -> Weights<'b, B>
    where
        'a: 'b,
    {
        Weights { source: WeightOrigin::Layers(layers), ..self.at_key(self.prefix.clone()) }
    }

    /// The backend that weights are loaded to.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// The weights whose keys continue with `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        self.at_key(self.key(name))
    }

    fn at_key(&self, prefix: String) -> Self {
        Self { prefix, blocks: Arc::clone(&self.blocks), ..*self }
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// A tensor as it lies in the file.
    pub fn view(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        self.files.get(&self.key(name), shape)
    }

    /// A tensor as it lies in the file, to be a part of a layer.
    pub fn part(&self, name: &str, shape: &[usize]) -> Result<TensorSlice> {
        Ok(TensorSlice { key: self.key(name), first: 0, view: self.view(name, shape)? })
    }

    /// A tensor as it lies in the file, or the pieces of it, one under the other, to be parts of a layer.
    pub fn parts(&self, name: &str, shape: &[usize]) -> Result<Vec<TensorSlice>> {
        let (key, mut first) = (self.key(name), 0);
        let part = |view: TensorView| {
            let part = TensorSlice { key: key.clone(), first, view };
            first += part.view.rows();
            part
        };
        Ok(self.files.parts(&key, shape)?.into_iter().map(part).collect())
    }

    /// `<name>.weight` [rows, cols].
    pub fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear<B>> {
        self.linear_of(name, &self.parts(&format!("{name}.weight"), &[rows, cols])?)
    }

    /// A layer `name` whose rows are the parts' rows, one part under the other.
    pub fn linear_of(&self, name: &str, parts: &[TensorSlice]) -> Result<Linear<B>> {
        let key = self.key(name);
        if let WeightOrigin::Layers(layers) = self.source {
            return layers.linear(&key);
        }
        let storage = self.policy.storage(&key);
        let views: Vec<_> = parts.iter().map(|part| part.view.clone()).collect();
        let linear = match self.block {
            Some(block) => {
                let load = || self.blocks.load((self.backend, self.uploads), block, &views, storage);
                Linear::load_by(self.backend, key, &views, load)?
            }
            None => Linear::load_with((self.backend, self.uploads), key, &views, storage)?,
        };
        if let WeightOrigin::Recorded(layers) = self.source {
            layers.borrow_mut().add_linear(&linear, parts, storage)?;
        }
        Ok(linear)
    }

    /// `<name>.weight` [rows, cols] of each (name, cols), whose products are summed: see [`Tensor::linear_sum`]. They
    /// are stored alike.
    pub fn summed_linears(&self, names: &[(&str, usize)], rows: usize) -> Result<Vec<Linear<B>>> {
        let keys: Vec<_> = names.iter().map(|(name, _)| self.key(name)).collect();
        if let WeightOrigin::Layers(layers) = self.source {
            return keys.iter().map(|key| layers.linear(key)).collect();
        }
        let parts = names.iter().map(|(name, cols)| self.parts(&format!("{name}.weight"), &[rows, *cols]));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let views: Vec<Vec<_>> =
            parts.iter().map(|parts| parts.iter().map(|part| part.view.clone()).collect()).collect();
        let storage = keys.first().map_or(Storage::Native, |key| self.policy.storage(key));
        let backend = (self.backend, self.uploads);
        let linears = match self.block {
            Some(block) => {
                let load = || self.blocks.load_summed(backend, block, &views, storage);
                Linear::load_summed_by(self.backend, keys, &views, load)?
            }
            None => Linear::load_summed(backend, keys, &views, storage)?,
        };
        if let WeightOrigin::Recorded(layers) = self.source {
            let mut layers = layers.borrow_mut();
            linears.iter().zip(&parts).try_for_each(|(linear, parts)| layers.add_linear(linear, parts, storage))?;
        }
        Ok(linears)
    }

    /// A layer `name` made of `<part>.weight` of each part, [rows, cols], one under the other.
    pub fn stacked_linear(&self, name: &str, parts: &[&str], rows: usize, cols: usize) -> Result<Linear<B>> {
        let parts = parts.iter().map(|part| self.parts(&format!("{part}.weight"), &[rows, cols]));
        self.linear_of(name, &parts.collect::<Result<Vec<_>>>()?.concat())
    }

    /// A vector \[n\] as [1, n].
    pub fn vector(&self, name: &str, n: usize) -> Result<Tensor<B>> {
        let part = self.part(name, &[n])?;
        if let WeightOrigin::Layers(layers) = self.source {
            return layers.vector(&part.key);
        }
        let vector = self.backend.upload(&part.view.to_f32(), 1, n)?;
        if let WeightOrigin::Recorded(layers) = self.source {
            layers.borrow_mut().add_vector(&vector, &part)?;
        }
        Ok(vector)
    }

    /// `<name>.weight` [out, in, side, side].
    pub fn conv(&self, name: &str, channels: usize, out: usize, side: usize) -> Result<ConvKernel<B>> {
        self.conv_of(&self.view(&format!("{name}.weight"), &[out, channels, side, side])?)
    }

    /// A convolution of `view` [out, in, side, side].
    pub fn conv_of(&self, view: &TensorView) -> Result<ConvKernel<B>> {
        ConvKernel::load_with(self.backend, view, self.uploads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn only_weights_of_blocks_may_be_quantised() {
        for name in ["transformer_blocks.0.attn.to_q.weight", "single_transformer_blocks.11.attn.to_out"] {
            assert!(WeightPolicy::may_quantise(name), "{name}");
        }
        for name in
            ["x_embedder.weight", "proj_out", "model.layers.0.mlp.up_proj", "transformer_blocksx", "decoder.conv_in"]
        {
            assert!(!WeightPolicy::may_quantise(name), "{name}");
        }
        assert!(WeightPolicy::is_quantised_in_files("model.layers.0.mlp.up_proj.weight"));
        assert!(WeightPolicy::is_quantised_in_files("transformer_blocks.0.attn.to_q.weight"));
        for name in ["model.embed_tokens.weight", "lm_head.weight", "proj_out.weight", "model.norm.weight"] {
            assert!(!WeightPolicy::is_quantised_in_files(name), "{name}");
        }
        let policy = WeightPolicy { blocks: Storage::Fp8 };
        assert_eq!(policy.storage("transformer_blocks.3.ff.linear_in"), Storage::Fp8);
        assert_eq!(policy.storage("norm_out.linear"), Storage::Native);
        assert_eq!(WeightPolicy::of(&Cpu::new(Precision::F32)).blocks(), Storage::Native);
    }
}
