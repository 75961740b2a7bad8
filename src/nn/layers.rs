//! The layers of a component by key, with the position of their weights in the files.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::originals::Originals;
use super::{Linear, TensorSlice};
use crate::backend::{Backend, Storage};
use crate::error::{Error, Result};
use crate::files::adapter::AdapterUse;
use crate::tensor::Tensor;

/// Linear layers and vectors of a component, by key. They are handles: all components built from them share the
/// weights.
pub struct Layers<B: Backend> {
    pub(super) linears: BTreeMap<String, LinearLayer<B>>,
    pub(super) vectors: BTreeMap<String, VectorLayer<B>>,
    pub(super) originals: Arc<Originals<B>>,
}

/// A linear layer.
pub(super) struct LinearLayer<B: Backend> {
    pub(super) linear: Linear<B>,
    /// Its rows in the files, as stacked parts.
    pub(super) parts: Vec<TensorSlice>,
    pub(super) storage: Storage,
}

/// A vector, such as the scales of a norm.
pub(super) struct VectorLayer<B: Backend> {
    pub(super) vector: Tensor<B>,
    pub(super) part: TensorSlice,
}

impl<B: Backend> Default for Layers<B> {
    fn default() -> Self {
        Self { linears: BTreeMap::new(), vectors: BTreeMap::new(), originals: Arc::default() }
    }
}

impl<B: Backend> LinearLayer<B> {
    /// Returns the number of values of its weight.
    pub(super) fn elements(&self) -> u64 {
        (self.linear.rows() * self.linear.cols()) as u64
    }

    pub(super) fn is_changed_by(&self, adapters: &[AdapterUse]) -> bool {
        let changes = |used: &AdapterUse| self.parts.iter().any(|part| !used.changes(&part.key).is_empty());
        adapters.iter().any(changes)
    }
}

impl<B: Backend> Layers<B> {
    /// Adds a layer. Errors if the key exists: a component built from these layers would have the layer twice.
    pub(super) fn add_linear(&mut self, linear: &Linear<B>, parts: &[TensorSlice], storage: Storage) -> Result<()> {
        let layer = LinearLayer { linear: linear.clone(), parts: parts.to_vec(), storage };
        self.linears.insert(linear.name().to_string(), layer).map_or(Ok(()), |_| Err(twice(linear.name())))
    }

    /// Adds a vector. Errors as [`Layers::add_linear`].
    pub(super) fn add_vector(&mut self, vector: &Tensor<B>, part: &TensorSlice) -> Result<()> {
        let layer = VectorLayer { vector: vector.row_view(0..vector.rows()), part: part.clone() };
        self.vectors.insert(part.key.clone(), layer).map_or(Ok(()), |_| Err(twice(&part.key)))
    }

    /// Returns the layer of this key.
    ///
    /// Errors if there is none.
    pub(super) fn linear(&self, key: &str) -> Result<Linear<B>> {
        self.linears.get(key).map(|layer| layer.linear.clone()).ok_or_else(|| missing(key))
    }

    /// Returns the vector of this key, for reading.
    ///
    /// Errors if there is none.
    pub(super) fn vector(&self, key: &str) -> Result<Tensor<B>> {
        self.vectors.get(key).map(|layer| layer.vector.row_view(0..1)).ok_or_else(|| missing(key))
    }
}

fn twice(key: &str) -> Error {
    Error::new(format!("two layers are named `{key}`"))
}

fn missing(key: &str) -> Error {
    Error::new(format!("there is no layer `{key}` to share"))
}
