//! The gated activation of every MLP here.

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::linear::expect_linear;
use crate::tensor::{Tensor, expect};

impl<B: Backend> Tensor<B> {
    /// `silu(self) * up`, self being the gate half.
    ///
    /// self [tokens, mlp], up [tokens, mlp] -> [tokens, mlp], over self's cells where these are writable.
    ///
    /// Errors when the shapes differ.
    /// Source: FLUX.2 reference `Flux2SwiGLU`, Qwen3 `Qwen3MLP`: silu on the first half.
    pub fn swiglu(self, up: &Self) -> Result<Self> {
        self.expect_same("swiglu", "up", up)?;
        let b = self.backend().clone();
        b.swiglu(self, up)
    }

    /// `linear` of `beside` and `swiglu(self, up)`, side by side: one op, because a backend may write its input in the
    /// form in which the product reads it.
    ///
    /// self [tokens, mlp], up [tokens, mlp], beside [tokens, side], weight [out, side + mlp] -> [tokens, out].
    /// Overwrites as `swiglu`.
    ///
    /// Errors when the shapes do not fit.
    pub fn swiglu_linear(self, up: &Self, beside: Option<&Self>, weight: &Self) -> Result<Self> {
        self.expect_same("swiglu_linear", "up", up)?;
        expect(beside.is_none_or(|beside| beside.rows() == self.rows()), "swiglu_linear", || {
            "the parts differ in rows".to_string()
        })?;
        expect_linear("swiglu_linear", beside.map_or(0, Self::cols) + self.cols(), weight)?;
        let b = self.backend().clone();
        b.swiglu_linear(self, up, beside, weight)
    }

    /// `swiglu(self, up)`, of which the first `first` rows are multiplied by the first weight and the others by the
    /// second: text and image of a double block. One op for the reason of `swiglu_linear`.
    ///
    /// self [rows, mlp], up [rows, mlp], weights [out, mlp] -> [rows, out]. Overwrites as `swiglu`.
    ///
    /// Errors when the shapes do not fit.
    pub fn swiglu_linear_rows(self, up: &Self, weights: [&Self; 2], first: usize) -> Result<Self> {
        self.expect_same("swiglu_linear_rows", "up", up)?;
        for weight in weights {
            expect_linear("swiglu_linear_rows", self.cols(), weight)?;
        }
        let [top, bottom] = weights.map(Self::rows);
        expect(top == bottom, "swiglu_linear_rows", || format!("weights have {top} and {bottom} rows"))?;
        expect(first <= self.rows(), "swiglu_linear_rows", || format!("the first {first} rows of {}", self.rows()))?;
        let b = self.backend().clone();
        b.swiglu_linear_rows(self, up, weights, first)
    }
}

/// What `swiglu` means.
pub fn compose<B: Backend>(b: &B, gate: Tensor<B>, up: &Tensor<B>) -> Result<Tensor<B>> {
    let activated = b.silu(gate)?;
    b.mul(activated, up)
}

/// What `swiglu_linear` means.
pub fn compose_linear<B: Backend>(
    b: &B,
    gate: Tensor<B>,
    up: &Tensor<B>,
    beside: Option<&Tensor<B>>,
    weight: &Tensor<B>,
) -> Result<Tensor<B>> {
    let mlp = b.swiglu(gate, up)?;
    match beside {
        Some(beside) => b.linear_concat(&[beside, &mlp], weight),
        None => b.linear(&mlp, weight, None),
    }
}

/// What `swiglu_linear_rows` means.
pub fn compose_linear_rows<B: Backend>(
    b: &B,
    gate: Tensor<B>,
    up: &Tensor<B>,
    weights: [&Tensor<B>; 2],
    first: usize,
) -> Result<Tensor<B>> {
    let (top, bottom) = b.swiglu(gate, up)?.split_rows(first);
    b.linear_rows(&[(&top, weights[0]), (&bottom, weights[1])])
}
