//! `all_to_all_heads` and `all_to_all_rows`: exchange of rows and columns between all ranks.

use crate::backend::cuda::pieces::{RowChunk, RowCopy};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::all_to_all::expect_parcel;
use crate::ops::{RowSplit, TokenSplit};

const HEADS: &str = "all_to_all_heads";
const ROWS: &str = "all_to_all_rows";

impl Cuda {
    pub(crate) fn all_to_all_heads_op(&self, kvq: [Tensor<Cuda>; 3], split: &TokenSplit) -> Result<[Tensor<Cuda>; 3]> {
        let world = split.world();
        let rows = [split.rows(), split.rows(), split.query_rows()];
        let empty = |i: usize| self.empty(rows[i].rows(), kvq[i].cols() / world);
        let wholes = [empty(0)?, empty(1)?, empty(2)?];
        let sent = heads_of(kvq.each_ref().map(RowChunk::new), world);
        self.exchange_among(HEADS, split.ranks(), sent, |given| {
            let copies = place_heads(given, rows, wholes.each_ref().map(RowChunk::new))?;
            Ok((wholes, copies))
        })
    }

    pub(crate) fn all_to_all_rows_op(&self, x: &Tensor<Cuda>, split: &TokenSplit) -> Result<Tensor<Cuda>> {
        let rows = split.query_rows();
        let out = self.empty(rows.rows_of(split.rank()), split.world() * x.cols())?;
        self.exchange_among(ROWS, split.ranks(), rows_of(RowChunk::new(x), rows), |given| {
            let copies = place_rows(given, RowChunk::new(&out))?;
            Ok((out, copies))
        })
    }
}

/// Returns the columns of each rank, with all rows.
fn heads_of(kvq: [RowChunk; 3], world: usize) -> Vec<Vec<RowChunk>> {
    let share = |piece: &RowChunk, rank: usize| {
        let [_, cols] = piece.shape();
        piece.cols(rank * cols / world..(rank + 1) * cols / world)
    };
    (0..world).map(|rank| kvq.iter().map(|piece| share(piece, rank)).collect()).collect()
}

fn place_heads(given: &[Vec<RowChunk>], rows: [RowSplit; 3], wholes: [RowChunk; 3]) -> Result<Vec<RowCopy>> {
    let mut copies = Vec::new();
    for (i, (rows, whole)) in rows.into_iter().zip(wholes).enumerate() {
        copies.extend(gathered(HEADS, rows, |rank| given[rank].get(i).copied(), whole)?);
    }
    Ok(copies)
}

/// Returns the rows of each rank, run by run.
fn rows_of(x: RowChunk, rows: RowSplit) -> Vec<Vec<RowChunk>> {
    (0..rows.world()).map(|rank| rows.runs_of(rank).map(|run| x.rows(run.whole)).collect()).collect()
}

/// Returns the copies of each rank's rows to its own columns.
fn place_rows(given: &[Vec<RowChunk>], out: RowChunk) -> Result<Vec<RowCopy>> {
    let [rows, cols] = out.shape();
    let (own, mut copies) = (cols / given.len(), Vec::new());
    for (rank, parts) in given.iter().enumerate() {
        let given_rows = parts.iter().map(|part| part.shape()[0]).sum();
        let given_cols = parts.iter().map(|part| part.shape()[1]).find(|cols| *cols != own).unwrap_or(own);
        expect_parcel(ROWS, rank, [given_rows, given_cols], [rows, own])?;
        let (columns, mut row) = (out.cols(rank * own..(rank + 1) * own), 0);
        for part in parts {
            let end = row + part.shape()[0];
            copies.push(part.copy_to(columns.rows(row..end)));
            row = end;
        }
    }
    Ok(copies)
}

