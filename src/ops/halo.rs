//! The rows of pixels that a convolution reads beyond the band of a device.

use super::all_to_all::{concat_rows, expect_parcel, shape_of};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

/// Rows of pixels above and below a band of an image. Convolutions read zeros on a side without rows.
pub struct Halo<B: Backend> {
    /// `None` at the top of the image.
    pub above: Option<Tensor<B>>,
    /// `None` at the bottom of the image.
    pub below: Option<Tensor<B>>,
}

impl<B: Backend> Default for Halo<B> {
    fn default() -> Self {
        Self { above: None, below: None }
    }
}

impl<B: Backend> Halo<B> {
    /// Returns `true` if both sides are zeros.
    pub fn is_empty(&self) -> bool {
        self.above.is_none() && self.below.is_none()
    }

    /// Returns the tensor rows above and below.
    pub fn rows(&self) -> [usize; 2] {
        [&self.above, &self.below].map(|rows| rows.as_ref().map_or(0, Tensor::rows))
    }

    /// Stacks the rows above, x, and the rows below.
    pub fn around(&self, x: &Tensor<B>) -> Result<Tensor<B>> {
        concat_rows(x.backend(), [self.above.as_ref(), Some(x), self.below.as_ref()].into_iter().flatten().collect())
    }
}

impl<B: Backend> Tensor<B> {
    /// Returns the last `above` rows of the previous rank, and the first `below` rows of the next rank. The first rank
    /// has nothing above it, and the last rank nothing below it; on one device there is no halo.
    ///
    /// self [rows, cols], rows at least `above` and `below` -> [above, cols] and [below, cols]; `None` for 0 rows.
    /// Bands of ranks may differ in rows.
    ///
    /// Errors if self has too few rows, or another rank fails or does not join.
    pub fn halo_rows(&self, [above, below]: [usize; 2]) -> Result<Halo<B>> {
        const OP: &str = "halo_rows";
        expect_activations(OP, &[self])?;
        expect(self.rows() >= above.max(below), OP, || {
            format!("a band of {} rows is too short for a halo of {above} and {below} rows", self.rows())
        })?;
        self.backend().halo_rows(self, [above, below])
    }
}

/// Defines `halo_rows` by an exchange.
pub fn compose<B: Backend>(b: &B, x: &Tensor<B>, [above, below]: [usize; 2]) -> Result<Halo<B>> {
    const OP: &str = "halo_rows";
    let (rank, rows) = (b.rank(), x.rows());
    if b.world() == 1 {
        return Ok(Halo::default());
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
    let mut received = b.exchange(OP, (0..b.world()).map(parcel).collect())?;
    let mut from = |neighbour: Option<usize>, rows: usize| -> Result<Option<Tensor<B>>> {
        let Some(neighbour) = neighbour.filter(|neighbour| *neighbour < b.world() && rows > 0) else { return Ok(None) };
        let Some(halo) = received[neighbour].pop() else { return Ok(None) };
        expect_parcel(OP, neighbour, shape_of(&halo), [rows, x.cols()])?;
        Ok(Some(halo))
    };
    Ok(Halo { above: from(rank.checked_sub(1), above)?, below: from(Some(rank + 1), below)? })
}
