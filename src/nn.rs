//! What models load their weights through.
//!
//! [`Weights`] is a view of a component's tensors under a key prefix, as the checkpoint nests its names:
//! `weights.at("transformer_blocks.0").at("attn")`.

use crate::backend::Backend;
use crate::error::Result;
use crate::files::{TensorFiles, TensorView};
use crate::tensor::Tensor;

/// The weights under a key prefix, for a backend.
pub struct Weights<'a, B: Backend> {
    backend: &'a B,
    files: &'a TensorFiles,
    prefix: String,
    narrow: bool,
}

impl<'a, B: Backend> Weights<'a, B> {
    /// All weights of `files`.
    pub fn new(backend: &'a B, files: &'a TensorFiles) -> Self {
        Self { backend, files, prefix: String::new(), narrow: false }
    }

    /// The same weights, of which matrices may be kept and multiplied in fewer bits where the backend computes so.
    pub fn narrow(&self) -> Self {
        Self { prefix: self.prefix.clone(), narrow: true, ..*self }
    }

    /// The backend that tensors are loaded to.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// The weights whose keys go on with `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.key(name), ..*self }
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// A tensor as it lies in the file.
    pub fn view(&self, name: &str, shape: &[usize]) -> Result<TensorView> {
        self.files.get(&self.key(name), shape)
    }

    /// `<name>.weight` [rows, cols].
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor<B>> {
        self.weight(&[self.view(&format!("{name}.weight"), &[rows, cols])?])
    }

    /// A matrix of the parts' rows, one part under the other.
    pub fn weight(&self, parts: &[TensorView]) -> Result<Tensor<B>> {
        if self.narrow { self.backend.narrow_weight(parts) } else { self.backend.weight(parts) }
    }

    /// `<name>.weight` of each name, [rows, cols], one under the other.
    pub fn stacked(&self, names: &[&str], rows: usize, cols: usize) -> Result<Tensor<B>> {
        let views: Vec<_> =
            names.iter().map(|name| self.view(&format!("{name}.weight"), &[rows, cols])).collect::<Result<_>>()?;
        self.weight(&views)
    }

    /// A vector [n] as [1, n].
    pub fn vector(&self, name: &str, n: usize) -> Result<Tensor<B>> {
        let view = self.view(name, &[n])?;
        self.backend.upload(&view.to_f32(), 1, n)
    }

    /// `<name>.weight` [out, in, kernel, kernel], ordered for [`Tensor::conv2d`].
    pub fn conv(&self, name: &str, cin: usize, cout: usize, kernel: usize) -> Result<Tensor<B>> {
        self.backend.conv_weight(&self.view(&format!("{name}.weight"), &[cout, cin, kernel, kernel])?)
    }
}
