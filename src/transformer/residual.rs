//! The stream of tokens from layer to layer, and what is still to be added to it.
//!
//! A layer adds its output to the stream, and the next one begins with a norm of the sum. Both are one op, so the sum
//! waits for the norm: the stream is read and written once between two layers.

use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Operand;
use crate::ops::{Adaln, Norm};
use crate::tensor::Tensor;

/// The stream [rows, dim], text rows first.
pub struct Residual<'a, B: Backend> {
    x: Tensor<B>,
    /// What is still to be added to it.
    pending: Option<Gated<'a, B>>,
    adaln: Adaln,
}

/// `gate * y`
struct Gated<'a, B: Backend> {
    /// Of text rows, and of image rows.
    gates: [&'a Tensor<B>; 2],
    y: Tensor<B>,
}

impl<'a, B: Backend> Residual<'a, B> {
    /// The stream x, to which nothing was added; the norms are of `eps`.
    pub fn new(x: Tensor<B>, txt_rows: usize, eps: f32) -> Self {
        Self { x, pending: None, adaln: Adaln { txt_rows, eps } }
    }

    /// The stream, without what [`Residual::norm`] is still to add.
    pub fn x(&self) -> &Tensor<B> {
        &self.x
    }

    /// `x + gate * y`, with a gate [1, dim] for text rows and one for image rows; y [rows, dim]. The next norm adds
    /// them.
    pub(super) fn gated_add(self, gates: [&'a Tensor<B>; 2], y: Tensor<B>) -> Self {
        Self { pending: Some(Gated { gates, y }), ..self }
    }

    /// The same with one gate for all rows, none of which are text from here on: they are one stream.
    pub(super) fn gated_add_joined(self, gate: &'a Tensor<B>, y: Tensor<B>) -> Self {
        let adaln = Adaln { txt_rows: 0, ..self.adaln };
        Self { adaln, ..self.gated_add([gate; 2], y) }
    }

    /// The stream without its first `rows` rows; nothing is to be added to it.
    pub(super) fn without_rows(self, rows: usize) -> Self {
        Self { x: self.x.split_rows(rows).1, ..self }
    }

    /// The stream with all that was to be added, of rows of one kind.
    pub(super) fn sum(self) -> Result<Tensor<B>> {
        match self.pending {
            Some(Gated { gates: [_, gate], y }) => self.x.gated_add(gate, &y),
            None => Ok(self.x),
        }
    }

    /// The same of text rows, and of the others.
    pub(super) fn sums(self) -> Result<[Tensor<B>; 2]> {
        let Self { x, pending, adaln: Adaln { txt_rows, .. } } = self;
        let (txt, img) = x.split_rows(txt_rows);
        let Some(Gated { gates: [of_txt, of_img], y }) = pending else { return Ok([txt, img]) };
        let (y_txt, y_img) = y.split_rows(txt_rows);
        Ok([txt.gated_add(of_txt, &y_txt)?, img.gated_add(of_img, &y_img)?])
    }

    /// The stream, and `adaln` of it, with a norm for text rows and one for image rows; there may be no rows of one
    /// kind.
    ///
    /// Errors as [`Tensor::gated_add_adaln`] and [`Tensor::adaln_rows`].
    pub fn norm(self, norms: [Norm<'_, B>; 2]) -> Result<(Self, Operand<B>)> {
        let Self { x, pending, adaln } = self;
        let (x, h) = match pending {
            Some(Gated { gates, y }) => x.gated_add_adaln(gates, &y, norms, adaln)?,
            None => {
                let h = x.adaln_rows(norms, adaln)?;
                (x, h.into())
            }
        };
        Ok((Self { x, pending: None, adaln }, h))
    }
}
