//! Timesteps to shifts, scales and gates.
//!
//! They depend on the timestep only, so those of all steps are computed at once: the weights are read once for the
//! whole schedule, and a step uploads nothing. The modulation of one step is one row, which is an input of the step's
//! graph.

use super::{TransformerConfig, timestep_embedding};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, Weights};
use crate::ops::Norm;
use crate::tensor::{Tensor, expect};

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

/// Number of vectors of `dim` values in the modulation of a step: six for each stream of the double blocks, three for
/// the single blocks and two for the final norm.
const VECTORS: usize = 17;

/// The modulation of one step.
pub struct StepModulation<B: Backend> {
    /// Attention and MLP of the text stream of all double blocks.
    pub double_txt: [Modulation<B>; 2],
    /// Attention and MLP of the image stream of all double blocks.
    pub double_img: [Modulation<B>; 2],
    /// All single blocks.
    pub single: Modulation<B>,
    /// The final norm: (shift, scale), each [1, dim].
    pub norm_out: (Tensor<B>, Tensor<B>),
}

/// The modulations of all steps.
pub struct Modulations<B: Backend> {
    rows: Tensor<B>, // [steps, 17 * dim]
}

impl<B: Backend> Modulations<B> {
    /// The row of step `step` [1, 17 * dim], which [`StepModulation::of_row`] takes apart.
    pub fn row(&self, step: usize) -> Tensor<B> {
        self.rows.row_view(step..step + 1)
    }
}

impl<B: Backend> StepModulation<B> {
    /// The modulation that a row of [`Modulations`] holds, as views of its columns.
    ///
    /// Errors when the number of columns is no multiple of 17.
    pub fn of_row(row: &Tensor<B>) -> Result<Self> {
        let dim = row.cols() / VECTORS;
        expect(row.rows() == 1 && dim * VECTORS == row.cols(), "modulation", || {
            format!("a row of modulations is [{}, {}], expected [1, {VECTORS} * dim]", row.rows(), row.cols())
        })?;
        let mut vectors = row.row_view(0..1).split_cols([dim; VECTORS]).into_iter();
        let mut next = || vectors.next().expect("as many as were split");
        let mut three = || Modulation { shift: next(), scale: next(), gate: next() };
        let (double_img, double_txt, single) = ([three(), three()], [three(), three()], three());
        // The checkpoint has (scale, shift) here, and (shift, scale, gate) everywhere else.
        // Source: diffusers AdaLayerNormContinuous; the original single file has it the other way.
        let (scale, shift) = (next(), next());
        Ok(Self { double_txt, double_img, single, norm_out: (shift, scale) })
    }
}

pub(super) struct ModulationWeights<B: Backend> {
    channels: usize,
    linear_1: Linear<B>,                     // [dim, channels]
    linear_2: Linear<B>,                     // [dim, dim]
    double_stream_modulation_img: Linear<B>, // [6 * dim, dim]
    double_stream_modulation_txt: Linear<B>, // [6 * dim, dim]
    single_stream_modulation: Linear<B>,     // [3 * dim, dim]
    norm_out: Linear<B>,                     // [2 * dim, dim]
}

impl<B: Backend> ModulationWeights<B> {
    pub(super) fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let (dim, channels) = (config.dim(), config.timestep_guidance_channels);
        let embedder = weights.at("time_guidance_embed.timestep_embedder");
        Ok(Self {
            channels,
            linear_1: embedder.linear("linear_1", dim, channels)?,
            linear_2: embedder.linear("linear_2", dim, dim)?,
            double_stream_modulation_img: weights.linear("double_stream_modulation_img.linear", 6 * dim, dim)?,
            double_stream_modulation_txt: weights.linear("double_stream_modulation_txt.linear", 6 * dim, dim)?,
            single_stream_modulation: weights.linear("single_stream_modulation.linear", 3 * dim, dim)?,
            norm_out: weights.linear("norm_out.linear", 2 * dim, dim)?,
        })
    }

    pub(super) fn forward(&self, backend: &B, timesteps: &[f32]) -> Result<Modulations<B>> {
        let embedding: Vec<f32> = timesteps.iter().flat_map(|&t| timestep_embedding(t, self.channels)).collect();
        let embedding = backend.upload(&embedding, timesteps.len(), self.channels)?;
        let temb = embedding.linear(&self.linear_1, None)?.silu()?.linear(&self.linear_2, None)?;
        let temb = temb.silu()?;
        let parts = [
            temb.linear(&self.double_stream_modulation_img, None)?,
            temb.linear(&self.double_stream_modulation_txt, None)?,
            temb.linear(&self.single_stream_modulation, None)?,
            temb.linear(&self.norm_out, None)?,
        ];
        Ok(Modulations { rows: Tensor::concat_cols(&parts.each_ref())? })
    }
}
