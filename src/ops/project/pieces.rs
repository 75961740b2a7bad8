//! The projection of a long sequence in pieces of rows: before the columns of its MLP are activated, it has more values
//! than any other tensor of a step.

use std::ops::Range;

use super::{Heads, Projection, borrowed};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::{Rope, TokenLayout};
use crate::tensor::Tensor;

/// Pieces have at most this part of the values that the device supports, so that they take little memory beside the
/// result.
const PART: u64 = 4;
/// Pieces have a multiple of this number of rows, which tiles of kernels divide.
const ROWS: usize = 128;

/// Returns the number of rows of a piece; `None` if the device supports the whole projection. Plans of images batch
/// samples only if it does.
pub(in crate::ops) fn rows_of_piece<B: Backend>(
    b: &B,
    parts: &[(&Operand<B>, &Linear<B>)],
    heads: Option<&Heads<'_, B>>,
) -> Option<usize> {
    let is_one = heads.is_none_or(|heads| heads.layout.batch == 1);
    let rows = parts.iter().map(|(x, _)| x.rows() as u64).sum::<u64>();
    let (cols, limit) = (parts[0].1.rows() as u64, b.costs().max_tensor_values);
    let piece = (limit / PART / cols.max(1)) as usize;
    (is_one && rows.saturating_mul(cols) > limit).then(|| if piece > ROWS { piece / ROWS * ROWS } else { piece.max(1) })
}

/// Computes [`Tensor::project`] of one sample in pieces of `rows` rows. Rows do not depend on each other.
///
/// Errors as the op.
pub(super) fn project<B: Backend>(
    b: &B,
    parts: &[(&Operand<B>, &Linear<B>)],
    heads: Option<&Heads<'_, B>>,
    rows: usize,
) -> Result<Projection<B>> {
    let all: usize = parts.iter().map(|(x, _)| x.rows()).sum();
    let (dim, layout) = heads.map_or((0, TokenLayout::single(all)), |heads| (heads.dim, heads.layout));
    let skipped = layout.rows_without_query();
    let (mut k, mut v, mut queries) = (Vec::new(), Vec::new(), Vec::new());
    for start in (0..all).step_by(rows) {
        let piece = start..all.min(start + rows);
        let made = match heads {
            Some(Heads { dim, norm, rope, layout }) => {
                let table = |table: &Tensor<B>| table.row_view(piece.clone());
                let rope = &Rope { cos: table(&rope.cos), sin: table(&rope.sin), pairs: rope.pairs };
                let txt = layout.txt.clamp(piece.start, piece.end) - piece.start;
                let layout = TokenLayout::new(1, txt, piece.len() - txt);
                b.project(&borrowed(&rows_of(parts, &piece)), Some(&Heads { dim: *dim, norm: *norm, rope, layout }))?
            }
            None => b.project(&borrowed(&rows_of(parts, &piece)), None)?,
        };
        let Projection { kvq: [own_k, own_v, q], mlp } = made;
        // Copies free the rest of a piece.
        if dim > 0 {
            k.push(Tensor::concat_rows(&[&own_k])?);
            v.push(Tensor::concat_rows(&[&own_v])?);
        }
        let own = match Tensor::adjacent_cols(&[&q, &mlp]) {
            Some(both) => both,
            None => Tensor::concat_cols(&[&q, &mlp])?,
        };
        let first = skipped.clamp(piece.start, piece.end) - piece.start;
        queries.push(Tensor::concat_rows(&[&own.row_view(first..own.rows())])?);
    }
    let stacked = |pieces: Vec<Tensor<B>>| Tensor::concat_rows(&pieces.iter().collect::<Vec<_>>());
    let kv = if dim > 0 { Some([stacked(k)?, stacked(v)?]) } else { None };
    let queries = stacked(queries)?;
    let mlp = queries.cols() - dim;
    let [none, none_too, q, mlp] = queries.split_cols([0, 0, dim, mlp]);
    let [k, v] = kv.unwrap_or([none, none_too]);
    Ok(Projection { kvq: [k, v, q], mlp })
}

/// Returns these rows of the stacked parts.
fn rows_of<'a, B: Backend>(
    parts: &[(&Operand<B>, &'a Linear<B>)],
    rows: &Range<usize>,
) -> Vec<(Operand<B>, &'a Linear<B>)> {
    let mut end = 0;
    let own = parts.iter().map(|(x, weight)| {
        let first = end;
        end += x.rows();
        let within = |row: usize| row.clamp(first, first + x.rows()) - first;
        (x.row_view(within(rows.start)..within(rows.end)), *weight)
    });
    own.filter(|(x, _)| x.rows() > 0).collect()
}
