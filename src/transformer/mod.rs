//! The denoiser: predicts the velocity from image tokens, text tokens and a time.
//!
//! FLUX.2 and FLUX.3 use the same blocks; `flux2` and `flux3` describe how. All blocks of a kind share their
//! modulations, so these are computed once for each timestep, outside the blocks. The next norm adds a block's output
//! to the stream, see [`Stream`]. Nothing here knows prompts, schedules or files. Start with
//! [`Transformer::forward`].
//!
//! With several devices for one image, each has all weights and its share of the tokens, see [`TokenSplit`]: tensors
//! of tokens have the rows of one device. Only attention needs the rows of other devices.

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
mod regions;
mod single_block;
mod stream;

pub use config::TransformerConfig;
pub use double_block::DoubleBlock;
pub use early::STEPS_TOGETHER;
pub use embed::{rope_tables, time_in_bf16, timestep_embedding};
pub use final_layer::FinalLayer;
pub use modulation::{
    DoubleModulation, Modulated, Modulation, Modulations, PerKind, SingleModulation, StepModulation, StepTimes,
    TokenKind,
};
pub use references::{KeyCache, Keys, Recorder, ReferenceWeights, Sequence};
pub use regions::{RegionMap, Regions};
pub use single_block::SingleBlock;
pub use stream::{Residual, Stream};

use std::cell::RefCell;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::files::own_models::Architecture;
use crate::files::{Component, ModelFiles, Role, TensorFiles};
use crate::nn::{Blocks, Layers, Linear, Operand, Weights};
use crate::ops::{Rope, TokenSplit};
use crate::tensor::Tensor;
use early::Early;
use modulation::ModulationWeights;
use references::AllKeys;

