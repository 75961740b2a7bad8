//! The denoiser: image tokens, text tokens and a time to a velocity.
//!
//! FLUX.2 and FLUX.3 are made of the same blocks, see their files. All blocks of a kind share their modulations, so
//! these are computed once for each timestep, outside the blocks. What a block adds to the stream is added by the next
//! norm, see [`Residual`].
//!
//! Of several devices that make one image, each has all weights and its share of the tokens, see
//! [`TokenSplit`]: every tensor of tokens here has the rows of one device. Only attention needs those of the others.

mod config;
mod double_block;
mod early;
mod embed;
mod final_layer;
mod flux2;
mod flux3;
mod kept;
mod modulation;
mod modules;
mod references;
mod residual;
mod single_block;

pub use config::TransformerConfig;
pub use double_block::DoubleBlock;
pub use embed::{rope_tables, time_in_bf16, timestep_embedding};
pub use final_layer::FinalLayer;
pub use modulation::{Modulation, Modulations, SingleModulation, StepModulation, StepTimes, Streams};
pub use references::{KeyCache, Keys, Recorder, Sequence};
pub use residual::Residual;
pub use single_block::SingleBlock;

use std::cell::RefCell;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::files::own_models::Architecture;
use crate::files::{Component, ModelFiles, Role, TensorFiles};
use crate::nn::{Blocks, Layers, Linear, Operand, Weights};
use crate::ops::{Rope, TokenSplit};
use crate::tensor::Tensor;
use early::{Early, Stream, image_alone, modulation_of};
use modulation::ModulationWeights;
use references::AllKeys;

/// The most steps of which [`Transformer::early_texts`] makes the texts at once. A text has few rows, which leave most
/// of a GPU idle, and one product takes two parts of the stream, each with two modulations.
pub const STEPS_TOGETHER: usize = 4;

/// The sizes that the shapes of a single file tell.
///
/// Errors when it lacks one of the layers that tell them.
fn of_shapes(component: &Component, files: &TensorFiles) -> Result<TransformerConfig> {
    match Architecture::of_layers(files.layers()) {
        Architecture::Flux2 => flux2::of_shapes(component, files),
        Architecture::Flux3 => flux3::of_shapes(component, files),
    }
}

/// Positions on the axes (t, h, w, l) of `txt` text tokens, then of the tokens of each reference image, then of the
/// image's, row by row. Sizes are [height, width] in tokens.
pub fn position_ids(
    config: &TransformerConfig,
    txt: usize,
    references: &[[usize; 2]],
    image: [usize; 2],
) -> Vec<[f32; 4]> {
    match config.architecture() {
        Architecture::Flux2 => flux2::position_ids(txt, references, image),
        Architecture::Flux3 => flux3::position_ids(txt, references, image),
    }
}

/// A transformer.
pub struct Transformer<B: Backend> {
    backend: B,
    config: TransformerConfig,
    x_embedder: Linear<B>,         // [dim, in_channels]
    reference_embedder: Linear<B>, // [dim, in_channels]
    context_embedder: Linear<B>,   // [dim, joint_attention_dim]
    modulation: ModulationWeights<B>,
    early: Early<B>,
    transformer_blocks: Vec<DoubleBlock<B>>,
    single_transformer_blocks: Vec<SingleBlock<B>>,
    final_layer: FinalLayer<B>,
    layers: Layers<B>,
    /// In the order of use.
    blocks: Arc<Blocks<B>>,
}

