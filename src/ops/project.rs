//! The projection before attention and inside a gated MLP, with the ops on its columns.

pub(super) mod pieces;

use super::linear::{expect_operand, expect_weight};
use super::qk_norm_rope::expect_norm;
use super::rope::expect_rope;
use super::{Products, QkNorm, QkNormRope, Rope, TokenLayout};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::tensor::{Tensor, expect};

/// The norms and the rotation of attention's columns.
pub struct Heads<'a, B: Backend> {
    /// Number of columns of each of k, v and q.
    pub dim: usize,
    /// One norm for text rows, one for image rows.
    pub norm: [&'a QkNorm<B>; 2],
    /// The rotation of k and q.
    pub rope: &'a Rope<B>,
    /// The split into text and image rows. Rows without a query get k and v only.
    pub layout: TokenLayout,
}

impl<B: Backend> Heads<'_, B> {
    /// Returns the rows that have a query.
    pub(crate) fn with_query(&self, x: Tensor<B>) -> Tensor<B> {
        x.split_rows(self.layout.rows_without_query()).1
    }
}

/// The result of [`Tensor::project`].
pub struct Projection<B: Backend> {
    /// k normed and rotated, v, and q normed and rotated, each [rows, dim]; q lacks the rows without a query. Without
    /// heads they have no columns.
    pub kvq: [Tensor<B>; 3],
    /// `swiglu(gate, up)` of the rows of q, [rows, mlp]. It has no columns if the weight has no MLP part.
    pub mlp: Tensor<B>,
}

/// Returns the parts as [`Tensor::project`] takes them.
pub fn borrowed<'a, B: Backend>(parts: &'a [(Operand<B>, &Linear<B>)]) -> Vec<(&'a Operand<B>, &'a Linear<B>)> {
    parts.iter().map(|(x, weight)| (x, *weight)).collect()
}

impl<B: Backend> Tensor<B> {
    /// Multiplies each (x, weight), stacks the results, then norms, rotates and activates their columns. The low-rank
    /// factors of a weight count as part of it.
    ///
    /// x [rows, in], weight [3 * heads.dim + 2 * mlp, in] with the rows k, v, q, gate, up in this order; without
    /// `heads` they are gate and up alone. q and mlp are adjacent columns of one buffer.
    ///
    /// A projection with more values than the device supports is computed in pieces of rows.
    ///
    /// Errors if the shapes do not fit, the rows without a query exceed those of the first x, or as
    /// [`Tensor::qk_norm_rope`].
    pub fn project(parts: &[(&Operand<B>, &Linear<B>)], heads: Option<&Heads<'_, B>>) -> Result<Projection<B>> {
        expect_parts("project", parts, heads)?;
        let backend = parts[0].0.tensor().backend();
        match pieces::rows_of_piece(backend, parts, heads) {
            Some(rows) => pieces::project(backend, parts, heads, rows),
            None => backend.project(parts, heads),
        }
    }
}

/// Errors unless the operands of [`Tensor::project`] fit each other.
pub(super) fn expect_parts<B: Backend>(
    op: &str,
    parts: &[(&Operand<B>, &Linear<B>)],
    heads: Option<&Heads<'_, B>>,
) -> Result<()> {
    expect(!parts.is_empty(), op, || "there are no parts".to_string())?;
    let (backend, out) = (parts[0].0.tensor().backend(), parts[0].1.rows());
    let attention = heads.map_or(0, |heads| 3 * heads.dim);
    for (x, weight) in parts {
        expect_operand(op, backend, x)?;
        expect_weight(op, backend, x.cols(), weight)?;
        expect(weight.rows() == out, op, || format!("the weights differ in rows, {out} and {}", weight.rows()))?;
    }
    expect(out >= attention && (out - attention).is_multiple_of(2), op, || {
        format!("a weight of {out} rows cannot be split into k, v and q of {} rows each and two halves", attention / 3)
    })?;
    let Some(heads) = heads else { return Ok(()) };
    let first = parts[0].0.rows();
    let without_query = heads.layout.rows_without_query();
    expect(without_query <= first, op, || format!("{without_query} rows without a query do not fit {first} rows"))?;
    expect_rope(op, backend, parts.iter().map(|(x, _)| x.rows()).sum(), heads.dim, heads.rope, heads.layout)?;
    expect_norm(op, backend, heads.norm, heads.rope)
}

/// Defines `project` by simpler ops.
pub fn compose<B: Backend>(
    b: &B,
    parts: &[(&Operand<B>, &Linear<B>)],
    heads: Option<&Heads<'_, B>>,
) -> Result<Projection<B>> {
    let [k, v, q, gate, up] = columns(b, parts, heads)?;
    let mlp = if gate.cols() == 0 { gate } else { b.swiglu(gate, &up)? };
    Ok(Projection { kvq: [k, v, q], mlp })
}

/// Returns k, v and q of [`Projection`], and gate and up of its MLP: [rows of q, mlp] each.
pub fn columns<B: Backend>(
    b: &B,
    parts: &[(&Operand<B>, &Linear<B>)],
    heads: Option<&Heads<'_, B>>,
) -> Result<[Tensor<B>; 5]> {
    let [k, v, q, gate, up] = products(b, parts, heads)?;
    let Some(heads) = heads else { return Ok([k, v, q, gate, up]) };
    let &Heads { norm, rope, layout, .. } = heads;
    let (q, k) = b.qk_norm_rope(QkNormRope { q, k, norm, rope, layout })?;
    let [q, gate, up] = [q, gate, up].map(|x| heads.with_query(x));
    Ok([k, v, q, gate, up])
}

/// Returns k, v, q, gate and up of all rows; q and k have neither norm nor rotation.
pub fn products<B: Backend>(
    b: &B,
    parts: &[(&Operand<B>, &Linear<B>)],
    heads: Option<&Heads<'_, B>>,
) -> Result<[Tensor<B>; 5]> {
    let products: Vec<_> = parts.iter().map(|(x, weight)| (x.tensor(), *weight)).collect();
    let y = super::low_rank::compose(b, Products::Rows(&products))?;
    let dim = heads.map_or(0, |heads| heads.dim);
    let mlp = (y.cols() - 3 * dim) / 2;
    Ok(y.split_cols([dim, dim, dim, mlp, mlp]))
}
