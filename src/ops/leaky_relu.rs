//! The activation of upscalers: a slope for negative values, per column.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `x` for values from 0 on and `slope * x` for negative ones; NaN stays NaN. A learned slope for each
    /// column makes it PReLU.
    ///
    /// slope [1, cols]. Errors otherwise.
    pub fn leaky_relu(self, slope: &Self) -> Result<Self> {
        expect_activations("leaky_relu", &[&self, slope])?;
        self.expect_vec("leaky_relu", "slope", slope)?;
        let b = self.backend().clone();
        b.leaky_relu(self, slope)
    }
}
