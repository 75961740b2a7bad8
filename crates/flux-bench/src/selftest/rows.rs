//! Cases of row-wise ops: elementwise ops, norms and rotations.

use super::case::Case;
use super::inputs::{matrix, rope, values, vector};
use super::loops::{self, Matrix, silu};
use flux::backend::Backend;
use flux::error::Result;
use flux::ops::{self, Adaln, GatedAddAdaln, Norm, QkNorm, QkNormRope, TokenLayout};
use flux::tensor::Tensor;

const EPS: f32 = 1e-6;

/// An op on a matrix [rows, cols].
pub struct OfRows(pub RowOp, pub [usize; 2]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOp {
    Add,
    Mul,
    Silu,
    Relu,
    Softcap,
    ScaleShift,
    GatedAdd,
    Swiglu,
    LayerNorm,
    RmsNorm,
    Adaln,
    GatedAddAdaln,
    Guide,
    EulerStep,
    InpaintBlend,
    ConcatRows,
    ConcatCols,
}

impl RowOp {
    pub const ALL: [(Self, &'static str); 17] = [
        (Self::Add, "add"),
        (Self::Mul, "mul"),
        (Self::Silu, "silu"),
        (Self::Relu, "relu"),
        (Self::Softcap, "softcap"),
        (Self::ScaleShift, "scale_shift"),
        (Self::GatedAdd, "gated_add"),
        (Self::Swiglu, "swiglu"),
        (Self::LayerNorm, "layer_norm"),
        (Self::RmsNorm, "rms_norm"),
        (Self::Adaln, "adaln"),
        (Self::GatedAddAdaln, "gated_add_adaln"),
        (Self::Guide, "guide"),
        (Self::EulerStep, "euler_step"),
        (Self::InpaintBlend, "inpaint_blend"),
        (Self::ConcatRows, "concat_rows"),
        (Self::ConcatCols, "concat_cols"),
    ];
}

impl Case for OfRows {
    fn name(&self) -> String {
        let Self(op, [rows, cols]) = self;
        let name = RowOp::ALL.iter().find(|(known, _)| known == op).map_or("", |(_, name)| *name);
        format!("{name} {rows}x{cols}")
    }

    fn allowed(&self) -> (f32, f32) {
        match self.0 {
            // Sizes without a kernel use the definition, which also rounds the row before its norm.
            RowOp::GatedAddAdaln => (4.0, 1.0),
            // The difference is rounded before the multiplication, and the product before the addition.
            RowOp::Guide => (4.0, 1.0),
            _ => (1.0, 1.0),
        }
    }

    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>> {
        let Self(op, shape @ [rows, cols]) = *self;
        let (x, y, other) = (matrix(b, 1, shape)?, matrix(b, 2, shape)?, matrix(b, 3, shape)?);
        let [shift, scale, gate] = [vector(b, 4, cols)?, vector(b, 5, cols)?, vector(b, 6, cols)?];
        Ok(vec![match op {
            RowOp::Add => x.add(&y)?,
            RowOp::Mul => x.mul(&y)?,
            RowOp::Silu => x.silu()?,
            RowOp::Relu => x.relu()?,
            RowOp::Softcap => x.softcap(0.75)?,
            RowOp::ScaleShift => x.scale_shift(&scale, &shift)?,
            RowOp::GatedAdd if fused => x.gated_add(&gate, &y)?,
            RowOp::GatedAdd => ops::gated_add::compose(b, x, &gate, &y)?,
            RowOp::Swiglu if fused => x.swiglu(&y)?,
            RowOp::Swiglu => ops::swiglu::compose(b, x, &y)?,
            RowOp::LayerNorm => x.layer_norm(EPS)?,
            RowOp::RmsNorm => x.rms_norm(&scale, EPS)?,
            RowOp::Adaln if fused => x.adaln(&shift, &scale, EPS)?,
            RowOp::Adaln => ops::adaln::compose(b, &x, &shift, &scale, EPS)?,
            RowOp::GatedAddAdaln => {
                let reader = super::inputs::linear(b, 7, [8, cols], flux::files::Format::Bf16)?;
                let norms = [Norm { shift: &shift, scale: &scale, reader: &reader }; 2];
                let (gates, adaln) = ([&gate; 2], Adaln { txt_rows: rows / 3, eps: EPS });
                let (sum, normed) = if fused {
                    x.gated_add_adaln(gates, &y, norms, adaln)?
                } else {
                    ops::gated_add_adaln::compose(b, GatedAddAdaln { x, gates, y: &y, norms, adaln })?
                };
                return Ok(vec![sum, normed.tensor().row_view(0..rows)]);
            }
            RowOp::Guide => x.guide(&y, 3.5)?,
            RowOp::EulerStep => x.euler_step(&y, &b.upload(&[-0.25], 1, 1)?)?,
            RowOp::InpaintBlend => {
                let mask: Vec<f32> = (0..rows).map(|row| (row % 5) as f32 / 4.0).collect();
                x.inpaint_blend(&y, &other, &b.upload(&mask, rows, 1)?, &b.upload_f32(&[0.25], 1, 1)?)?
            }
            RowOp::ConcatRows => Tensor::concat_rows(&[&x, &y])?,
            RowOp::ConcatCols => Tensor::concat_cols(&[&x, &y])?,
        }])
    }

    fn by_loops(&self) -> Option<Vec<f32>> {
        let Self(op, [rows, cols]) = *self;
        let [x, y] = [1, 2].map(|seed| values(seed, rows * cols));
        let [shift, scale, gate] = [4, 5, 6].map(|seed| values(seed, cols));
        let of = |row: &[f32], i: usize| f64::from(row[i % cols]);
        let each = |f: &dyn Fn(usize, f64, f64) -> f64| {
            (0..rows * cols).map(|i| f(i, f64::from(x[i]), f64::from(y[i])) as f32).collect::<Vec<_>>()
        };
        let norm = |centred| loops::row_norm(&Matrix { values: &x, cols }, centred, f64::from(EPS));
        Some(match op {
            RowOp::Add => each(&|_, x, y| x + y),
            RowOp::Mul => each(&|_, x, y| x * y),
            RowOp::Silu => each(&|_, x, _| silu(x)),
            RowOp::Relu => each(&|_, x, _| x.max(0.0)),
            RowOp::Softcap => each(&|_, x, _| 0.75 * (x / 0.75).tanh()),
            RowOp::ScaleShift => each(&|i, x, _| x * (1.0 + of(&scale, i)) + of(&shift, i)),
            RowOp::GatedAdd => each(&|i, x, y| x + of(&gate, i) * y),
            RowOp::Swiglu => each(&|_, x, y| silu(x) * y),
            RowOp::Guide => each(&|_, x, y| y + 3.5 * (x - y)),
            RowOp::EulerStep => each(&|_, x, y| x - 0.25 * y),
            RowOp::LayerNorm => norm(true).iter().map(|value| *value as f32).collect(),
            RowOp::RmsNorm => norm(false).iter().enumerate().map(|(i, x)| (x * of(&scale, i)) as f32).collect(),
            RowOp::Adaln => {
                let value = |(i, x): (usize, &f64)| ((1.0 + of(&scale, i)) * x + of(&shift, i)) as f32;
                norm(true).iter().enumerate().map(value).collect()
            }
            RowOp::ConcatRows => [x, y].concat(),
            RowOp::GatedAddAdaln | RowOp::InpaintBlend | RowOp::ConcatCols => return None,
        })
    }
}

/// Norms and rotations of q and k before attention.
pub struct Rotated {
    pub layout: TokenLayout,
    pub heads: usize,
    pub head_dim: usize,
}

impl Case for Rotated {
    fn name(&self) -> String {
        format!("qk_norm_rope {}x{}x{}", self.layout.rows(), self.heads, self.head_dim)
    }

    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>> {
        let Self { layout, heads, head_dim } = *self;
        let shape = [layout.rows(), heads * head_dim];
        let (q, k) = (matrix(b, 1, shape)?, matrix(b, 2, shape)?);
        let norm = |seed| {
            Ok::<_, flux::Error>(QkNorm { q: vector(b, seed, head_dim)?, k: vector(b, seed + 1, head_dim)?, eps: EPS })
        };
        let (norms, rope) = ([norm(3)?, norm(5)?], rope(b, layout.tokens(), head_dim)?);
        let norm = [&norms[0], &norms[1]];
        let (q, k) = if fused {
            q.qk_norm_rope(k, norm, &rope, layout)?
        } else {
            ops::qk_norm_rope::compose(b, QkNormRope { q, k, norm, rope: &rope, layout })?
        };
        Ok(vec![q, k])
    }
}
