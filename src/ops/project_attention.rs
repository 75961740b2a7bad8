//! The projection before attention, and attention over its result.

use super::project::{borrowed, expect_parts, pieces};
use super::{Heads, Mask, Projection};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::tensor::{Tensor, expect};

/// The result of [`Tensor::project_attention`].
pub struct Attended<B: Backend> {
    /// Attention of each row that has a query, [layout.query_rows(), dim].
    pub attn: Tensor<B>,
    /// As in [`Projection`]. `attn` and `mlp` are adjacent columns of one buffer.
    pub mlp: Tensor<B>,
}

impl<B: Backend> Tensor<B> {
    /// Runs [`Tensor::project`] on these parts, and [`Tensor::attention`] on its q, k and v without a mask. q, k and v
    /// are not returned, so a backend may hold them in any form. The parts are dropped before attention.
    ///
    /// Errors as both, and if the rows do not match the layout.
    pub fn project_attention(parts: Vec<(Operand<B>, &Linear<B>)>, heads: &Heads<'_, B>) -> Result<Attended<B>> {
        const OP: &str = "project_attention";
        expect_parts(OP, &borrowed(&parts), Some(heads))?;
        heads.layout.check(OP)?;
        let (rows, expected) = (parts.iter().map(|(x, _)| x.rows()).sum::<usize>(), heads.layout.rows());
        expect(rows == expected && heads.dim > 0, OP, || format!("{rows} rows and heads of {} do not fit", heads.dim))?;
        let backend = parts[0].0.tensor().backend().clone();
        match pieces::rows_of_piece(&backend, &borrowed(&parts), Some(heads)) {
            Some(_) => attend(Self::project(&borrowed(&parts), Some(heads))?, parts, heads),
            None => backend.project_attention(parts, heads),
        }
    }
}

/// Defines `project_attention` by simpler ops.
pub fn compose<B: Backend>(b: &B, parts: Vec<(Operand<B>, &Linear<B>)>, heads: &Heads<'_, B>) -> Result<Attended<B>> {
    attend(b.project(&borrowed(&parts), Some(heads))?, parts, heads)
}

fn attend<B: Backend>(
    Projection { kvq: [k, v, q], mlp }: Projection<B>,
    parts: Vec<(Operand<B>, &Linear<B>)>,
    heads: &Heads<'_, B>,
) -> Result<Attended<B>> {
    drop(parts); // frees memory
    let attn = q.attention(&k, &v, heads.norm[0].q.cols(), heads.layout, Mask::None)?;
    Ok(Attended { attn, mlp })
}
