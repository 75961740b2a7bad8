//! One op with its inputs, on any backend.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;

/// One op with its inputs, which are the same on every backend.
pub trait Case {
    /// What is compared: the op and its shapes.
    fn name(&self) -> String;

    /// How far the result may be, in roundings, and how much of the typical magnitude counts.
    fn allowed(&self) -> (f32, f32) {
        (1.0, 1.0)
    }

    /// Through the method of [`Tensor`]: a kernel where there is one.
    ///
    /// Errors as the op does.
    fn run<B: Backend>(&self, b: &B) -> Result<Vec<Tensor<B>>>;

    /// The definition in primitives, where the op has one.
    ///
    /// Errors as the op does.
    fn compose<B: Backend>(&self, b: &B) -> Result<Vec<Tensor<B>>> {
        self.run(b)
    }

    /// The result by plain loops in float64, of ops that are no definition of others.
    fn by_loops(&self) -> Option<Vec<f32>> {
        None
    }
}

/// What is done with each case.
pub trait Visitor {
    /// Errors where the cases that follow are not to be seen.
    fn visit(&mut self, case: &impl Case) -> Result<()>;
}
