//! What is cached, by a number for what is made of it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Backend;
use crate::tensor::Tensor;

/// Text features or latents that are cached, and a number that no others have: what is made of them is cached by it.
pub(crate) struct Known<B: Backend> {
    pub(crate) rows: Tensor<B>,
    pub(crate) number: u64,
}

impl<B: Backend> Known<B> {
    /// To cache, and to read.
    pub(crate) fn new(rows: Tensor<B>) -> (Self, Self) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let cached = Self { rows, number: NEXT.fetch_add(1, Ordering::Relaxed) };
        let known = cached.view();
        (cached, known)
    }

    /// The same to read, which stays when the cache drops it.
    pub(crate) fn view(&self) -> Self {
        Self { rows: self.rows.row_view(0..self.rows.rows()), number: self.number }
    }
}