/// Returns the sizes by the shapes of a single file.
///
/// Errors if the file lacks a layer that determines sizes.
fn config_from_shapes(component: &Component, files: &TensorFiles) -> Result<TransformerConfig> {
    match files.layers().architecture {
        Architecture::Flux2 => flux2::config_from_shapes(component, files),
        Architecture::Flux3 => flux3::config_from_shapes(component, files),
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
    /// Errors if a tensor is missing or has another shape than the config says.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let layers = RefCell::default();
        let transformer = Self::build(&weights.recorded(&layers), config)?;
        transformer.blocks.allocate(&transformer.backend)?;
        Ok(Self { layers: layers.into_inner(), ..transformer })
    }

    /// Returns its layers. A variant can be built from them that shares their weights.
    pub fn layers(&self) -> &Layers<B> {
        &self.layers
    }

    /// Builds a transformer of the same sizes from `layers`, whose weights it shares. `files` are the files of this
    /// transformer.
    ///
    /// Errors if a layer is missing.
    pub fn with_layers(&self, files: &TensorFiles, layers: &Layers<B>) -> Result<Self> {
        let weights = Weights::new(&self.backend, files).with_blocks(Arc::clone(&self.blocks));
        Self::build(&weights.with_layers(layers), &self.config)
    }

    fn build(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        match config.architecture() {
            Architecture::Flux2 => flux2::load(weights, config),
            Architecture::Flux3 => flux3::load(weights, config),
        }
    }

    /// Returns the placement of the blocks' weights, in the order of use.
    pub fn block_weights(&self) -> &Blocks<B> {
        &self.blocks
    }

    /// Returns the sizes.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Computes the modulations of all steps at once.
    pub fn modulations(&self, times: &[StepTimes]) -> Result<Modulations<B>> {
        self.modulation.forward(&self.backend, times)
    }

    /// Splits a row of [`Modulations`] into views of its columns.
    ///
    /// Errors if the row differs from this transformer's in columns.
    pub fn modulation(&self, row: &Tensor<B>) -> Result<StepModulation<B>> {
        match self.config.architecture() {
            Architecture::Flux2 => flux2::modulation(row),
            Architecture::Flux3 => flux3::modulation(row),
        }
    }

    /// Embeds text features for the blocks; the result is the same at every step.
    ///
    /// txt [tokens, joint_attention_dim] -> [tokens, dim].
    pub fn context(&self, txt: &Tensor<B>) -> Result<Tensor<B>> {
        txt.linear(&self.context_embedder, None)
    }

    /// Embeds packed latents of reference images for the blocks. They have no noise, so the result is the same at
    /// every step.
    ///
    /// latents [tokens, in_channels] -> [tokens, dim].
    pub fn references(&self, latents: &Tensor<B>) -> Result<Tensor<B>> {
        latents.linear(&self.reference_embedder, None)
    }

    /// Returns the rotary tables of a sample: a row for each token of `split` on this device. The sizes of reference
    /// images and of the image are [height, width] in tokens.
    pub fn rope(&self, split: &TokenSplit, references: &[[usize; 2]], image: [usize; 2]) -> Result<Rope<B>> {
        let all = position_ids(&self.config, split.whole().txt, references, image);
        let split = split.with_batch(1);
        let ids: Vec<_> = split.rows().runs_of(split.rank()).flat_map(|run| all[run.whole].to_vec()).collect();
        self.rope_at(&ids)
    }

    /// Computes keys and values of reference images for [`Transformer::forward`]. The model must be trained for this.
    ///
    /// references [tokens, dim] come from [`Transformer::references`], for images of `sizes` in tokens; `split` gives
    /// this device's tokens, and `weights` the factors of their keys and values. Every device gets the keys and values
    /// of all tokens, for its own heads.
    ///
    /// Source: FLUX.2 reference `Flux2KVAttnProcessor` and the first step of `Flux2KleinKVPipeline`; one pass over the
    /// references alone gives the same result.
    pub fn reference_cache(
        &self,
        references: &Tensor<B>,
        sizes: &[[usize; 2]],
        split: TokenSplit,
        weights: Option<&ReferenceWeights<B>>,
    ) -> Result<KeyCache<B>> {
        let modulations = self.modulations(&[StepTimes::at(0.0)])?;
        let (modulation, rope) = (self.modulation(&modulations.row(0))?, self.rope(&split, sizes, [0, 0])?);
        let rows = references.row_view(0..references.rows());
        let stream = Stream::new(rows, split.own().txt_rows(), self.config.eps);
        let mut recorder = Recorder::all(split.whole().rows());
        let sequence = Sequence { weights, ..Sequence::new(split, &rope) };
        self.blocks(stream, &modulation, &sequence, AllKeys::Recorded(&mut recorder))?;
        Ok(recorder.into_cache())
    }

    /// Evaluates the transformer once.
    ///
    /// latents [batch * img, in_channels], context [context rows, dim] -> velocity [batch * img, out_channels]. The
    /// context is the text of every sample and then the references, from [`Transformer::early_texts`] and
    /// [`Transformer::early_references`].
    ///
    /// With `cached`, the references are not in the context and the layout: attention reads their cached keys and
    /// values. There must be one sample then.
    ///
    /// With regions, the context has the texts of regions before the prompt, and the positions are those of
    /// [`Transformer::rope_of_regions`].
    pub fn forward(
        &self,
        latents: &Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        cached: Option<&KeyCache<B>>,
    ) -> Result<Tensor<B>> {
        let velocity = |latents: &Tensor<B>| {
            let img = self.image_stream(latents, modulation, sequence)?;
            self.velocity(img, context, modulation, sequence, AllKeys::from_cache(cached))
        };
        match sequence.regions {
            Some(regions) => regions.unsort(&velocity(&regions.sort(latents)?)?),
            None => velocity(latents),
        }
    }

    /// [`Transformer::forward`] from the result of [`Transformer::early_image`].
    pub fn forward_image(
        &self,
        img: Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        cached: Option<&KeyCache<B>>,
    ) -> Result<Tensor<B>> {
        let img = Stream::new(img, 0, self.config.eps);
        self.velocity(img, context, modulation, sequence, AllKeys::from_cache(cached))
    }

    fn velocity<'a>(
        &self,
        img: Stream<'a, B>,
        context: &Tensor<B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
        keys: AllKeys<'_, B>,
    ) -> Result<Tensor<B>> {
        let stream = self.join(context, img, modulation, sequence)?;
        let h = self.blocks(stream, modulation, sequence, keys)?;
        let context_rows = sequence.split.own().context_rows();
        let img = if self.single_transformer_blocks.is_empty() { h.split_rows(context_rows).1 } else { h };
        self.final_layer.forward(&img)
    }

    /// Joins context and image to one stream, in the parts of [`SingleModulation::of_parts`].
    fn join<'a>(
        &self,
        context: &Tensor<B>,
        img: Stream<'a, B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Stream<'a, B>> {
        let (txt_rows, eps) = (sequence.split.own().txt_rows(), self.config.eps);
        match modulation.single.modulated_parts(sequence.has_references()).len() {
            1 => Ok(Stream::new(Tensor::concat_rows(&[context, &img.sum()?])?, txt_rows, eps)),
            _ => Ok(Stream::concat([Stream::new(context.row_view(0..context.rows()), txt_rows, eps), img])),
        }
    }

    /// Runs the blocks of all tokens. The stream -> the input of the final layer; the last single block returns image
    /// rows only.
    fn blocks<'a>(
        &self,
        mut stream: Stream<'a, B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
        mut keys: AllKeys<'_, B>,
    ) -> Result<Operand<B>> {
        let StepModulation { double, single, norm_out, .. } = modulation;
        let mut pass = self.blocks.begin(&self.backend);
        for (i, block) in self.transformer_blocks.iter().enumerate() {
            pass.enter(i)?;
            let double = double.as_ref().expect("models with double blocks have a modulation for them");
            stream = block.forward(stream, double, sequence, keys.block(i))?;
        }
        let single = single.modulated_parts(sequence.has_references());
        for (i, block) in (self.blocks_before_single()..).zip(&self.single_transformer_blocks) {
            pass.enter(i)?;
            stream = block.forward(stream, &single, sequence, keys.block(i))?;
        }
        stream.norm_out(self.final_layer.norm(norm_out))
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
