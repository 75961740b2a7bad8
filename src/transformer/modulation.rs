//! Timesteps to shifts, scales and gates.
//!
//! They depend on the times of a step only, so those of all steps are computed at once: the weights are read once for
//! the whole schedule, and a step uploads nothing. The modulation of one step is one row, which is an input of the
//! step's graph.

use super::timestep_embedding;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::Norm;
use crate::tensor::{Tensor, expect};

/// The times of a step, in 0..1000.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTimes {
    /// The time of the latents.
    pub now: f32,
    /// The time that the step leads to. Only models that were distilled to know it read it.
    pub next: f32,
}

impl StepTimes {
    /// Of a model that does not read where a step leads to.
    pub fn at(now: f32) -> Self {
        Self { now, next: 0.0 }
    }
}

/// The modulation of one norm and one residual in one step, each [1, dim].
pub struct Modulation<B: Backend> {
    /// Added after the norm.
    pub shift: Tensor<B>,
    /// The norm is multiplied by 1 + scale.
    pub scale: Tensor<B>,
    /// Multiplies what is added to the stream.
    pub gate: Tensor<B>,
}

impl<B: Backend> Modulation<B> {
    /// The norm in front of `reader`.
    pub fn norm<'a>(&'a self, reader: &'a Linear<B>) -> Norm<'a, B> {
        Norm { shift: &self.shift, scale: &self.scale, reader }
    }
}

/// What text, references and the image have each for itself.
#[derive(Debug, Clone, Copy)]
pub struct Streams<T> {
    /// Of text.
    pub txt: T,
    /// Of the reference images.
    pub references: T,
    /// Of the image.
    pub img: T,
}

/// The modulation of the single blocks.
pub enum SingleModulation<B: Backend> {
    /// One for all tokens.
    Joined(Modulation<B>),
    /// One for each kind of them.
    Streams(Box<Streams<Modulation<B>>>),
}

impl<B: Backend> SingleModulation<B> {
    /// Of the parts of a stream, each of text and image rows or of rows of one kind. Where kinds have modulations of
    /// their own and there are references, text and references are one part and the image is another.
    pub(super) fn of_parts(&self, has_references: bool) -> Vec<[&Modulation<B>; 2]> {
        match self {
            Self::Joined(all) => vec![[all; 2]],
            Self::Streams(streams) => {
                let Streams { txt, references, img } = &**streams;
                if has_references { vec![[txt, references], [img; 2]] } else { vec![[txt, img]] }
            }
        }
    }
}

/// The modulation of one step.
pub struct StepModulation<B: Backend> {
    /// Attention and MLP of all double blocks: of the text stream, and of the image stream.
    pub double: Option<[[Modulation<B>; 2]; 2]>,
    /// The blocks that text, references and image have for themselves.
    pub early: Option<Streams<Modulation<B>>>,
    /// All single blocks.
    pub single: SingleModulation<B>,
    /// The final norm: (shift, scale), each [1, dim].
    pub norm_out: (Tensor<B>, Tensor<B>),
}

/// The modulations of all steps.
pub struct Modulations<B: Backend> {
    rows: Tensor<B>, // [steps, vectors * dim]
}

impl<B: Backend> Modulations<B> {
    /// The row of step `step` [1, vectors * dim], which [`Transformer::modulation`](super::Transformer::modulation)
    /// takes apart.
    pub fn row(&self, step: usize) -> Tensor<B> {
        self.rows.row_view(step..step + 1)
    }
}

/// The vectors of a row of [`Modulations`], one after the other.
pub(super) struct Vectors<B: Backend>(std::vec::IntoIter<Tensor<B>>);