/// Returns the copies that place the rows of all ranks, one piece from each, in the whole tensor.
pub(super) fn gathered(
    op: &str,
    rows: RowSplit,
    piece_of: impl Fn(usize) -> Option<RowChunk>,
    whole: RowChunk,
) -> Result<Vec<RowCopy>> {
    let [_, cols] = whole.shape();
    for rank in 0..rows.world() {
        expect_parcel(op, rank, piece_of(rank).map_or([0, 0], |piece| piece.shape()), [rows.rows_of(rank), cols])?;
    }
    let copies = rows
        .runs()
        .into_iter()
        .filter_map(|run| piece_of(run.rank).map(|piece| piece.rows(run.own).copy_to(whole.rows(run.whole))));
    Ok(copies.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::pieces::on_host::Matrix;
    use crate::ops::TokenLayout;

    fn layouts() -> Vec<TokenLayout> {
        let layouts = [
            TokenLayout { references: 6, ..TokenLayout::new(1, 5, 15) },
            TokenLayout::new(40, 3, 7),
            TokenLayout::new(2, 9, 1),
            TokenLayout::single(2),
        ];
        layouts.into_iter().flat_map(|layout| [layout, layout.image_queries()]).collect()
    }

    fn own_rows(whole: &Matrix, rows: RowSplit, rank: usize, beside: usize) -> Matrix {
        whole.select(rows.runs_of(rank).flat_map(|run| run.whole), beside)
    }

    #[test]
    fn heads_cross_to_all_tokens_and_back() {
        for (layout, world) in layouts().into_iter().flat_map(|layout| [(layout, 2), (layout, 4)]) {
            let split = |rank| TokenSplit::new(layout, rank, world);
            let rows = [split(0).rows(), split(0).rows(), split(0).query_rows()];
            for dim in [4 * 32, 4 * 3] {
                let wholes = [0, 1, 2].map(|i| Matrix::counting(rows[i].rows(), dim, 10_000 * i));
                let own = |rank| [0, 1, 2].map(|i| own_rows(&wholes[i], rows[i], rank, 8 * i));
                let ranks: Vec<[Matrix; 3]> = (0..world).map(own).collect();
                let sent: Vec<_> = ranks.iter().map(|kvq| heads_of(kvq.each_ref().map(Matrix::piece), world)).collect();
                let crossed: Vec<[Matrix; 3]> = (0..world)
                    .map(|rank| {
                        let given: Vec<_> = sent.iter().map(|parcels| parcels[rank].clone()).collect();
                        let out = [0, 1, 2].map(|i| Matrix::zeros(rows[i].rows(), dim / world));
                        for copy in place_heads(&given, rows, out.each_ref().map(Matrix::piece)).unwrap() {
                            copy.run_on_host();
                        }
                        out
                    })
                    .collect();
                for (rank, out) in crossed.iter().enumerate() {
                    let cols = rank * dim / world..(rank + 1) * dim / world;
                    for (out, whole) in out.iter().zip(&wholes) {
                        assert_eq!(out.values(), whole.columns(cols.clone()), "{layout:?}, rank {rank} of {world}");
                    }
                }
                let sent: Vec<_> = crossed.iter().map(|[_, _, q]| rows_of(q.piece(), rows[2])).collect();
                for (rank, [_, _, q]) in ranks.iter().enumerate() {
                    let given: Vec<_> = sent.iter().map(|parcels| parcels[rank].clone()).collect();
                    let out = Matrix::zeros(rows[2].rows_of(rank), dim);
                    place_rows(&given, out.piece()).unwrap().iter().for_each(RowCopy::run_on_host);
                    assert_eq!(out.values(), q.values(), "{layout:?}, rank {rank} of {world}");
                }
            }
        }
    }

    #[test]
    fn pieces_of_another_image_are_refused() {
        let rows = RowSplit::bands(4, 1, 2);
        let (short, whole) = (Matrix::zeros(1, 8), Matrix::zeros(4, 8));
        let error = gathered("x", rows, |_| Some(short.piece()), whole.piece()).unwrap_err().to_string();
        assert!(error.contains("rank 0 sent [1, 8], expected [2, 8]") && error.contains("the same image"), "{error}");
        let given = |rows: usize| vec![vec![whole.piece().cols(0..4).rows(0..rows)]; 2];
        for rows in [1, 3] {
            assert!(place_rows(&given(rows), Matrix::zeros(2, 8).piece()).is_err());
        }
        assert!(place_rows(&given(2), Matrix::zeros(2, 8).piece()).is_ok());
        assert!(place_rows(&given(2), Matrix::zeros(2, 6).piece()).is_err());
    }
}
