//! Cached tensors with a unique number, which is the cache key of results computed from them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Backend;
use crate::tensor::Tensor;

/// Cached text features or latents with a unique number. Results computed from them are cached by this number.
pub(crate) struct Known<B: Backend> {
    pub(crate) rows: Tensor<B>,
    pub(crate) number: u64,
}

impl<B: Backend> Known<B> {
    /// Assigns a number to `rows`; returns the tensor to cache, and a view of it.
    pub(crate) fn new(rows: Tensor<B>) -> (Self, Self) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let cached = Self { rows, number: NEXT.fetch_add(1, Ordering::Relaxed) };
        let known = cached.view();
        (cached, known)
    }

    /// Returns a view, which stays valid when the cache drops the tensor.
    pub(crate) fn view(&self) -> Self {
        Self { rows: self.rows.row_view(0..self.rows.rows()), number: self.number }
    }
}
