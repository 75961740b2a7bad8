//! Nearest-neighbour upsampling.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Repeats every pixel as a square of two by two.
    ///
    /// self [height * width, channels] -> [2 * height * 2 * width, channels].
    ///
    /// Errors if self does not have height * width rows.
    pub fn upsample(&self, height: usize, width: usize) -> Result<Self> {
        expect_activations("upsample", &[self])?;
        expect(self.rows() == height * width, "upsample", || {
            format!("x has {} rows, expected {height} x {width}", self.rows())
        })?;
        self.backend().upsample(self, height, width)
    }
}
