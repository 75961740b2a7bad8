//! Modulations: shifts, scales and gates from timesteps.
//!
//! Modulations depend only on the times of a step, so those of all steps are computed at once: the weights are read
//! once for the whole schedule, and a step uploads nothing. The modulation of one step is one row, which is an input
//! of the step's graph.

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
    /// The time that the step leads to. Only models that were distilled with it read it.
    pub next: f32,
}

impl StepTimes {
    /// Creates the times for a model that does not read the time a step leads to.
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
    /// Multiplies the layer's output before it is added to the stream.
    pub gate: Tensor<B>,
}

impl<B: Backend> Modulation<B> {
    /// Returns the norm before `reader`.
    pub fn norm<'a>(&'a self, reader: &'a Linear<B>) -> Norm<'a, B> {
        Norm { shift: &self.shift, scale: &self.scale, reader }
    }
}

/// The modulation of the double blocks: for text, then for the image.
pub struct DoubleModulation<B: Backend> {
    /// Attention.
    pub attn: [Modulation<B>; 2],
    /// The MLPs.
    pub mlp: [Modulation<B>; 2],
}

/// A kind of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Text.
    Text,
    /// The reference images.
    References,
    /// The image.
    Image,
}

/// One value for each kind of tokens.
#[derive(Debug, Clone, Copy)]
pub struct PerKind<T> {
    /// The value of text.
    pub txt: T,
    /// The value of the reference images.
    pub references: T,
    /// The value of the image.
    pub img: T,
}

impl<T> PerKind<T> {
    /// Returns the value of a kind.
    pub(super) fn get(&self, kind: TokenKind) -> &T {
        match kind {
            TokenKind::Text => &self.txt,
            TokenKind::References => &self.references,
            TokenKind::Image => &self.img,
        }
    }
}

/// The modulation of the single blocks.
pub enum SingleModulation<B: Backend> {
    /// One for all tokens.
    Joined(Modulation<B>),
    /// One for each kind of tokens.
    Apart(Box<PerKind<Modulation<B>>>),
}

impl<B: Backend> SingleModulation<B> {
    /// Returns the modulation of each part of a stream of all tokens. If there are references and every kind has its
    /// own modulation, text and references are one part, and the image is another.
    pub(super) fn modulated_parts(&self, has_references: bool) -> Vec<Modulated<'_, B>> {
        match self {
            Self::Joined(all) => vec![Modulated::Joined(all)],
            Self::Apart(kinds) => {
                let PerKind { txt, references, img } = &**kinds;
                if has_references {
                    vec![Modulated::Apart([txt, references]), Modulated::Joined(img)]
                } else {
                    vec![Modulated::Apart([txt, img])]
                }
            }
        }
    }
}

/// The modulation of one step.
pub struct StepModulation<B: Backend> {
    /// All double blocks; `None` for models without them.
    pub double: Option<DoubleModulation<B>>,
    /// The early blocks of each kind of tokens; `None` for models without them.
    pub early: Option<PerKind<Modulation<B>>>,
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
    /// Returns the row of step `step`, [1, vectors * dim], for
    /// [`Transformer::modulation`](super::Transformer::modulation).
    pub fn row(&self, step: usize) -> Tensor<B> {
        self.rows.row_view(step..step + 1)
    }
}

/// The vectors of a row of [`Modulations`], one after the other.
pub(super) struct Vectors<B: Backend>(std::vec::IntoIter<Tensor<B>>);

impl<B: Backend> Vectors<B> {
    /// Returns the `N` vectors of a row, as views of its columns.
    ///
    /// Errors if the number of columns is no multiple of `N`.
    pub(super) fn from_row<const N: usize>(row: &Tensor<B>) -> Result<Self> {
        let dim = row.cols() / N;
        expect(row.rows() == 1 && dim * N == row.cols(), "modulation", || {
            format!("a row of modulations has shape [{}, {}], expected [1, {N} * dim]", row.rows(), row.cols())
        })?;
        let vectors = row.row_view(0..1).split_cols([dim; N]);
        Ok(Self(Vec::from(vectors).into_iter()))
    }

    fn next(&mut self) -> Tensor<B> {
        self.0.next().expect("one per split vector")
    }

    /// Takes the next modulations, of three vectors each.
    pub(super) fn modulations<const N: usize>(&mut self) -> [Modulation<B>; N] {
        [(); N].map(|()| Modulation { shift: self.next(), scale: self.next(), gate: self.next() })
    }

    /// Takes the last two vectors. The checkpoint has (scale, shift) here, and (shift, scale, gate) everywhere else.
    /// Source: diffusers AdaLayerNormContinuous; the original single file has (shift, scale).
    pub(super) fn norm_out(&mut self) -> (Tensor<B>, Tensor<B>) {
        let (scale, shift) = (self.next(), self.next());
        (shift, scale)
    }
}

/// Embeds a time as a vector.
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

    /// Embeds times -> [times, dim].
    fn forward(&self, backend: &B, times: &[f32]) -> Result<Tensor<B>> {
        let embedding: Vec<f32> = times.iter().flat_map(|&time| timestep_embedding(time, self.channels)).collect();
        let embedding = backend.upload(&embedding, times.len(), self.channels)?;
        embedding.linear(&self.linear_1, None)?.silu()?.linear(&self.linear_2, None)
    }
}

/// The time that a modulation depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeOf {
    /// The time of the latents.
    Latents,
    /// Time 0, for text and references, which have no noise.
    Context,
}

pub(super) struct ModulationWeights<B: Backend> {
    /// Embeds the time of the latents, or of the context.
    pub time: TimeEmbedder<B>,
    /// Embeds the time that a step leads to.
    pub next: Option<TimeEmbedder<B>>,
    /// The parts of a row, from left to right.
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
            vector.as_ref().expect("computed for every part").linear(weight, None)
        };
        let parts = self.parts.iter().map(part).collect::<Result<Vec<_>>>()?;
        Ok(Modulations { rows: Tensor::concat_cols(&parts.iter().collect::<Vec<_>>())? })
    }
}

/// The modulation of a part of a stream.
pub enum Modulated<'a, B: Backend> {
    /// All rows have one modulation. From the next addition on, no rows count as text.
    Joined(&'a Modulation<B>),
    /// Text rows have the first modulation, and the rows after them the second.
    Apart([&'a Modulation<B>; 2]),
}

impl<'a, B: Backend> Modulated<'a, B> {
    /// Returns the modulations of text rows and of the rows after them.
    pub(super) fn row_modulations(self) -> [&'a Modulation<B>; 2] {
        match self {
            Self::Joined(all) => [all; 2],
            Self::Apart(of_rows) => of_rows,
        }
    }
}

// A derived implementation would demand a backend that is `Copy`.
impl<B: Backend> Clone for Modulated<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Modulated<'_, B> {}
