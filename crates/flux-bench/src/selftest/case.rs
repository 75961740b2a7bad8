//! One op with its inputs, on any backend.

use flux::backend::Backend;
use flux::error::Result;
use flux::tensor::Tensor;

/// One op with its inputs, which are the same on every backend.
pub trait Case {
    /// Returns the op's name and shapes.
    fn name(&self) -> String;

    /// Returns the allowed error: the number of roundings, and the weight of the typical magnitude.
    fn allowed(&self) -> (f32, f32) {
        (1.0, 1.0)
    }

    /// Runs the op: through the method of [`Tensor`] if `fused`, otherwise its definition in primitives, if it has one.
    ///
    /// Errors as the op does.
    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>>;

    /// Returns the result of plain loops in float64, for ops that are not compositions.
    fn by_loops(&self) -> Option<Vec<f32>> {
        None
    }
}
