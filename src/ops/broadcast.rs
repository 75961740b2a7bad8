//! Copies a tensor of rank 0 to all devices.

use super::all_to_all::{expect_parcel, shape_of};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, expect, expect_activation};

impl<B: Backend> Tensor<B> {
    /// Returns rank 0's x on every rank; other ranks pass `None`.
    ///
    /// x [rows, cols] -> the same shape. On one device x is returned unchanged.
    ///
    /// Errors if rank 0 passes `None`, x is not [rows, cols], or another rank fails or does not join.
    pub fn broadcast(on: &B, x: Option<Self>, [rows, cols]: [usize; 2]) -> Result<Self> {
        const OP: &str = "broadcast";
        expect(x.is_some() == (on.rank() == 0), OP, || {
            format!("rank {} passes {}, expected x from rank 0 only", on.rank(), if x.is_some() { "x" } else { "no x" })
        })?;
        if let Some(x) = &x {
            expect_activation(OP, on, x)?;
            expect((x.rows(), x.cols()) == (rows, cols), OP, || {
                format!("x has shape [{}, {}], expected [{rows}, {cols}]", x.rows(), x.cols())
            })?;
        }
        on.broadcast(x, [rows, cols])
    }
}

/// Defines `broadcast` by an exchange.
pub fn compose<B: Backend>(b: &B, x: Option<Tensor<B>>, shape: [usize; 2]) -> Result<Tensor<B>> {
    const OP: &str = "broadcast";
    let parcel = |_| x.iter().map(|x| x.row_view(0..x.rows())).collect();
    let mut received = if b.world() == 1 { Vec::new() } else { b.exchange(OP, (0..b.world()).map(parcel).collect())? };
    let from_first = received.first_mut().and_then(Vec::pop);
    let x = x.or(from_first).ok_or_else(|| Error::new("rank 0 sent nothing").at(format!("op `{OP}`")))?;
    expect_parcel(OP, 0, shape_of(&x), shape)?;
    Ok(x)
}
