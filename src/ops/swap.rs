//! Swaps tensors between the two halves of a group.

use super::all_to_all::{exchange_among, expect_parcel, shape_of};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Returns the tensor of the rank at the same place in the other half of the group, which gets this one.
    ///
    /// self [rows, cols] -> the same shape.
    ///
    /// Errors if the group has no halves, the other rank has another shape, or another rank fails or does not join.
    pub fn swap_halves(&self) -> Result<Self> {
        const OP: &str = "swap_halves";
        expect_activations(OP, &[self])?;
        let world = self.backend().world();
        expect(world.is_multiple_of(2), OP, || format!("{world} ranks cannot be split into halves"))?;
        self.backend().swap_halves(self)
    }
}

/// Defines `swap_halves` by an exchange.
pub fn compose<B: Backend>(b: &B, x: &Tensor<B>) -> Result<Tensor<B>> {
    const OP: &str = "swap_halves";
    let (rank, world) = (b.rank(), b.world());
    let other = (rank + world / 2) % world;
    let parcel = |to: usize| if to == other { vec![x.row_view(0..x.rows())] } else { Vec::new() };
    let mut received = exchange_among(b, OP, 0..world, parcel)?;
    let given = received.swap_remove(other).pop();
    expect_parcel(OP, other, given.as_ref().map_or([0, 0], shape_of), shape_of(x))?;
    Ok(given.unwrap_or_else(|| x.row_view(0..x.rows())))
}
