//! The denoiser: picture tokens, text tokens and a time to a velocity.
//!
//! Double blocks keep text and picture apart and let them meet in one attention; single blocks run over both as one
//! stream, text first. One modulation serves all double blocks and one all single blocks, so both are computed once for
//! each timestep, outside the blocks.

mod config;
mod double_block;
mod embed;
mod final_layer;
mod modulation;
mod single_block;

pub use config::TransformerConfig;
pub use double_block::DoubleBlock;
pub use embed::{position_ids, rope_tables, timestep_embedding};
pub use final_layer::FinalLayer;
pub use modulation::{Modulation, Modulations, StepModulation};
pub use single_block::SingleBlock;

use crate::backend::Backend;
use crate::error::Result;
use crate::model_dir::ModelDir;
use crate::ops::{Joint, Pairs, Rope};
use crate::tensor::Tensor;
use crate::weights::{WeightFiles, Weights};
use modulation::ModulationWeights;

/// The FLUX.2 transformer.
pub struct Transformer<B: Backend> {
    backend: B,
    config: TransformerConfig,
    x_embedder: Tensor<B>,       // [dim, in_channels]
    context_embedder: Tensor<B>, // [dim, joint_attention_dim]
    modulation: ModulationWeights<B>,
    transformer_blocks: Vec<DoubleBlock<B>>,
    single_transformer_blocks: Vec<SingleBlock<B>>,
    final_layer: FinalLayer<B>,
}

impl<B: Backend> Transformer<B> {
    /// Loads all weights.
    ///
    /// Errors when a tensor is missing or has not the shape that the config says.
    pub fn load(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Self> {
        let dim = config.dim();
        // A step spends nearly all of its products in the blocks. What is around them has few rows or columns to gain from, and its
        // errors go into every block, or straight into the velocity.
        let blocks = weights.narrow();
        let double = |i| DoubleBlock::load(&blocks.at("transformer_blocks").at(i), config);
        let single = |i| SingleBlock::load(&blocks.at("single_transformer_blocks").at(i), config);
        Ok(Self {
            backend: weights.backend().clone(),
            config: config.clone(),
            x_embedder: weights.matrix("x_embedder", dim, config.in_channels)?,
            context_embedder: weights.matrix("context_embedder", dim, config.joint_attention_dim)?,
            modulation: ModulationWeights::load(weights, config)?,
            transformer_blocks: (0..config.num_layers).map(double).collect::<Result<_>>()?,
            single_transformer_blocks: (0..config.num_single_layers).map(single).collect::<Result<_>>()?,
            final_layer: FinalLayer::load(weights, config)?,
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

    /// Rotary tables for `txt` text tokens, then a picture of `height` x `width` tokens.
    pub fn rope(&self, txt: usize, height: usize, width: usize) -> Result<Rope<B>> {
        let (cos, sin) = rope_tables(&self.config, &position_ids(txt, height, width));
        let (rows, cols) = (txt + height * width, self.config.attention_head_dim / 2);
        Ok(Rope { cos: self.backend.upload_f32(&cos, rows, cols)?, sin: self.backend.upload_f32(&sin, rows, cols)?, pairs: Pairs::Interleaved })
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
        let img = latents.linear(&self.x_embedder, None)?;
        let (mut txt, mut img) = Tensor::concat_rows(&[context, &img])?.split_rows(joint.txt_rows());
        for block in &self.transformer_blocks {
            (txt, img) = block.forward(txt, img, &modulation.double_txt, &modulation.double_img, rope, joint)?;
        }
        let mut x = txt.join_rows(img)?;
        for block in &self.single_transformer_blocks {
            x = block.forward(x, &modulation.single, rope, joint)?;
        }
        let (_, img) = x.split_rows(joint.txt_rows());
        self.final_layer.forward(&img, &modulation.norm_out)
    }
}

/// Opens the transformer's files in a model folder.
pub fn open(dir: &ModelDir) -> Result<WeightFiles> {
    WeightFiles::open(dir, "transformer", "diffusion_pytorch_model")
}
