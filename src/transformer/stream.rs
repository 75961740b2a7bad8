//! The residual stream of tokens.
//!
//! A layer takes two lines, as in the paper: [`Stream::norm`] is `h = (1 + scale) * LN(x) + shift`, and
//! [`Residual::add`] is `x += gate * y`. The addition waits for the norm of the next layer: both are one op, so the
//! stream is read and written once between two layers.
//!
//! An op takes two modulations at most: one for text rows, and one for the rows after them. A stream with more
//! modulations has several parts, one after the other.

use super::{Modulated, Modulation};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::{Adaln, Norm};
use crate::tensor::Tensor;

/// Normed rows, and the layer that multiplies them.
type Read<'r, B> = (Operand<B>, &'r Linear<B>);

/// The stream [rows, dim], before the norm of a layer.
pub struct Stream<'a, B: Backend> {
    parts: Vec<Part<'a, B>>,
}

/// The stream after the norm of a layer, which waits for the layer's output.
pub struct Residual<'a, B: Backend> {
    parts: Vec<(Part<'a, B>, Modulated<'a, B>)>,
}

/// Rows of the stream, text rows first.
struct Part<'a, B: Backend> {
    x: Tensor<B>,
    /// The pending addition.
    pending: Option<Gated<'a, B>>,
    adaln: Adaln,
}

/// `gate * y`
struct Gated<'a, B: Backend> {
    /// The gates of text rows and of the rows after them.
    gates: [&'a Tensor<B>; 2],
    y: Tensor<B>,
}

impl<'a, B: Backend> Stream<'a, B> {
    /// Creates a stream of one part, whose first `txt_rows` rows are text; `eps` is that of the norms.
    pub fn new(x: Tensor<B>, txt_rows: usize, eps: f32) -> Self {
        Self { parts: vec![Part { x, pending: None, adaln: Adaln { txt_rows, eps } }] }
    }

    /// Concatenates streams. Each keeps its parts.
    pub(super) fn concat(streams: impl IntoIterator<Item = Self>) -> Self {
        Self { parts: streams.into_iter().flat_map(|stream| stream.parts).collect() }
    }

    /// Norms the stream for a layer that multiplies all rows by `reader`. There is a modulation for each part.
    ///
    /// Errors as [`Tensor::gated_add_adaln`] and [`Tensor::adaln_rows`]. Panics if the numbers of parts and of
    /// modulations differ.
    pub fn norm<'r>(
        self,
        modulations: &[Modulated<'a, B>],
        reader: &'r Linear<B>,
    ) -> Result<(Residual<'a, B>, Vec<Read<'r, B>>)> {
        assert_eq!(self.parts.len(), modulations.len(), "parts and modulations of a stream");
        let (mut parts, mut reads) = (Vec::new(), Vec::new());
        for (part, modulated) in self.parts.into_iter().zip(modulations) {
            let (part, h) = part.norm(modulated.row_modulations().map(|of_rows| of_rows.norm(reader)))?;
            parts.push((part, *modulated));
            reads.push((h, reader));
        }
        Ok((Residual { parts }, reads))
    }

    /// Norms a stream of one part for a layer with separate weights: text rows have the first modulation and reader,
    /// and the rows after them the second.
    ///
    /// Errors as [`Stream::norm`]. Panics if there are several parts.
    pub(super) fn norm_apart<'r>(
        self,
        modulations: &'a [Modulation<B>; 2],
        readers: [&'r Linear<B>; 2],
    ) -> Result<(Residual<'a, B>, Vec<Read<'r, B>>)> {
        let [txt, img] = modulations.each_ref();
        let (part, h) = self.into_part().norm([txt.norm(readers[0]), img.norm(readers[1])])?;
        let (h_txt, h_img) = h.split_rows(part.adaln.txt_rows);
        let residual = Residual { parts: vec![(part, Modulated::Apart([txt, img]))] };
        Ok((residual, vec![(h_txt, readers[0]), (h_img, readers[1])]))
    }

    /// Norms a stream of one part for the final layer.
    ///
    /// Errors as [`Stream::norm`]. Panics if there are several parts.
    pub(super) fn norm_out(self, norm: Norm<'_, B>) -> Result<Operand<B>> {
        Ok(self.into_part().norm([norm; 2])?.1)
    }

