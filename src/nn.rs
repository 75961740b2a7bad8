//! Layers of the models: weights on a backend, under the names that the checkpoint gives them.
//!
//! [`Weights`] is a view of the files under a key prefix, as the checkpoint nests its names:
//! `weights.at("transformer_blocks.0").at("attn")`. Models load [`Linear`] and [`ConvKernel`] layers through it.
//! [`WeightPolicy`] decides which weights are quantized; models do not depend on it. [`Layers`] are the layers of a
//! component by key; a variant of the component can be built from them and share their weights.

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

/// Low-rank factors of a layer with weight [out, in]: its result is that of `weight + up down`.
pub struct LowRank<B: WeightStore> {
    /// [rank, in]
    pub down: Linear<B>,
    /// [out, rank]
    pub up: Linear<B>,
}

// A derived implementation would demand a weight that is `Clone`.
impl<B: Backend> Clone for Linear<B> {
    /// Returns a handle to the same weight.
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
    /// Loads a matrix from stacked parts. `name` is for messages.
    ///
    /// Errors if the parts differ in columns, or the backend cannot store them.
    pub fn load(backend: &B, name: impl Into<String>, parts: &[TensorView], storage: Storage) -> Result<Self> {
        Self::load_with((backend, None), name, parts, storage)
    }

    /// [`Linear::load`] with other uploads.
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
        Ok(Self::from_weight(backend, name, shape, load()?))
    }

    /// Loads layers whose results are summed ([`Tensor::linear_sum`]), each as in [`Linear::load_with`].
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
        Ok(layers.map(|((name, shape), weight)| Self::from_weight(backend, name, shape, weight)).collect())
    }

    fn from_weight(backend: &B, name: String, [rows, cols]: [usize; 2], weight: B::Weight) -> Self {
        Self { backend: backend.clone(), name, weight: Arc::new(weight), rows, cols, low_rank: None }
    }

    /// Returns the layer with another weight of the same shape, without factors.
    pub(crate) fn with_weight(&self, weight: B::Weight) -> Self {
        Self { weight: Arc::new(weight), low_rank: None, ..self.clone() }
    }

    /// Returns the layer with low-rank factors, converted to the form that unmerged layers need.
    ///
    /// Errors if memory runs out.
    pub fn with_low_rank(&self, low_rank: LowRank<B>) -> Result<Self> {
        Ok(self.with_factors(self.backend.factors_for(self, low_rank)?))
    }

    /// Returns the layer with factors as they are: already converted, or to be merged.
    fn with_factors(&self, low_rank: LowRank<B>) -> Self {
        Self { low_rank: Some(Arc::new(low_rank)), ..self.clone() }
    }

    /// Returns the low-rank factors, if any. The methods of [`Tensor`] apply them; backends multiply with the weight
    /// alone, except in [`Ops::low_rank`](crate::backend::Ops::low_rank) and
    /// [`Ops::project`](crate::backend::Ops::project).
    pub fn low_rank(&self) -> Option<&LowRank<B>> {
        self.low_rank.as_deref()
    }

    /// Returns the key in the checkpoint, without `.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the backend that holds the weight.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the weight in the backend's own form. For backends.
    pub fn weight(&self) -> &B::Weight {
        &self.weight
    }
}

/// Returns the rows and columns of a matrix of stacked parts.
fn shape_of(name: &str, parts: &[TensorView]) -> Result<[usize; 2]> {
    let (rows, cols) = (parts.iter().map(TensorView::rows).sum(), parts.first().map_or(0, TensorView::cols));
    if parts.is_empty() || parts.iter().any(|part| part.cols() != cols) {
        return Err(Error::new(format!("the parts of `{name}` differ in columns")));
    }
    Ok([rows, cols])
}

/// An activation [rows, cols] that only matrix multiplications read. A backend may have converted it to the form that
/// they read, such as a quantized one.
pub struct Operand<B: Backend>(Tensor<B>);

impl<B: Backend> From<Tensor<B>> for Operand<B> {
    fn from(x: Tensor<B>) -> Self {
        Self(x)
    }
}

impl<B: Backend> Operand<B> {
    /// Returns the number of tokens.
    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Returns the number of features.
    pub fn cols(&self) -> usize {
        self.0.cols()
    }

    /// Returns rows `range` for reading.
    pub fn row_view(&self, range: Range<usize>) -> Self {
        Self(self.0.row_view(range))
    }

