//! The rows of all devices, on each of them.

use super::RowSplit;
use super::all_to_all::assemble;
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// The rows of all ranks at their places in the whole.
    ///
    /// self [rows.rows_of(rank), cols] -> [rows.rows(), cols]. On one device it is returned as it is.
    ///
    /// Errors when the rows do not fit, or another rank fails or does not come.
    pub fn all_gather_rows(self, rows: &RowSplit) -> Result<Self> {
        const OP: &str = "all_gather_rows";
        expect_activations(OP, &[&self])?;
        let b = self.backend().clone();
        let own = rows.rows_of(b.rank());
        expect(rows.world() == b.world() && self.rows() == own, OP, || {
            format!("x has {} rows, expected {own}; shared by {} devices of {}", self.rows(), rows.world(), b.world())
        })?;
        b.all_gather_rows(self, rows)
    }
}

/// What `all_gather_rows` means.
pub fn compose<B: Backend>(b: &B, x: Tensor<B>, rows: &RowSplit) -> Result<Tensor<B>> {
    const OP: &str = "all_gather_rows";
    if b.world() == 1 {
        return Ok(x);
    }
    let received = b.exchange(OP, (0..b.world()).map(|_| vec![x.row_view(0..x.rows())]).collect())?;
    assemble(b, OP, *rows, &received.iter().flatten().collect::<Vec<_>>())
}