    /// Returns the rows of a stream of one part and one kind, with their pending addition.
    ///
    /// Errors as [`Tensor::gated_add`]. Panics if there are several parts.
    pub(super) fn sum(self) -> Result<Tensor<B>> {
        self.into_part().sum()
    }

    /// Returns the rows of each modulation, with their pending additions.
    ///
    /// Errors as [`Tensor::gated_add`].
    pub(super) fn sums(self) -> Result<Vec<Tensor<B>>> {
        let mut sums = Vec::new();
        for part in self.parts {
            sums.extend(part.sums()?);
        }
        Ok(sums)
    }

    fn into_part(self) -> Part<'a, B> {
        let [part] = <[_; 1]>::try_from(self.parts).ok().expect("the stream has one part");
        part
    }
}

impl<'a, B: Backend> Residual<'a, B> {
    /// Returns the rows of each part.
    pub fn x(&self) -> impl Iterator<Item = &Tensor<B>> {
        self.parts.iter().map(|(part, _)| &part.x)
    }

    /// Keeps only the last `rows` rows, which are image rows of the last part. They have one modulation.
    pub(super) fn image_rows(mut self, rows: usize) -> Self {
        let (part, modulated) = self.parts.pop().expect("a stream has a part");
        let [_, img] = modulated.row_modulations();
        Self { parts: vec![(part.last_rows(rows), Modulated::Joined(img))] }
    }

    /// Adds `gate * y`, y [rows, dim], when the next layer norms the stream.
    pub(super) fn add(self, mut y: Tensor<B>) -> Stream<'a, B> {
        let mut parts = Vec::new();
        for (part, modulated) in self.parts {
            let (own, rest) = y.split_rows(part.x.rows());
            parts.push(part.gated_add(modulated, own));
            y = rest;
        }
        Stream { parts }
    }
}