    /// Splits into the first `rows` rows and the rest.
    pub fn split_rows(self, rows: usize) -> (Self, Self) {
        let (top, bottom) = self.0.split_rows(rows);
        (Self(top), Self(bottom))
    }

    /// Returns the values; their dtype is the backend's choice. For backends.
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
    /// Errors if the view has another shape, or the backend cannot store it.
    pub fn load(backend: &B, view: &TensorView) -> Result<Self> {
        Self::load_with(backend, view, None)
    }

    fn load_with(backend: &B, view: &TensorView, uploads: Option<&B::Uploads>) -> Result<Self> {
        let &[rows, channels, side, width] = view.shape() else {
            return Err(Error::new(format!("a convolution weight has shape {:?}, expected 4 axes", view.shape())));
        };
        if side != width || side == 0 {
            return Err(Error::new(format!("a convolution kernel is {side} x {width}, expected a square")));
        }
        Ok(Self { backend: backend.clone(), weight: backend.load_conv_weight(view, uploads)?, rows, channels, side })
    }

    /// Returns the number of output channels.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of input channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the side of the square kernel.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Returns the backend that holds the kernel.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the kernel in the backend's own form. For backends.
    pub fn weight(&self) -> &B::ConvWeight {
        &self.weight
    }
}

/// The choice of weights to quantize when they are loaded. No other code decides this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPolicy {
    blocks: Storage,
}

impl WeightPolicy {
    /// Stores the transformer's blocks in the backend's configured storage for large weights, and all other weights in
    /// the backend's own type.
    ///
    /// A step spends nearly all of its matrix multiplications in the blocks. The layers around them have few rows or
    /// columns: quantizing them would save little time, and their errors would go into every block, or straight into
    /// the velocity.
    pub fn for_backend<B: Backend>(backend: &B) -> Self {
        Self { blocks: backend.costs().products }
    }

    /// Returns the storage of the weight `name`.
    pub fn storage(&self, name: &str) -> Storage {
        if Self::may_quantize(name) { self.blocks } else { Storage::Native }
    }

    /// Returns the storage of weights in the transformer's blocks.
    pub fn blocks(&self) -> Storage {
        self.blocks
    }

    /// Returns `true` if quantized model files have the matrix `name` quantized: matrices of the transformer's blocks
    /// and of the text encoder's layers. Other matrices, norms and embeddings stay in 16 bits.
    pub fn is_quantized_in_files(name: &str) -> bool {
        Self::may_quantize(name) || name.starts_with("model.layers.")
    }

    /// Returns `true` if some policy quantizes the weight `name`.
    pub fn may_quantize(name: &str) -> bool {
        let mut blocks = OWN_MODELS.iter().flat_map(|model| model.layers.blocks);
        blocks.any(|(_, block, _)| name.strip_prefix(block).is_some_and(|rest| rest.starts_with('.')))
    }
}

/// Rows of a tensor of the checkpoint.
#[derive(Clone)]
pub struct TensorSlice {
    /// The tensor's key.
    pub key: String,
    /// The index of the first row in the tensor.
    pub first: usize,
    /// The rows.
    pub view: TensorView,
}

impl TensorSlice {
    /// Returns some of the rows.
    pub fn row_range(&self, rows: Range<usize>) -> Self {
        Self { key: self.key.clone(), first: self.first + rows.start, view: self.view.row_range(rows) }
    }
}

