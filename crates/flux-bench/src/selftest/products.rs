//! Cases of matrix multiplications and of attention.

use super::case::Case;
use super::inputs::{linear, matrix, rope, values, vector, view, weight_values};
use super::loops::{self, Matrix};
use flux::backend::Backend;
use flux::error::Result;
use flux::files::Format;
use flux::nn::{LowRank, Operand};
use flux::ops::{self, Heads, LinearArgs, Mask, Products, Projection, QkNorm, TokenLayout};
use flux::tensor::Tensor;

/// Maximum number of multiplications in plain loops.
const MAX_ITERATIONS: usize = 1 << 30;

/// `x W^T` [rows, cols] by [out, cols].
pub struct Product {
    pub shape: [usize; 3],
    pub format: Format,
    pub kind: ProductKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProductKind {
    Plain,
    Bias,
    Residual,
    /// With an unmerged LoRA.
    LowRank,
}

impl Case for Product {
    fn name(&self) -> String {
        let [rows, cols, out] = self.shape;
        let kind = match self.kind {
            ProductKind::Plain => "linear",
            ProductKind::Bias => "linear with bias",
            ProductKind::Residual => "linear_add",
            ProductKind::LowRank => "low_rank",
        };
        let format = if self.format == Format::Bf16 { String::new() } else { format!(", {}", self.format) };
        format!("{kind} {rows}x{cols}x{out}{format}")
    }

    fn allowed(&self) -> (f32, f32) {
        match self.kind {
            // Weights in other formats are rounded, too.
            ProductKind::Plain if self.format == Format::Bf16 => (1.0, 1.0),
            // A GPU that multiplies in e4m3 also rounds activations to it, by up to 2^-4 of each value.
            ProductKind::Plain if self.format == Format::E4m3 => (12.0, 4.0),
            // The two matrix multiplications and their sum are rounded.
            ProductKind::LowRank => (4.0, 1.0),
            // A library may round the matrix multiplication before it adds.
            _ => (2.0, 1.0),
        }
    }

    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>> {
        let [rows, cols, out] = self.shape;
        let (x, weight) = (matrix(b, 1, [rows, cols])?, linear(b, 2, [out, cols], self.format)?);
        let residual = || matrix(b, 4, [rows, out]);
        Ok(vec![match self.kind {
            ProductKind::Plain => x.linear(&weight, None)?,
            ProductKind::Bias => x.linear(&weight, Some(&vector(b, 3, out)?))?,
            ProductKind::Residual if fused => x.linear_add(&weight, residual()?)?,
            ProductKind::Residual => {
                let products = Products::Columns(&[&x], &weight);
                ops::linear::compose(b, LinearArgs { residual: Some(residual()?), ..products.into() })?
            }
            ProductKind::LowRank => {
                let factor = |seed, shape| linear(b, seed, shape, Format::Bf16);
                let low_rank = LowRank { down: factor(5, [16, cols])?, up: factor(6, [out, 16])? };
                let layer = weight.with_low_rank(low_rank)?;
                let parts = [(&x, &layer)];
                if fused { Tensor::low_rank(&parts)? } else { ops::low_rank::compose(b, Products::Rows(&parts))? }
            }
        }])
    }

    fn by_loops(&self) -> Option<Vec<f32>> {
        let [rows, cols, out] = self.shape;
        let bias = match self.kind {
            ProductKind::Plain => None,
            ProductKind::Bias => Some(values(3, out)),
            ProductKind::Residual | ProductKind::LowRank => return None,
        };
        if rows * cols * out > MAX_ITERATIONS {
            return None;
        }
        let weight = match self.format {
            Format::Bf16 => weight_values(2, [out, cols]),
            format => view(2, [out, cols], format).ok()?.to_f32(),
        };
        let x = values(1, rows * cols);
        Some(loops::linear(&Matrix { values: &x, cols }, &Matrix { values: &weight, cols }, bias.as_deref()))
    }
}

const HEAD_DIM: usize = 128;

/// The projection before attention and MLP.
pub struct Projected {
    pub layout: TokenLayout,
    pub features: usize,
    pub dim: usize,
    pub mlp: usize,
}

impl Case for Projected {
    fn name(&self) -> String {
        format!("project {}x{}, {} and {}", self.layout.rows(), self.features, self.dim, self.mlp)
    }

    fn allowed(&self) -> (f32, f32) {
        // The matrix multiplication rounds, then the result. Gated values and rotated pairs combine two of them.
        (4.0, 1.0)
    }

    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>> {
        let Self { layout, features, dim, mlp } = *self;
        let x = Operand::from(matrix(b, 1, [layout.rows(), features])?);
        let weight = linear(b, 2, [3 * dim + 2 * mlp, features], Format::Bf16)?;
        let norm = QkNorm { q: vector(b, 3, HEAD_DIM)?, k: vector(b, 4, HEAD_DIM)?, eps: 1e-6 };
        let rope = rope(b, layout.tokens(), HEAD_DIM)?;
        let heads = Heads { dim, norm: [&norm; 2], rope: &rope, layout };
        let parts = [(&x, &weight)];
        let Projection { kvq: [k, v, q], mlp } = if fused {
            Tensor::project(&parts, Some(&heads))?
        } else {
            ops::project::compose(b, &parts, Some(&heads))?
        };
        Ok(vec![k, v, q, mlp])
    }
}

/// Attention of tokens, with a causal mask as in the text encoder if `causal` is set.
pub struct Attended {
    pub tokens: usize,
    pub heads: [usize; 2],
    pub head_dim: usize,
    pub causal: Option<usize>,
}

impl Attended {
    fn cols(&self) -> [usize; 2] {
        self.heads.map(|heads| heads * self.head_dim)
    }
}

impl Case for Attended {
    fn name(&self) -> String {
        let ([heads, kv_heads], causal) = (self.heads, if self.causal.is_some() { ", causal" } else { "" });
        format!("attention {heads}/{kv_heads}x{}, {} tokens{causal}", self.head_dim, self.tokens)
    }

    /// A value's error consists of its own rounding and those of the weights, which are independent. Their sum is
    /// always below 8 times the error of a typical value.
    fn allowed(&self) -> (f32, f32) {
        (1.05, 8.0)
    }

    fn with<B: Backend>(&self, b: &B, _fused: bool) -> Result<Vec<Tensor<B>>> {
        let [cols, kv_cols] = self.cols();
        let (q, k) = (matrix(b, 1, [self.tokens, cols])?, matrix(b, 2, [self.tokens, kv_cols])?);
        let v = matrix(b, 3, [self.tokens, kv_cols])?;
        let mask = self.causal.map_or(Mask::None, |keys| Mask::Causal { keys });
        Ok(vec![q.attention(&k, &v, self.head_dim, TokenLayout::single(self.tokens), mask)?])
    }

    fn by_loops(&self) -> Option<Vec<f32>> {
        let [cols, kv_cols] = self.cols();
        if 2 * self.tokens * self.tokens * cols > MAX_ITERATIONS {
            return None;
        }
        let [q, k, v] =
            [(1, cols), (2, kv_cols), (3, kv_cols)].map(|(seed, cols)| (values(seed, self.tokens * cols), cols));
        let [q, k, v] = [&q, &k, &v].map(|(values, cols)| Matrix { values, cols: *cols });
        Some(loops::attention([&q, &k, &v], self.head_dim, self.causal))
    }
}
