//! Gathers the rows of all devices on each device.

use super::RowSplit;
use super::all_to_all::{assemble, exchange_among};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Returns the rows of all ranks that share them, at their places in the whole.
    ///
    /// self [rows.rows_of(rank), cols] -> [rows.rows(), cols]. If one device has all rows, it returns them unchanged.
    ///
    /// Errors if the rows do not fit, or another rank fails or does not join.
    pub fn all_gather_rows(self, rows: &RowSplit) -> Result<Self> {
        const OP: &str = "all_gather_rows";
        expect_activations(OP, &[&self])?;
        let b = self.backend().clone();
        let (rank, ranks) = (b.rank(), rows.ranks());
        expect(ranks.contains(&rank) && ranks.end <= b.world(), OP, || {
            format!("ranks {ranks:?} cannot share rows on rank {rank} of {}", b.world())
        })?;
        let own = rows.rows_of(rank - ranks.start);
        expect(self.rows() == own, OP, || format!("x has {} rows, expected {own}", self.rows()))?;
        b.all_gather_rows(self, rows)
    }
}

/// Defines `all_gather_rows` by an exchange.
pub fn compose<B: Backend>(b: &B, x: Tensor<B>, rows: &RowSplit) -> Result<Tensor<B>> {
    const OP: &str = "all_gather_rows";
    if rows.world() == 1 {
        return Ok(x);
    }
    let received = exchange_among(b, OP, rows.ranks(), |_| vec![x.row_view(0..x.rows())])?;
    assemble(b, OP, *rows, &received.iter().flatten().collect::<Vec<_>>())
}
