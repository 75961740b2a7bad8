//! `halo_rows`: the rows of the neighbours are read beside a copy of the own ones.

use crate::backend::Backend;
use crate::backend::cuda::pieces::{Piece, RowCopy};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::all_to_all::expect_parcel;

const OP: &str = "halo_rows";

impl Cuda {
    pub(crate) fn halo_rows_op(&self, x: &Tensor<Cuda>, halo: [usize; 2]) -> Result<Tensor<Cuda>> {
        let (rank, world) = (self.rank(), self.world());
        let [above, below] = own_halo(halo, rank, world);
        let out = self.empty(above + x.rows() + below, x.cols())?;
        self.exchange_pieces(OP, edges_of(Piece::of(x), halo, rank, world), |given| {
            let copies = place(given, Piece::of(x), Piece::of(&out), [rank, above])?;
            Ok((out, copies))
        })
    }
}

/// The rows above and below those of this rank: none beyond the edges of the whole.
fn own_halo([above, below]: [usize; 2], rank: usize, world: usize) -> [usize; 2] {
    [if rank == 0 { 0 } else { above }, if rank + 1 == world { 0 } else { below }]
}

/// For each neighbour the rows that it reads.
fn edges_of(x: Piece, [above, below]: [usize; 2], rank: usize, world: usize) -> Vec<Vec<Piece>> {
    let [rows, _] = x.shape();
    let edge = |to: usize| {
        if to + 1 == rank {
            vec![x.rows(0..below)]
        } else if to == rank + 1 {
            vec![x.rows(rows - above..rows)]
        } else {
            Vec::new()
        }
    };
    (0..world).map(edge).collect()
}

/// The own rows behind the first `above` rows of `out`, and those of the neighbours around them.
fn place(given: &[Vec<Piece>], x: Piece, out: Piece, [rank, above]: [usize; 2]) -> Result<Vec<RowCopy>> {
    let ([rows, cols], [all, _]) = (x.shape(), out.shape());
    let mut copies = vec![x.copy_to(out.rows(above..above + rows))];
    let neighbours = [(rank.checked_sub(1), 0..above), (Some(rank + 1), above + rows..all)];
    for (neighbour, to) in neighbours {
        let Some(neighbour) = neighbour.filter(|neighbour| *neighbour < given.len()) else { continue };
        let Some(edge) = given[neighbour].first() else { continue };
        expect_parcel(OP, neighbour, edge.shape(), [to.len(), cols])?;
        copies.push(edge.copy_to(out.rows(to)));
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::pieces::on_host::Matrix;
    use crate::ops::RowSplit;

    #[test]
    fn a_halo_has_the_rows_of_the_neighbours_and_none_beyond_the_edges() {
        for (world, cols) in [(2, 8), (4, 3), (3, 24)] {
            for halo @ [above, below] in [[2, 2], [0, 2], [1, 0], [0, 0]] {
                let (split, whole) = (RowSplit::bands(9, 2, world), Matrix::counting(18, cols, 0));
                let own = |rank| split.runs_of(rank).flat_map(|run| run.whole).collect::<Vec<_>>();
                let bands: Vec<_> = (0..world).map(|rank| whole.select(own(rank), rank)).collect();
                let sent: Vec<_> =
                    bands.iter().enumerate().map(|(rank, x)| edges_of(x.piece(), halo, rank, world)).collect();
                for (rank, x) in bands.iter().enumerate() {
                    let given: Vec<_> = sent.iter().map(|edges| edges[rank].clone()).collect();
                    let [over, under] = own_halo(halo, rank, world);
                    let out = Matrix::zeros(over + own(rank).len() + under, cols);
                    let copies = place(&given, x.piece(), out.piece(), [rank, over]).unwrap();
                    copies.iter().for_each(RowCopy::run_on_host);
                    let first = own(rank)[0].saturating_sub(above);
                    let last = (own(rank)[own(rank).len() - 1] + below).min(17);
                    assert_eq!(
                        out.values(),
                        whole.select(first..=last, 0).values(),
                        "{halo:?}, rank {rank} of {world}"
                    );
                }
            }
        }
    }
}
