//! A gated residual and the norm behind it: what lies between two layers of the transformer.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect};

/// How [`Tensor::gated_add_adaln`] norms.
#[derive(Debug, Clone, Copy)]
pub struct Adaln {
    /// Rows that the first gate and norm serve.
    pub txt_rows: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether only products with weights of [`Weights::narrow`](crate::nn::Weights::narrow) read h: a backend may
    /// give it in the form in which they do.
    pub narrow: bool,
}

impl<B: Backend> Tensor<B> {
    /// `x = self + gate * y` and `h = adaln(x)`, as (x, h).
    ///
    /// self and y [rows, dim]; gates [1, dim]; norms (shift, scale), each [1, dim] -> 2 x [rows, dim]. The first gate
    /// and norm serve the first `txt_rows` rows, which may be none, the second ones the rows behind. x goes over self
    /// where that is writable.
    ///
    /// Errors when a gate, shift or scale is not [1, dim], y not of the shape of self, or `txt_rows` more than there
    /// are.
    pub fn gated_add_adaln(
        self,
        gates: [&Self; 2],
        y: &Self,
        norms: [(&Self, &Self); 2],
        adaln: Adaln,
    ) -> Result<(Self, Self)> {
        for (gate, (shift, scale)) in gates.into_iter().zip(norms) {
            for (name, vector) in [("gate", gate), ("shift", shift), ("scale", scale)] {
                self.expect_vec("gated_add_adaln", name, vector)?;
            }
        }
        self.expect_same("gated_add_adaln", "y", y)?;
        let txt_rows = adaln.txt_rows;
        expect(txt_rows <= self.rows(), "gated_add_adaln", || {
            format!("x has {} rows, of which {txt_rows} cannot be text", self.rows())
        })?;
        let b = self.backend().clone();
        b.gated_add_adaln(self, gates, y, norms, adaln)
    }
}

/// What `gated_add_adaln` means.
pub fn compose<B: Backend>(
    b: &B,
    x: Tensor<B>,
    gates: [&Tensor<B>; 2],
    y: &Tensor<B>,
    norms: [(&Tensor<B>, &Tensor<B>); 2],
    Adaln { txt_rows, eps, .. }: Adaln,
) -> Result<(Tensor<B>, Tensor<B>)> {
    let rows = x.rows();
    let of = |part: usize, x: Tensor<B>, y: Tensor<B>| -> Result<(Tensor<B>, Tensor<B>)> {
        let (shift, scale) = norms[part];
        let x = b.gated_add(x, gates[part], &y)?;
        let h = b.adaln(&x, shift, scale, eps)?;
        Ok((x, h))
    };
    if txt_rows == 0 {
        return of(1, x, y.row_view(0..rows));
    }
    let (txt, img) = x.split_rows(txt_rows);
    let (txt, txt_h) = of(0, txt, y.row_view(0..txt_rows))?;
    let (img, img_h) = of(1, img, y.row_view(txt_rows..rows))?;
    Ok((txt.join_rows(img)?, txt_h.join_rows(img_h)?))
}
