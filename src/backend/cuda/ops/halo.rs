//! `halo_rows`: exchanges rows with the neighbours.

use crate::backend::Group;
use crate::backend::cuda::pieces::{RowChunk, RowCopy};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::Halo;
use crate::ops::all_to_all::expect_parcel;

const OP: &str = "halo_rows";

impl Cuda {
    pub(crate) fn halo_rows_op(&self, x: &Tensor<Cuda>, halo: [usize; 2]) -> Result<Halo<Cuda>> {
        let (rank, world) = (self.rank(), self.world());
        let made = |rows: usize| (rows > 0).then(|| self.empty(rows, x.cols())).transpose();
        let [above, below] = own_halo(halo, rank, world).map(made);
        let halo_of_own = Halo { above: above?, below: below? };
        self.exchange_pieces(OP, edges_of(RowChunk::new(x), halo, rank, world), |given| {
            let to = [&halo_of_own.above, &halo_of_own.below].map(|rows| rows.as_ref().map(RowChunk::new));
            Ok((halo_of_own, place(given, to, rank)?))
        })
    }
}

/// Returns the rows above and below those of this rank: none beyond the edges of the image.
fn own_halo([above, below]: [usize; 2], rank: usize, world: usize) -> [usize; 2] {
    [if rank == 0 { 0 } else { above }, if rank + 1 == world { 0 } else { below }]
}

/// Returns the rows that each neighbour gets.
fn edges_of(x: RowChunk, [above, below]: [usize; 2], rank: usize, world: usize) -> Vec<Vec<RowChunk>> {
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

/// Returns the copies of the neighbours' edges above and below to their places.
fn place(given: &[Vec<RowChunk>], to: [Option<RowChunk>; 2], rank: usize) -> Result<Vec<RowCopy>> {
    let mut copies = Vec::new();
    for (neighbour, to) in [rank.checked_sub(1), Some(rank + 1)].into_iter().zip(to) {
        let (Some(neighbour), Some(to)) = (neighbour, to) else { continue };
        let Some(edge) = given.get(neighbour).and_then(|edges| edges.first()) else { continue };
        expect_parcel(OP, neighbour, edge.shape(), to.shape())?;
        copies.push(edge.copy_to(to));
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
                for rank in 0..world {
                    let given: Vec<_> = sent.iter().map(|edges| edges[rank].clone()).collect();
                    let made = own_halo(halo, rank, world).map(|rows| Matrix::zeros(rows, cols));
                    let to = [&made[0], &made[1]].map(|rows| Some(rows.piece()).filter(|piece| piece.bytes() > 0));
                    let copies = place(&given, to, rank).unwrap();
                    copies.iter().for_each(RowCopy::run_on_host);
                    let (first, end) = (own(rank)[0], own(rank)[own(rank).len() - 1] + 1);
                    let around = [first.saturating_sub(above)..first, end..(end + below).min(18)];
                    for (made, rows) in made.iter().zip(around) {
                        assert_eq!(made.values(), whole.select(rows, 0).values(), "{halo:?}, rank {rank} of {world}");
                    }
                }
            }
        }
    }
}
