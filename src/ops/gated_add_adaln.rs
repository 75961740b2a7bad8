//! A gated residual and the norm that follows it: the ops between two layers of the transformer.

use super::linear::expect_weight;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::tensor::{Tensor, expect, expect_activations};

/// A modulated norm, and the layer that reads its result.
pub struct Norm<'a, B: Backend> {
    /// [1, dim]
    pub shift: &'a Tensor<B>,
    /// [1, dim]
    pub scale: &'a Tensor<B>,
    /// The layer that reads the result. A backend may convert the result to the form in which this layer multiplies
    /// it.
    pub reader: &'a Linear<B>,
}

// A derived implementation would demand a backend that is `Copy`.
impl<B: Backend> Clone for Norm<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Norm<'_, B> {}

/// The parameters of the norms in [`Tensor::gated_add_adaln`] and [`Tensor::adaln_rows`].
#[derive(Debug, Clone, Copy)]
pub struct Adaln {
    /// Number of rows that the first gate and the first norm apply to.
    pub txt_rows: usize,
    /// Added to the variance.
    pub eps: f32,
}

impl Adaln {
    /// Errors if there are more text rows than x has rows.
    pub(super) fn expect_rows<B: Backend>(self, op: &str, x: &Tensor<B>) -> Result<()> {
        let txt_rows = self.txt_rows;
        expect(txt_rows <= x.rows(), op, || format!("x has {} rows, too few for {txt_rows} rows of text", x.rows()))
    }
}

/// The operands of [`Tensor::gated_add_adaln`]. In each pair, the first is for the text rows, the second for the rest.
pub struct GatedAddAdaln<'a, B: Backend> {
    /// [rows, dim]. The sum may overwrite it.
    pub x: Tensor<B>,
    /// 2 x [1, dim]
    pub gates: [&'a Tensor<B>; 2],
    /// [rows, dim]
    pub y: &'a Tensor<B>,
    /// The norms of the sum.
    pub norms: [Norm<'a, B>; 2],
    /// The parameters of the norms.
    pub adaln: Adaln,
}

impl<B: Backend> Tensor<B> {
    /// Returns (x, h): `x = self + gate * y` and `h = adaln(x)`.
    ///
    /// self and y [rows, dim]; gates [1, dim] -> 2 x [rows, dim]. The first gate and norm apply to the first
    /// `txt_rows` rows, which may be none, the second ones to the rows after them. x overwrites self if it is
    /// writable.
    ///
    /// Errors if a gate, shift or scale is not [1, dim], y differs from self in shape, `txt_rows` exceeds the rows, or
    /// a reader does not take `dim` columns.
    pub fn gated_add_adaln(
        self,
        gates: [&Self; 2],
        y: &Self,
        norms: [Norm<'_, B>; 2],
        adaln: Adaln,
    ) -> Result<(Self, Operand<B>)> {
        const OP: &str = "gated_add_adaln";
        for (gate, norm) in gates.into_iter().zip(norms) {
            for (name, vector) in [("gate", gate), ("shift", norm.shift), ("scale", norm.scale)] {
                expect_activations(OP, &[&self, vector])?;
                self.expect_vec(OP, name, vector)?;
            }
            expect_weight(OP, self.backend(), self.cols(), norm.reader)?;
        }
        expect_activations(OP, &[&self, y])?;
        self.expect_same(OP, "y", y)?;
        adaln.expect_rows(OP, &self)?;
        let b = self.backend().clone();
        b.gated_add_adaln(GatedAddAdaln { x: self, gates, y, norms, adaln })
    }
}

/// Defines `gated_add_adaln` by simpler ops.
pub fn compose<B: Backend>(b: &B, operands: GatedAddAdaln<'_, B>) -> Result<(Tensor<B>, Operand<B>)> {
    let GatedAddAdaln { x, gates: [of_txt, of_img], y, norms, adaln } = operands;
    let (txt_rows, rows) = (adaln.txt_rows, x.rows());
    let x = if txt_rows == 0 {
        b.gated_add(x, of_img, y)?
    } else {
        let (txt, img) = x.split_rows(txt_rows);
        let txt = b.gated_add(txt, of_txt, &y.row_view(0..txt_rows))?;
        txt.join_rows(b.gated_add(img, of_img, &y.row_view(txt_rows..rows))?)?
    };
    let h = b.adaln_rows(&x, norms, adaln)?;
    Ok((x, h.into()))
}