/// The source of a component's layers.
enum WeightOrigin<'a, B: Backend> {
    /// The files.
    Files,
    /// The files; loaded layers are also recorded here.
    Recorded(&'a RefCell<Layers<B>>),
    /// Layers that are already loaded.
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
        let (policy, blocks) = (WeightPolicy::for_backend(backend), Arc::default());
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

    /// Places the weights in `blocks`; by default all blocks are resident.
    pub fn with_blocks(self, blocks: Arc<Blocks<B>>) -> Self {
        Self { blocks, ..self }
    }

    /// Uploads the weights together with others.
    pub fn with_uploads<'b>(&self, uploads: &'b B::Uploads) -> Weights<'b, B>
    where
        'a: 'b,
    {
        Weights { uploads: Some(uploads), ..self.at_key(self.prefix.clone()) }
    }

    /// Returns the placement of blocks.
    pub fn blocks(&self) -> &Arc<Blocks<B>> {
        &self.blocks
    }

    /// Assigns the weights to block `block`, in the order of use.
    pub fn for_block(self, block: usize) -> Self {
        Self { block: Some(block), ..self }
    }

    /// Records every loaded linear layer and vector in `layers`, too.
    pub fn recorded<'b>(&self, layers: &'b RefCell<Layers<B>>) -> Weights<'b, B>
    where
        'a: 'b,
    {
        Weights { source: WeightOrigin::Recorded(layers), ..self.at_key(self.prefix.clone()) }
    }

    /// Takes linear layers and vectors from `layers`, whose memory is shared, instead of loading them.
    pub fn with_layers<'b>(&self, layers: &'b Layers<B>) -> Weights<'b, B>
    where
        'a: 'b,
    {
        Weights { source: WeightOrigin::Layers(layers), ..self.at_key(self.prefix.clone()) }
    }

    /// Returns the backend that weights are loaded to.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// Returns the weights whose keys continue with `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        self.at_key(self.key(name))
    }

    fn at_key(&self, prefix: String) -> Self {
        Self { prefix, blocks: Arc::clone(&self.blocks), ..*self }
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// Returns a tensor as stored in the file.
    pub fn view(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        self.files.get(&self.key(name), shape)
    }

    /// Returns a tensor as stored in the file, as a part of a layer.
    pub fn part(&self, name: &str, shape: &[usize]) -> Result<TensorSlice> {
        Ok(TensorSlice { key: self.key(name), first: 0, view: self.view(name, shape)? })
    }

    /// Returns a tensor as stored in the file, or its pieces, as stacked parts of a layer.
    pub fn parts(&self, name: &str, shape: &[usize]) -> Result<Vec<TensorSlice>> {
        let (key, mut first) = (self.key(name), 0);
        let part = |view: TensorView| {
            let part = TensorSlice { key: key.clone(), first, view };
            first += part.view.rows();
            part
        };
        Ok(self.files.parts(&key, shape)?.into_iter().map(part).collect())
    }

    /// Loads `<name>.weight` [rows, cols].
    pub fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear<B>> {
        self.linear_of(name, &self.parts(&format!("{name}.weight"), &[rows, cols])?)
    }

    /// Loads a layer `name` from stacked parts.
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

    /// Loads `<name>.weight` [rows, cols] of each (name, cols), for layers whose results are summed: see
    /// [`Tensor::linear_sum`]. They are stored alike.
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

    /// Loads a layer `name` from the stacked weights `<part>.weight` [rows, cols] of the parts.
    pub fn stacked_linear(&self, name: &str, parts: &[&str], rows: usize, cols: usize) -> Result<Linear<B>> {
        let parts = parts.iter().map(|part| self.parts(&format!("{part}.weight"), &[rows, cols]));
        self.linear_of(name, &parts.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Loads a vector \[n\] as [1, n].
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

    /// Loads `<name>.weight` [out, in, side, side].
    pub fn conv(&self, name: &str, channels: usize, out: usize, side: usize) -> Result<ConvKernel<B>> {
        self.conv_of(&self.view(&format!("{name}.weight"), &[out, channels, side, side])?)
    }

    /// Loads a convolution from `view` [out, in, side, side].
    pub fn conv_of(&self, view: &TensorView) -> Result<ConvKernel<B>> {
        ConvKernel::load_with(self.backend, view, self.uploads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn only_weights_of_blocks_may_be_quantized() {
        for name in ["transformer_blocks.0.attn.to_q.weight", "single_transformer_blocks.11.attn.to_out"] {
            assert!(WeightPolicy::may_quantize(name), "{name}");
        }
        for name in
            ["x_embedder.weight", "proj_out", "model.layers.0.mlp.up_proj", "transformer_blocksx", "decoder.conv_in"]
        {
            assert!(!WeightPolicy::may_quantize(name), "{name}");
        }
        assert!(WeightPolicy::is_quantized_in_files("model.layers.0.mlp.up_proj.weight"));
        assert!(WeightPolicy::is_quantized_in_files("transformer_blocks.0.attn.to_q.weight"));
        for name in ["model.embed_tokens.weight", "lm_head.weight", "proj_out.weight", "model.norm.weight"] {
            assert!(!WeightPolicy::is_quantized_in_files(name), "{name}");
        }
        let policy = WeightPolicy { blocks: Storage::Fp8 };
        assert_eq!(policy.storage("transformer_blocks.3.ff.linear_in"), Storage::Fp8);
        assert_eq!(policy.storage("norm_out.linear"), Storage::Native);
        assert_eq!(WeightPolicy::for_backend(&Cpu::new(Precision::F32)).blocks(), Storage::Native);
    }
}
