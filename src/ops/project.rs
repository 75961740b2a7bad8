//! What stands before attention and inside a gated MLP: a product, and what is done to its columns.

use super::linear::expect_linear;
use super::qk_norm_rope::expect_norm;
use super::rope::expect_rope;
use super::{Joint, QkNorm, Rope};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect};

/// How the columns of attention are normed and rotated.
pub struct Heads<'a, B: Backend> {
    /// Columns of k, of v and of q.
    pub dim: usize,
    /// For text rows, and for image rows.
    pub norm: [&'a QkNorm<B>; 2],
    /// The rotation of k and q.
    pub rope: &'a Rope<B>,
    /// Which rows are text and image, and their positions.
    pub joint: Joint,
    /// Rows, the first ones, of which only k and v are wanted.
    pub keys_only: usize,
}

/// What [`Tensor::project`] makes.
pub struct Projection<B: Backend> {
    /// k normed and rotated, v, and q normed and rotated, each [rows, dim], q without the rows that are keys only;
    /// without columns where there are no heads.
    pub kvq: [Tensor<B>; 3],
    /// The MLP's columns, of the rows of q; without any where the weight has none.
    pub mlp: Gated<B>,
}

/// The inside of a gated MLP: a backend activates it before or after it is stored, whichever costs less.
pub enum Gated<B: Backend> {
    /// gate and up, each [rows, mlp]: what goes on is `swiglu(gate, up)`.
    Halves(Tensor<B>, Tensor<B>),
    /// `swiglu(gate, up)` [rows, mlp].
    Activated(Tensor<B>),
}

impl<B: Backend> Tensor<B> {
    /// One product of each (x, weight), the results one under the other, of which columns are normed, rotated and
    /// activated.
    ///
    /// x [rows, in], weight [3 * heads.dim + 2 * mlp, in], its rows k, v, q, gate, up. Without `heads` they are gate
    /// and up alone.
    ///
    /// Errors when the shapes do not fit, when `keys_only` is more than the rows of the first x, or as
    /// [`Tensor::qk_norm_rope`].
    pub fn project(parts: &[(&Self, &Self)], heads: Option<&Heads<'_, B>>) -> Result<Projection<B>> {
        const OP: &str = "project";
        expect(!parts.is_empty(), OP, || "there are no parts".to_string())?;
        let out = parts[0].1.rows();
        let attention = heads.map_or(0, |heads| 3 * heads.dim);
        for (x, weight) in parts {
            expect_linear(OP, x.cols(), weight)?;
            expect(weight.rows() == out, OP, || format!("the weights have {out} and {} rows", weight.rows()))?;
        }
        expect(out >= attention && (out - attention).is_multiple_of(2), OP, || {
            format!("a weight of {out} rows is not k, v and q of {} rows each, and two halves", attention / 3)
        })?;
        if let Some(heads) = heads {
            let first = parts[0].0.rows();
            expect(heads.keys_only <= first, OP, || {
                format!("{} rows of {first} cannot be keys only", heads.keys_only)
            })?;
            expect_rope(OP, parts.iter().map(|(x, _)| x.rows()).sum(), heads.dim, heads.rope, heads.joint)?;
            expect_norm(OP, heads.norm, heads.rope)?;
        }
        parts[0].0.backend().project(parts, heads)
    }
}

impl<B: Backend> Gated<B> {
    /// `linear` of `beside` and the activated columns, side by side.
    ///
    /// beside [rows, side], weight [out, side + mlp] -> [rows, out].
    ///
    /// Errors when the shapes do not fit.
    pub fn linear(self, beside: Option<&Tensor<B>>, weight: &Tensor<B>) -> Result<Tensor<B>> {
        match (self, beside) {
            (Self::Halves(gate, up), beside) => gate.swiglu_linear(&up, beside, weight),
            (Self::Activated(h), Some(beside)) => Tensor::linear_concat(&[beside, &h], weight),
            (Self::Activated(h), None) => h.linear(weight, None),
        }
    }

    /// The first `first` of the activated rows times the first weight, the others times the second.
    ///
    /// weights [out, mlp] -> [rows, out].
    ///
    /// Errors when the shapes do not fit.
    pub fn linear_rows(self, weights: [&Tensor<B>; 2], first: usize) -> Result<Tensor<B>> {
        match self {
            Self::Halves(gate, up) => gate.swiglu_linear_rows(&up, weights, first),
            Self::Activated(h) => {
                expect(first <= h.rows(), "linear_rows", || format!("the first {first} rows of {}", h.rows()))?;
                let (top, bottom) = h.split_rows(first);
                Tensor::linear_rows(&[(&top, weights[0]), (&bottom, weights[1])])
            }
        }
    }

    /// The activated columns.
    pub fn activate(self) -> Result<Tensor<B>> {
        match self {
            Self::Halves(gate, up) => gate.swiglu(&up),
            Self::Activated(h) => Ok(h),
        }
    }
}

/// What `project` means.
pub fn compose<B: Backend>(
    b: &B,
    parts: &[(&Tensor<B>, &Tensor<B>)],
    heads: Option<&Heads<'_, B>>,
) -> Result<Projection<B>> {
    let y = b.linear_rows(parts)?;
    let dim = heads.map_or(0, |heads| heads.dim);
    let keys_only = heads.map_or(0, |heads| heads.keys_only);
    let mlp = (y.cols() - 3 * dim) / 2;
    let [k, v, q, gate, up] = y.split_cols([dim, dim, dim, mlp, mlp]);
    let (q, k) = match heads {
        Some(heads) => b.qk_norm_rope(q, k, heads.norm, heads.rope, heads.joint)?,
        None => (q, k),
    };
    let [q, gate, up] = [q, gate, up].map(|of_all| of_all.split_rows(keys_only).1);
    Ok(Projection { kvq: [k, v, q], mlp: Gated::Halves(gate, up) })
}