impl<'a, B: Backend> Part<'a, B> {
    /// Returns the part with its pending addition, and `adaln` of it, with a norm for text rows and one for the rows
    /// after them. One kind may have no rows.
    fn norm(self, norms: [Norm<'_, B>; 2]) -> Result<(Self, Operand<B>)> {
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

    fn gated_add(self, modulated: Modulated<'a, B>, y: Tensor<B>) -> Self {
        let txt_rows = match modulated {
            Modulated::Joined(_) => 0,
            Modulated::Apart(_) => self.adaln.txt_rows,
        };
        let gates = modulated.row_modulations().map(|of_rows| &of_rows.gate);
        Self { pending: Some(Gated { gates, y }), adaln: Adaln { txt_rows, ..self.adaln }, ..self }
    }

    /// Keeps only the last `rows` rows. There must be no pending addition.
    fn last_rows(self, rows: usize) -> Self {
        let others = self.x.rows() - rows;
        Self { x: self.x.split_rows(others).1, ..self }
    }

    fn sum(self) -> Result<Tensor<B>> {
        match self.pending {
            Some(Gated { gates: [_, gate], y }) => self.x.gated_add(gate, &y),
            None => Ok(self.x),
        }
    }

    /// Returns the text rows and the rows after them, or all rows if none are text.
    fn sums(self) -> Result<Vec<Tensor<B>>> {
        let txt_rows = self.adaln.txt_rows;
        if txt_rows == 0 {
            return Ok(vec![self.sum()?]);
        }
        let (txt, img) = self.x.split_rows(txt_rows);
        let Some(Gated { gates: [of_txt, of_img], y }) = self.pending else { return Ok(vec![txt, img]) };
        let (y_txt, y_img) = y.split_rows(txt_rows);
        Ok(vec![txt.gated_add(of_txt, &y_txt)?, img.gated_add(of_img, &y_img)?])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::cpu::{Cpu, Precision};
    use crate::backend::{Memory, Storage};
    use crate::files::{Bytes, Format, Scales, TensorView};

    const DIM: usize = 8;
    const EPS: f32 = 1e-6;

    fn cpu() -> Cpu {
        Cpu::new(Precision::F32)
    }

    fn tensor(rows: usize, from: usize) -> Tensor<Cpu> {
        let values: Vec<f32> = (0..rows * DIM).map(|i| ((from + 7 * i) % 23) as f32 / 23.0 - 0.4).collect();
        cpu().upload(&values, rows, DIM).unwrap()
    }

    fn reader() -> Linear<Cpu> {
        let bytes = Arc::new(Bytes::Computed(vec![0.0; DIM]));
        let view = TensorView::new(bytes, 0..4 * DIM, Format::F32, vec![1, DIM], Scales::None).unwrap();
        Linear::load(&cpu(), "reader", &[view], Storage::Native).unwrap()
    }

    fn modulation(from: usize) -> Modulation<Cpu> {
        Modulation { shift: tensor(1, from), scale: tensor(1, from + 1), gate: tensor(1, from + 2) }
    }

    fn values(tensors: &[Tensor<Cpu>]) -> Vec<f32> {
        tensors.iter().flat_map(|tensor| cpu().download(tensor).unwrap()).collect()
    }

    /// `(1 + scale) * LN(x) + shift` of each kind of rows.
    fn normed(kinds: &[(Tensor<Cpu>, &Modulation<Cpu>)]) -> Vec<f32> {
        let normed =
            |(x, of_rows): &(Tensor<Cpu>, &Modulation<Cpu>)| x.adaln(&of_rows.shift, &of_rows.scale, EPS).unwrap();
        values(&kinds.iter().map(normed).collect::<Vec<_>>())
    }

    #[test]
    fn every_kind_of_rows_has_its_own_modulation_in_the_norm_and_in_the_addition() {
        let reader = reader();
        let [txt, references, img] = [0, 3, 6].map(modulation);
        let kinds = || [tensor(2, 1), tensor(3, 2), tensor(4, 3)];
        let [x_txt, x_references, x_img] = kinds();
        let context = Tensor::concat_rows(&[&x_txt, &x_references]).unwrap();
        let modulations = [Modulated::Apart([&txt, &references]), Modulated::Joined(&img)];
        let stream =
            || Stream::concat([Stream::new(context.row_view(0..5), 2, EPS), Stream::new(x_img.row_view(0..4), 0, EPS)]);

        let (residual, h) = stream().norm(&modulations, &reader).unwrap();
        let h: Vec<_> = h.iter().map(|(h, _)| h.tensor().row_view(0..h.rows())).collect();
        assert_eq!(values(&h), normed(&[(x_txt, &txt), (x_references, &references), (x_img.row_view(0..4), &img)]));

        let y = tensor(9, 4);
        let sums = residual.add(y.row_view(0..9)).sums().unwrap();
        let added = |x: Tensor<Cpu>, of_rows: &Modulation<Cpu>, first: usize| {
            let rows = first..first + x.rows();
            x.gated_add(&of_rows.gate, &y.row_view(rows)).unwrap()
        };
        let [x_txt, x_references, _] = kinds();
        let expected =
            [added(x_txt, &txt, 0), added(x_references, &references, 2), added(x_img.row_view(0..4), &img, 5)];
        assert_eq!((sums.len(), values(&sums)), (3, values(&expected)));

        let (residual, _) = stream().norm(&modulations, &reader).unwrap();
        let y = tensor(3, 8);
        let expected = x_img.row_view(1..4).gated_add(&img.gate, &y).unwrap();
        let last = residual.image_rows(3).add(y).sum().unwrap();
        assert_eq!(values(&[last]), values(&[expected]));
    }

    #[test]
    fn a_joined_modulation_ends_the_text_rows_after_its_own_norm() {
        let reader = reader();
        let [both, joined] = [[0, 3].map(modulation), [6, 9].map(modulation)];
        let y = || tensor(6, 4);
        let (residual, h) = Stream::new(tensor(6, 1), 2, EPS).norm_apart(&both, [&reader; 2]).unwrap();
        assert_eq!(h.iter().map(|(h, _)| h.rows()).collect::<Vec<_>>(), [2, 4]);
        let (residual, _) = residual.add(y()).norm(&[Modulated::Joined(&joined[0])], &reader).unwrap();
        let after: Vec<_> = residual.x().map(|x| x.row_view(0..x.rows())).collect();
        let (x_txt, x_img) = tensor(6, 1).split_rows(2);
        let (y_txt, y_img) = y().split_rows(2);
        let apart = [x_txt.gated_add(&both[0].gate, &y_txt).unwrap(), x_img.gated_add(&both[1].gate, &y_img).unwrap()];
        assert_eq!(values(&after), values(&apart));
        assert_eq!(residual.add(y()).sums().unwrap().len(), 1);
    }
}
