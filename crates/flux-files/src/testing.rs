//! Helpers of unit tests.

use std::sync::Arc;

use crate::{Bytes, Format, Scales, TensorView};
use flux_base::error::Result;

/// Checks that a result is an error with all of these words.
#[track_caller]
pub fn refused<T>(result: Result<T>, words: &[&str]) {
    let error = result.err().expect("refused").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

/// Pseudorandom numbers.
pub struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }

    /// Returns a number less than `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() >> 33) as usize % limit.max(1)
    }

    /// Returns a number from -0.5 to 0.5.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32 - 0.5
    }

    /// Returns a roughly normal number: a sum of twelve uniform ones.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum()
    }
}

/// Creates a tensor of these bytes.
pub fn view(bytes: Vec<u8>, format: Format, shape: &[usize], scales: Scales) -> TensorView {
    let range = 0..bytes.len();
    TensorView::new(Arc::new(Bytes::Owned(bytes)), range, format, shape.to_vec(), scales).unwrap()
}
