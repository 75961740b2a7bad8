//! The rows of pixels that a convolution reads beyond the band of this device.

use super::all_to_all::{concat_rows, expect_parcel, shape_of};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// self with the last `above` rows of the rank before this one over it, and the first `below` rows of the rank after
    /// it under it. The first rank has nothing over it, and the last one nothing under it.
    ///
    /// self [rows, cols], rows at least `above` and `below` -> [rows + above or 0 + below or 0, cols]. The bands of ranks
    /// may differ in rows. On one device it is self, to read.
    ///
    /// Errors when self has too few rows, or another rank fails or does not come.
    pub fn halo_rows(&self, [above, below]: [usize; 2]) -> Result<Self> {
        const OP: &str = "halo_rows";
        expect_activations(OP, &[self])?;
        expect(self.rows() >= above.max(below), OP, || {
            format!("a band of {} rows has no halo of {above} and {below} rows", self.rows())
        })?;
        self.backend().halo_rows(self, [above, below])
    }
}

/// What `halo_rows` means.
pub fn compose<B: Backend>(b: &B, x: &Tensor<B>, [above, below]: [usize; 2]) -> Result<Tensor<B>> {
    const OP: &str = "halo_rows";
    let (rank, rows) = (b.rank(), x.rows());
    if b.world() == 1 {
        return Ok(x.row_view(0..rows));
    }
    let parcel = |to: usize| {
        if to + 1 == rank {
            vec![x.row_view(0..below)]
        } else if to == rank + 1 {
            vec![x.row_view(rows - above..rows)]
        } else {
            Vec::new()
        }
    };
    let received = b.exchange(OP, (0..b.world()).map(parcel).collect())?;
    let from = |neighbour: Option<usize>, rows: usize| -> Result<Option<&Tensor<B>>> {
        let Some(neighbour) = neighbour.filter(|neighbour| *neighbour < b.world()) else { return Ok(None) };
        let Some(halo) = received[neighbour].first() else { return Ok(None) };
        expect_parcel(OP, neighbour, shape_of(halo), [rows, x.cols()])?;
        Ok(Some(halo))
    };
    let parts = [from(rank.checked_sub(1), above)?, Some(x), from(Some(rank + 1), below)?];
    concat_rows(b, parts.into_iter().flatten().collect())
}
