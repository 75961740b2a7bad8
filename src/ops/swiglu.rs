//! The gated activation of every MLP here.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Computes `silu(self) * up`; self is the gate half.
    ///
    /// self [tokens, mlp], up [tokens, mlp] -> [tokens, mlp]. Overwrites self if it is writable.
    ///
    /// Errors if the shapes differ.
    /// Source: FLUX.2 reference `Flux2SwiGLU`, Qwen3 `Qwen3MLP`: silu on the first half.
    pub fn swiglu(self, up: &Self) -> Result<Self> {
        expect_activations("swiglu", &[&self, up])?;
        self.expect_same("swiglu", "up", up)?;
        let b = self.backend().clone();
        b.swiglu(self, up)
    }
}

/// Defines `swiglu` by simpler ops.
pub fn compose<B: Backend>(b: &B, gate: Tensor<B>, up: &Tensor<B>) -> Result<Tensor<B>> {
    let activated = b.silu(gate)?;
    b.mul(activated, up)
}
