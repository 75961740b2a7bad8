//! The gated activation of every MLP here.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// `silu(self) * up`, self being the gate half.
    ///
    /// self [tokens, mlp], up [tokens, mlp] -> [tokens, mlp], in place of self where that is writable.
    ///
    /// Errors when the shapes differ.
    /// Source: FLUX.2 reference `Flux2SwiGLU`, Qwen3 `Qwen3MLP`: silu on the first half.
    pub fn swiglu(self, up: &Self) -> Result<Self> {
        expect_activations("swiglu", &[&self, up])?;
        self.expect_same("swiglu", "up", up)?;
        let b = self.backend().clone();
        b.swiglu(self, up)
    }
}

/// What `swiglu` means.
pub fn compose<B: Backend>(b: &B, gate: Tensor<B>, up: &Tensor<B>) -> Result<Tensor<B>> {
    let activated = b.silu(gate)?;
    b.mul(activated, up)
}
