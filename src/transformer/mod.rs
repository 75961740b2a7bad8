//! The denoiser: image tokens, text tokens and a time to a velocity.
//!
//! Double blocks keep text and image apart and let them meet in one attention; single blocks run over both as one
//! stream, text first. All double blocks share one modulation and all single blocks another, so both are computed once
//! for each timestep, outside the blocks. A block ends with the norm that the next block reads, so that the stream is
//! read and written once between two blocks.

mod config;
mod double_block;
mod embed;
mod final_layer;
mod modulation;
mod modules;
mod single_block;

pub use config::TransformerConfig;
pub use double_block::DoubleBlock;
pub use embed::{position_ids, rope_tables, timestep_embedding};
pub use final_layer::FinalLayer;
pub use modulation::{Modulation, Modulations, StepModulation};
pub use single_block::SingleBlock;

use std::cell::RefCell;
use std::iter::once;

use crate::backend::Backend;
use crate::error::Result;
use crate::files::ModelFiles;
use crate::files::TensorFiles;
use crate::nn::{Layers, Linear, Operand, Weights};
use crate::ops::{Joint, Norm, Pairs, Rope};
use crate::tensor::Tensor;
use modulation::ModulationWeights;

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
}

impl<B: Backend> Transformer<B> {
    /// Loads all weights.
    ///
    /// Errors when a tensor is missing or has another shape than the config says.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let layers = RefCell::default();
        let transformer = Self::build(&weights.recorded(&layers), config)?;
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
        Self::build(&Weights::new(&self.backend, files).of_layers(layers), &self.config)
    }

    fn build(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let dim = config.dim();
        let double = |i| DoubleBlock::load(&weights.at("transformer_blocks").at(i), config);
        let single = |i| {
            let block = weights.at("single_transformer_blocks").at(i);
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
        })
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

    /// Rotary tables for `txt` text tokens, then an image of `height` x `width` tokens.
    pub fn rope(&self, txt: usize, height: usize, width: usize) -> Result<Rope<B>> {
        let (cos, sin) = rope_tables(&self.config, &position_ids(txt, height, width));
        let (rows, cols) = (txt + height * width, self.config.attention_head_dim / 2);
        Ok(Rope {
            cos: self.backend.upload_f32(&cos, rows, cols)?,
            sin: self.backend.upload_f32(&sin, rows, cols)?,
            pairs: Pairs::Interleaved,
        })
    }

    /// One evaluation.
    ///
    /// latents [batch * img, in_channels], context [batch * txt, dim] -> velocity [batch * img, out_channels].
    pub fn forward(
        &self,
        latents: &Tensor<B>,
        context: &Tensor<B>,
        modulation: &StepModulation<B>,
        rope: &Rope<B>,
        joint: Joint,
    ) -> Result<Tensor<B>> {
        let StepModulation { double_txt, double_img, single, norm_out: (shift, scale) } = modulation;
        // The norm before each block and before the final layer, of text and of image.
        let before_double = self.transformer_blocks.iter().map(|block| {
            let [txt, img] = block.readers();
            [double_txt[0].norm(txt), double_img[0].norm(img)]
        });
        let before_single = self.single_transformer_blocks.iter().map(|block| [single.norm(block.reader()); 2]);
        let before_final = Norm { shift, scale, reader: self.final_layer.reader() };
        let mut norms = before_double.chain(before_single).chain(once([before_final; 2]));
        let mut next = || norms.next().expect("one for each block and the final layer");

        let img = latents.linear(&self.x_embedder, None)?;
        let [txt_norm, img_norm] = next();
        let normed = |x: &Tensor<B>, norm: Norm<'_, B>| x.adaln(norm.shift, norm.scale, self.config.eps);
        let mut h: Operand<B> = Tensor::concat_rows(&[&normed(context, txt_norm)?, &normed(&img, img_norm)?])?.into();
        let mut x = Tensor::concat_rows(&[context, &img])?;
        drop(img);
        for block in &self.transformer_blocks {
            (x, h) = block.forward(x, h, [double_txt, double_img], next(), rope, joint)?;
        }
        for block in &self.single_transformer_blocks {
            let [_, next] = next();
            (x, h) = block.forward(x, h, &single.gate, next, rope, joint)?;
        }
        let img = if self.single_transformer_blocks.is_empty() { h.split_rows(joint.txt_rows()).1 } else { h };
        self.final_layer.forward(&img)
    }
}

/// Opens the transformer's files in a model folder.
pub fn open(dir: &ModelFiles) -> Result<TensorFiles> {
    dir.tensors("transformer", "diffusion_pytorch_model")
}
