//! The products in front of attention, and attention of what they make.

use super::{Heads, Mask, Projection};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::tensor::{Tensor, expect};

/// What [`Tensor::project_attention`] makes.
pub struct Attended<B: Backend> {
    /// What attention gives each row that asks a query, [layout.query_rows(), dim].
    pub attn: Tensor<B>,
    /// As of [`Projection`]. With `attn` it is columns side by side of one buffer.
    pub mlp: Tensor<B>,
}

impl<B: Backend> Tensor<B> {
    /// [`Tensor::project`] of these parts, and [`Tensor::attention`] of its q, k and v without a mask. Nobody else sees
    /// these, so a backend may keep them in any form. The parts are dropped in between.
    ///
    /// Errors as these do, and when the rows are not those of the layout.
    pub fn project_attention(parts: Vec<(Operand<B>, &Linear<B>)>, heads: &Heads<'_, B>) -> Result<Attended<B>> {
        const OP: &str = "project_attention";
        super::project::expect_parts(OP, &borrowed(&parts), Some(heads))?;
        heads.layout.check(OP)?;
        let (rows, expected) = (parts.iter().map(|(x, _)| x.rows()).sum::<usize>(), heads.layout.rows());
        expect(rows == expected && heads.dim > 0, OP, || format!("{rows} rows of {} columns", heads.dim))?;
        let backend = parts[0].0.tensor().backend().clone();
        backend.project_attention(parts, heads)
    }
}

/// The parts as [`Tensor::project`] takes them.
pub fn borrowed<'a, B: Backend>(parts: &'a [(Operand<B>, &Linear<B>)]) -> Vec<(&'a Operand<B>, &'a Linear<B>)> {
    parts.iter().map(|(x, weight)| (x, *weight)).collect()
}

/// What `project_attention` means.
pub fn compose<B: Backend>(b: &B, parts: Vec<(Operand<B>, &Linear<B>)>, heads: &Heads<'_, B>) -> Result<Attended<B>> {
    let Projection { kvq: [k, v, q], mlp } = b.project(&borrowed(&parts), Some(heads))?;
    drop(parts); // makes room
    let attn = q.attention(&k, &v, heads.norm[0].q.cols(), heads.layout, Mask::None)?;
    Ok(Attended { attn, mlp })
}