impl<B: Backend> Transformer<B> {
    /// Loads all weights.
    ///
    /// Errors when a tensor is missing or has another shape than the config says.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let layers = RefCell::default();
        let transformer = Self::build(&weights.recorded(&layers), config)?;
        transformer.blocks.allocate(&transformer.backend)?;
        Ok(Self { layers: layers.into_inner(), ..transformer })
    }

    /// Its layers, of which a variant is made that shares their weights.
    pub fn layers(&self) -> &Layers<B> {
        &self.layers
    }

    /// A transformer of the same sizes, of `layers`, whose weights it shares. `files` are those of this one.
    ///
    /// Errors when a layer is missing.
    pub fn with_layers(&self, files: &TensorFiles, layers: &Layers<B>) -> Result<Self> {
        let weights = Weights::new(&self.backend, files).with_blocks(Arc::clone(&self.blocks));
        Self::build(&weights.of_layers(layers), &self.config)
    }

    fn build(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        match config.architecture() {
            Architecture::Flux2 => flux2::load(weights, config),
            Architecture::Flux3 => flux3::load(weights, config),
        }
    }

    /// Where the weights of its blocks are, in the order of use.
    pub fn block_weights(&self) -> &Blocks<B> {
        &self.blocks
    }

    /// Sizes.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Modulations of all steps, computed at once.
    pub fn modulations(&self, times: &[StepTimes]) -> Result<Modulations<B>> {
        self.modulation.forward(&self.backend, times)
    }

    /// The modulation that a row of [`Modulations`] holds, as views of its columns.
    ///
    /// Errors when the row has other columns than those of this transformer.
    pub fn modulation(&self, row: &Tensor<B>) -> Result<StepModulation<B>> {
        match self.config.architecture() {
            Architecture::Flux2 => flux2::modulation(row),
            Architecture::Flux3 => flux3::modulation(row),
        }
    }

    /// Text features as blocks read them; the same at every step.
    ///
    /// txt [tokens, joint_attention_dim] -> [tokens, dim].
    pub fn context(&self, txt: &Tensor<B>) -> Result<Tensor<B>> {
        txt.linear(&self.context_embedder, None)
    }

    /// Packed latents of reference images as blocks read them; the same at every step, for they are not noisy.
    ///
    /// latents [tokens, in_channels] -> [tokens, dim].
    pub fn references(&self, latents: &Tensor<B>) -> Result<Tensor<B>> {
        latents.linear(&self.reference_embedder, None)
    }

    /// What a text becomes that [`Transformer::context`] made, before it meets the image, at each of at most
    /// [`STEPS_TOGETHER`] steps: what it is where there are no blocks of text alone. It is the same at every step where
    /// [`TransformerConfig::reads_next_time`] is not.
    ///
    /// The sequence has the text alone, on this device: txt [tokens, dim] -> the same, of each step.
    pub fn early_texts(
        &self,
        txt: &Tensor<B>,
        sequence: &Sequence<'_, B>,
        steps: &[StepModulation<B>],
    ) -> Result<Vec<Tensor<B>>> {
        let view = || txt.row_view(0..txt.rows());
        let modulations: Option<Vec<_>> =
            steps.iter().map(|step| step.early.as_ref().map(|early| modulation_of(early, Stream::Txt))).collect();
        let Some(modulations) = modulations.filter(|_| !self.early.is_none()) else {
            return Ok(steps.iter().map(|_| view()).collect());
        };
        // Two steps are one part of the stream: one has the modulation of its text rows, the other that of the others.
        let (mut parts, mut of_parts) = (Vec::new(), Vec::new());
        for pair in modulations.chunks(2) {
            let x = if pair.len() == 2 { Tensor::concat_rows(&[txt, txt])? } else { view() };
            parts.push(Residual::new(x, (pair.len() - 1) * txt.rows(), self.config.eps));
            of_parts.push([pair[0], pair[pair.len() - 1]]);
        }
        let sequence = Sequence { split: sequence.split.of_one_kind(steps.len()), ..*sequence };
        let parts = self.early.forward(Stream::Txt, parts, &of_parts, &sequence, (&self.backend, &self.blocks))?;
        let mut texts = Vec::new();
        for part in parts {
            texts.extend(part.sums()?.into_iter().filter(|text| text.rows() > 0));
        }
        Ok(texts)
    }

    /// The same of reference images that [`Transformer::references`] made, which see each other and nothing else, at
    /// one step: references [rows of this device, dim] -> the same.
    pub fn early_references(
        &self,
        references: Tensor<B>,
        sequence: &Sequence<'_, B>,
        modulation: &StepModulation<B>,
    ) -> Result<Tensor<B>> {
        self.early_stream(Stream::References, references, modulation, sequence)?.sum()
    }

    fn early_stream<'a>(
        &self,
        stream: Stream,
        x: Tensor<B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Residual<'a, B>> {
        let residual = Residual::new(x, 0, self.config.eps);
        let Some(early) = &modulation.early else { return Ok(residual) };
        let modulations = [[modulation_of(early, stream); 2]];
        let own = (&self.backend, &*self.blocks);
        Ok(self.early.forward(stream, vec![residual], &modulations, sequence, own)?.remove(0))
    }

    /// Rotary tables of a sample: a row for each token of `split` that this device has. The sizes of reference images
    /// and of the image are [height, width] in tokens.
    pub fn rope(&self, split: &TokenSplit, references: &[[usize; 2]], image: [usize; 2]) -> Result<Rope<B>> {
        let all = position_ids(&self.config, split.whole().txt, references, image);
        let split = split.with_batch(1);
        let ids: Vec<_> = split.rows().runs_of(split.rank()).flat_map(|run| all[run.whole].to_vec()).collect();
        self.rope_at(&ids)
    }

    /// Keys and values of reference images for [`Transformer::forward`], with which a model must be trained.
    ///
    /// references [tokens, dim] as [`Transformer::references`] makes them, of images of `sizes` in tokens; `split` says
    /// which of them this device has. All devices have the keys and values of all tokens, each of its own heads.
    ///
    /// Source: FLUX.2 reference `Flux2KVAttnProcessor` and the first step of `Flux2KleinKVPipeline`; one pass over the
    /// references alone gives the same.
    pub fn reference_cache(
        &self,
        references: &Tensor<B>,
        sizes: &[[usize; 2]],
        split: TokenSplit,
    ) -> Result<KeyCache<B>> {
        let modulations = self.modulations(&[StepTimes::at(0.0)])?;
        let (modulation, rope) = (self.modulation(&modulations.row(0))?, self.rope(&split, sizes, [0, 0])?);
        let rows = references.row_view(0..references.rows());
        let mut keys = AllKeys::Recorded(Recorder::of_all(split.whole().rows()));
        let stream = vec![Residual::new(rows, split.own().txt_rows(), self.config.eps)];
        self.blocks(stream, &modulation, &Sequence { split, rope: &rope }, &mut keys)?;
        let AllKeys::Recorded(recorder) = keys else { unreachable!("made above") };
        Ok(recorder.into_cache())
    }

    /// One evaluation.
    ///
    /// latents [batch * img, in_channels], context [context rows, dim], which is the text of every sample and
    /// then the references, as [`Transformer::early_texts`] and [`Transformer::early_references`] made them -> velocity
    /// [batch * img, out_channels].
    ///
    /// With `cached`, the references are not in the context and the layout: attention reads their cached keys and
    /// values. There is one sample then.
    pub fn forward(
        &self,
        latents: &Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        cached: Option<&KeyCache<B>>,
    ) -> Result<Tensor<B>> {
        let img = self.early_stream_of_image(latents, modulation, sequence)?;
        self.forward_stream(img, context, modulation, sequence, &mut AllKeys::of(cached))
    }

    /// What the image becomes before it meets text and references, which both evaluations of guidance may share.
    ///
    /// latents [batch * img, in_channels] -> [batch * img, dim].
    pub fn early_image(
        &self,
        latents: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Tensor<B>> {
        self.early_stream_of_image(latents, modulation, sequence)?.sum()
    }

    /// [`Transformer::forward`] of what [`Transformer::early_image`] made of the latents.
    pub fn forward_image(
        &self,
        img: Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        cached: Option<&KeyCache<B>>,
    ) -> Result<Tensor<B>> {
        let img = Residual::new(img, 0, self.config.eps);
        self.forward_stream(img, context, modulation, sequence, &mut AllKeys::of(cached))
    }

    fn early_stream_of_image<'a>(
        &self,
        latents: &Tensor<B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Residual<'a, B>> {
        let x = latents.linear(&self.x_embedder, None)?;
        let (split, rope) = image_alone(sequence);
        self.early_stream(Stream::Img, x, modulation, &Sequence { split, rope: &rope })
    }

    fn forward_stream<'a>(
        &self,
        img: Residual<'a, B>,
        context: &Tensor<B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
        keys: &mut AllKeys<'_, B>,
    ) -> Result<Tensor<B>> {
        let h = self.blocks(self.stream(context, img, modulation, sequence)?, modulation, sequence, keys)?;
        let own = sequence.split.own();
        let img = if self.single_transformer_blocks.is_empty() { h.split_rows(own.context_rows()).1 } else { h };
        self.final_layer.forward(&img)
    }

    /// Context and image as one stream, in as many parts as [`SingleModulation::of_parts`] gives modulations.
    fn stream<'a>(
        &self,
        context: &Tensor<B>,
        img: Residual<'a, B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Vec<Residual<'a, B>>> {
        let (txt_rows, eps) = (sequence.split.own().txt_rows(), self.config.eps);
        if modulation.single.of_parts(sequence.has_references()).len() > 1 {
            let context = context.row_view(0..context.rows());
            return Ok(vec![Residual::new(context, txt_rows, eps), img]);
        }
        Ok(vec![Residual::new(Tensor::concat_rows(&[context, &img.sum()?])?, txt_rows, eps)])
    }

    /// The blocks of all tokens together. The stream -> what the final layer reads; of the last single block, image
    /// rows only.
    fn blocks<'a>(
        &self,
        mut stream: Vec<Residual<'a, B>>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
        keys: &mut AllKeys<'_, B>,
    ) -> Result<Operand<B>> {
        let StepModulation { double, single, norm_out, .. } = modulation;
        let mut pass = self.blocks.begin(&self.backend);
        if let Some([txt, img]) = double {
            for (i, block) in self.transformer_blocks.iter().enumerate() {
                pass.enter(i)?;
                stream = vec![block.forward(stream.remove(0), [txt, img], sequence, keys.of_block(i))?];
            }
        }
        let single = single.of_parts(sequence.has_references());
        let first = self.blocks_before_single();
        for (i, block) in (first..).zip(&self.single_transformer_blocks) {
            pass.enter(i)?;
            stream = block.forward(stream, &single, sequence, keys.of_block(i))?;
        }
        Ok(stream.remove(0).norm([self.final_layer.norm(norm_out); 2])?.1)
    }

    fn blocks_before_single(&self) -> usize {
        let counts = self.config.block_counts();
        counts[..counts.len() - 1].iter().sum()
    }
}

/// Opens the transformer's files.
pub fn open(dir: &ModelFiles) -> Result<TensorFiles> {
    dir.component(Role::Transformer).tensors()
}
