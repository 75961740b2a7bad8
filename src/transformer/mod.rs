//! The denoiser: image tokens, text tokens and a time to a velocity.
//!
//! Double blocks keep text and image apart and let them meet in one attention; single blocks run over both as one
//! stream, text first. All double blocks share one modulation and all single blocks another, so both are computed once
//! for each timestep, outside the blocks. What a block adds to the stream is added by the next norm, see [`Residual`].
//!
//! Of several devices that make one image, each has all weights and its share of the tokens, see
//! [`TokenSplit`]: every tensor of tokens here has the rows of one device. Only attention needs those of the others.

mod config;
mod double_block;
mod embed;
mod final_layer;
mod modulation;
mod modules;
mod references;
mod residual;
mod single_block;

pub use config::TransformerConfig;
pub use double_block::DoubleBlock;
pub use embed::{position_ids, rope_tables, timestep_embedding};
pub use final_layer::FinalLayer;
pub use modulation::{Modulation, Modulations, StepModulation};
pub use references::{Keys, ReferenceCache, Sequence};
pub use residual::Residual;
pub use single_block::SingleBlock;

use std::cell::RefCell;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::files::{ModelFiles, Role, TensorFiles};
use crate::nn::{Blocks, Layers, Linear, Operand, Weights};
use crate::ops::{Pairs, Rope, TokenSplit};
use crate::tensor::Tensor;
use modulation::ModulationWeights;
use references::AllKeys;

/// The FLUX.2 transformer.
pub struct Transformer<B: Backend> {
    backend: B,
    config: TransformerConfig,
    x_embedder: Linear<B>,       // [dim, in_channels]
    context_embedder: Linear<B>, // [dim, joint_attention_dim]
    modulation: ModulationWeights<B>,
    transformer_blocks: Vec<DoubleBlock<B>>,
    single_transformer_blocks: Vec<SingleBlock<B>>,
    final_layer: FinalLayer<B>,
    layers: Layers<B>,
    /// Double blocks, then single blocks.
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
        let dim = config.dim();
        let double = |i| DoubleBlock::load(&weights.at("transformer_blocks").at(i).of_block(i), config);
        let single = |i| {
            let block = weights.at("single_transformer_blocks").at(i).of_block(config.num_layers + i);
            SingleBlock::load(&block, config, i + 1 == config.num_single_layers)
        };
        Ok(Self {
            backend: weights.backend().clone(),
            config: config.clone(),
            x_embedder: weights.linear("x_embedder", dim, config.in_channels)?,
            context_embedder: weights.linear("context_embedder", dim, config.joint_attention_dim)?,
            modulation: ModulationWeights::load(weights, config)?,
            transformer_blocks: (0..config.num_layers).map(double).collect::<Result<_>>()?,
            single_transformer_blocks: (0..config.num_single_layers).map(single).collect::<Result<_>>()?,
            final_layer: FinalLayer::load(weights, config)?,
            layers: Layers::default(),
            blocks: Arc::clone(weights.blocks()),
        })
    }

    /// Where the weights of its blocks are: double blocks, then single blocks.
    pub fn block_weights(&self) -> &Blocks<B> {
        &self.blocks
    }

    /// Sizes.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Modulations of all timesteps (0..1000), computed at once.
    pub fn modulations(&self, timesteps: &[f32]) -> Result<Modulations<B>> {
        self.modulation.forward(&self.backend, timesteps)
    }

    /// Text features as the blocks read them; the same at every step.
    ///
    /// txt [tokens, joint_attention_dim] -> [tokens, dim].
    pub fn context(&self, txt: &Tensor<B>) -> Result<Tensor<B>> {
        txt.linear(&self.context_embedder, None)
    }

    /// Packed latents of reference images as the blocks read them; the same at every step, for they are not noisy.
    ///
    /// latents [tokens, in_channels] -> [tokens, dim].
    pub fn references(&self, latents: &Tensor<B>) -> Result<Tensor<B>> {
        latents.linear(&self.x_embedder, None)
    }

    /// Rotary tables of a sample: a row for each token of `split` that this device has. The sizes of reference images
    /// and of the image are [height, width] in tokens.
    pub fn rope(&self, split: &TokenSplit, references: &[[usize; 2]], image: [usize; 2]) -> Result<Rope<B>> {
        let all = position_ids(split.whole().txt, references, image);
        let split = split.with_batch(1);
        let ids: Vec<_> = split.rows().runs_of(split.rank()).flat_map(|run| all[run.whole].to_vec()).collect();
        let (cos, sin) = rope_tables(&self.config, &ids);
        let (rows, cols) = (ids.len(), self.config.attention_head_dim / 2);
        Ok(Rope {
            cos: self.backend.upload_f32(&cos, rows, cols)?,
            sin: self.backend.upload_f32(&sin, rows, cols)?,
            pairs: Pairs::Interleaved,
        })
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
    ) -> Result<ReferenceCache<B>> {
        let modulations = self.modulations(&[0.0])?;
        let (modulation, rope) = (StepModulation::of_row(&modulations.row(0))?, self.rope(&split, sizes, [0, 0])?);
        let rows = references.row_view(0..references.rows());
        let mut keys = AllKeys::Recorded(Vec::new());
        self.blocks(rows, &modulation, &Sequence { split, rope: &rope }, &mut keys)?;
        let AllKeys::Recorded(blocks) = keys else { unreachable!("made above") };
        Ok(ReferenceCache { blocks })
    }

    /// One evaluation.
    ///
    /// latents [batch * img, in_channels], context [context rows, dim], which is the text of every sample and
    /// then the references -> velocity [batch * img, out_channels].
    ///
    /// With `cached`, the references are not in the context and the layout: attention reads their cached keys and
    /// values. There is one sample then.
    pub fn forward(
        &self,
        latents: &Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        cached: Option<&ReferenceCache<B>>,
    ) -> Result<Tensor<B>> {
        let x = Tensor::concat_rows(&[context, &latents.linear(&self.x_embedder, None)?])?;
        let mut keys = cached.map_or(AllKeys::Rows, AllKeys::Cached);
        let h = self.blocks(x, modulation, sequence, &mut keys)?;
        let own = sequence.split.own();
        let img = if self.single_transformer_blocks.is_empty() { h.split_rows(own.context_rows()).1 } else { h };
        self.final_layer.forward(&img)
    }

    /// All blocks. The stream x [rows, dim] -> what the final layer reads; of the last single block, image rows only.
    fn blocks(
        &self,
        x: Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
        keys: &mut AllKeys<'_, B>,
    ) -> Result<Operand<B>> {
        let StepModulation { double_txt, double_img, single, norm_out } = modulation;
        let mut residual = Residual::new(x, sequence.split.own().txt_rows(), self.config.eps);
        let mut pass = self.blocks.begin(&self.backend);
        for (i, block) in self.transformer_blocks.iter().enumerate() {
            pass.enter(i)?;
            residual = block.forward(residual, [double_txt, double_img], sequence, keys.of_block(i))?;
        }
        for (i, block) in (self.transformer_blocks.len()..).zip(&self.single_transformer_blocks) {
            pass.enter(i)?;
            residual = block.forward(residual, single, sequence, keys.of_block(i))?;
        }
        Ok(residual.norm([self.final_layer.norm(norm_out); 2])?.1)
    }
}

/// Opens the transformer's files.
pub fn open(dir: &ModelFiles) -> Result<TensorFiles> {
    dir.component(Role::Transformer).tensors()
}