impl<B: Backend> Vectors<B> {
    /// The `N` vectors of a row, as views of its columns.
    ///
    /// Errors when the number of columns is no multiple of `N`.
    pub(super) fn of<const N: usize>(row: &Tensor<B>) -> Result<Self> {
        let dim = row.cols() / N;
        expect(row.rows() == 1 && dim * N == row.cols(), "modulation", || {
            format!("a row of modulations is [{}, {}], expected [1, {N} * dim]", row.rows(), row.cols())
        })?;
        let vectors = row.row_view(0..1).split_cols([dim; N]);
        Ok(Self(Vec::from(vectors).into_iter()))
    }

    pub(super) fn next(&mut self) -> Tensor<B> {
        self.0.next().expect("as many as were split")
    }

    /// The next three.
    pub(super) fn modulation(&mut self) -> Modulation<B> {
        Modulation { shift: self.next(), scale: self.next(), gate: self.next() }
    }

    /// The last two. The checkpoint has (scale, shift) here, and (shift, scale, gate) everywhere else.
    /// Source: diffusers AdaLayerNormContinuous; the original single file has it the other way.
    pub(super) fn norm_out(&mut self) -> (Tensor<B>, Tensor<B>) {
        let (scale, shift) = (self.next(), self.next());
        (shift, scale)
    }
}

/// A time to a vector.
pub(super) struct TimeEmbedder<B: Backend> {
    channels: usize,
    linear_1: Linear<B>, // [dim, channels]
    linear_2: Linear<B>, // [dim, dim]
}

impl<B: Backend> TimeEmbedder<B> {
    pub(super) fn load(weights: &Weights<'_, B>, dim: usize, channels: usize) -> Result<Self> {
        let linear_1 = weights.linear("linear_1", dim, channels)?;
        Ok(Self { channels, linear_1, linear_2: weights.linear("linear_2", dim, dim)? })
    }

    /// [times, dim]
    fn forward(&self, backend: &B, times: &[f32]) -> Result<Tensor<B>> {
        let embedding: Vec<f32> = times.iter().flat_map(|&time| timestep_embedding(time, self.channels)).collect();
        let embedding = backend.upload(&embedding, times.len(), self.channels)?;
        embedding.linear(&self.linear_1, None)?.silu()?.linear(&self.linear_2, None)
    }
}

/// Whose time a modulation depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeOf {
    /// The latents.
    Latents,
    /// Text and references, which have no noise: it is 0.
    Context,
}

pub(super) struct ModulationWeights<B: Backend> {
    /// Embeds the time of the latents, or of the context.
    pub time: TimeEmbedder<B>,
    /// Embeds the time that a step leads to.
    pub next: Option<TimeEmbedder<B>>,
    /// What each row has, from left to right.
    pub parts: Vec<(TimeOf, Linear<B>)>,
}

impl<B: Backend> ModulationWeights<B> {
    pub(super) fn forward(&self, backend: &B, times: &[StepTimes]) -> Result<Modulations<B>> {
        let next = self.next.as_ref().map(|next| {
            let times: Vec<f32> = times.iter().map(|times| times.next).collect();
            next.forward(backend, &times)
        });
        let next = next.transpose()?;
        let vectors = |of: TimeOf| {
            if self.parts.iter().all(|(part, _)| *part != of) {
                return Ok(None);
            }
            let time = |times: &StepTimes| if of == TimeOf::Latents { times.now } else { 0.0 };
            let embedded = self.time.forward(backend, &times.iter().map(time).collect::<Vec<_>>())?;
            let sum = match &next {
                Some(next) => embedded.add(next)?,
                None => embedded,
            };
            sum.silu().map(Some)
        };
        let (latents, context) = (vectors(TimeOf::Latents)?, vectors(TimeOf::Context)?);
        let part = |(of, weight): &(TimeOf, Linear<B>)| {
            let vector = if *of == TimeOf::Latents { &latents } else { &context };
            vector.as_ref().expect("made for what is there").linear(weight, None)
        };
        let parts = self.parts.iter().map(part).collect::<Result<Vec<_>>>()?;
        Ok(Modulations { rows: Tensor::concat_cols(&parts.iter().collect::<Vec<_>>())? })
    }
}
