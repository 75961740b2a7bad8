//! The transformer of FLUX.2: double blocks process text and image separately, with a joint attention; single blocks
//! process both as one stream, text first.
//!
//! All double blocks share one modulation and all single blocks another.

use std::sync::Arc;

use super::modulation::{
    DoubleModulation, ModulationWeights, SingleModulation, StepModulation, TimeEmbedder, TimeOf, Vectors,
};
use super::{DoubleBlock, Early, FinalLayer, SingleBlock, Transformer, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::files::{Component, TensorFiles};
use crate::nn::{Layers, Weights};
use crate::tensor::Tensor;

/// Vectors of `dim` values in the modulation of a step: six each for text and image in the double blocks, three for the
/// single blocks and two for the final norm.
const VECTORS: usize = 17;
/// The value of published models, which no shape determines.
const ROPE_THETA: f64 = 2000.0;
/// The projections before and after attention in a double block.
const DOUBLE_ATTENTION: [&str; 8] = [
    "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj",
    "attn.to_add_out",
];
/// Distance on the axis t between consecutive reference images, and between the image and the first reference.
const REFERENCE_STEP: usize = 10;

pub(super) fn load<B: Backend>(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Transformer<B>> {
    let (dim, channels) = (config.dim(), config.timestep_guidance_channels);
    let double = |i| DoubleBlock::load(&weights.at("transformer_blocks").at(i).for_block(i), config);
    let single = |i| {
        let block = weights.at("single_transformer_blocks").at(i).for_block(config.num_layers + i);
        SingleBlock::load(&block, config, i + 1 == config.num_single_layers)
    };
    let x_embedder = weights.linear("x_embedder", dim, config.in_channels)?;
    let context_embedder = weights.linear("context_embedder", dim, config.joint_attention_dim)?;
    let modulation = ModulationWeights {
        time: TimeEmbedder::load(&weights.at("time_guidance_embed.timestep_embedder"), dim, channels)?,
        next: None,
        parts: vec![
            (TimeOf::Latents, weights.linear("double_stream_modulation_img.linear", 6 * dim, dim)?),
            (TimeOf::Latents, weights.linear("double_stream_modulation_txt.linear", 6 * dim, dim)?),
            (TimeOf::Latents, weights.linear("single_stream_modulation.linear", 3 * dim, dim)?),
            (TimeOf::Latents, weights.linear("norm_out.linear", 2 * dim, dim)?),
        ],
    };
    Ok(Transformer {
        backend: weights.backend().clone(),
        config: config.clone(),
        reference_embedder: x_embedder.clone(),
        x_embedder,
        context_embedder,
        modulation,
        early: Early::none(),
        transformer_blocks: (0..config.num_layers).map(double).collect::<Result<_>>()?,
        single_transformer_blocks: (0..config.num_single_layers).map(single).collect::<Result<_>>()?,
        final_layer: FinalLayer::load(weights, config)?,
        layers: Layers::default(),
        blocks: Arc::clone(weights.blocks()),
    })
}

/// Splits a row into the modulation of a step.
pub(super) fn modulation<B: Backend>(row: &Tensor<B>) -> Result<StepModulation<B>> {
    let mut vectors = Vectors::from_row::<VECTORS>(row)?;
    let [img_attn, img_mlp] = vectors.modulations();
    let [txt_attn, txt_mlp] = vectors.modulations();
    let [single] = vectors.modulations();
    let double = DoubleModulation { attn: [txt_attn, img_attn], mlp: [txt_mlp, img_mlp] };
    let (double, single) = (Some(double), SingleModulation::Joined(single));
    Ok(StepModulation { double, early: None, single, norm_out: vectors.norm_out() })
}

/// Positions on the axes (t, h, w, l): `txt` text tokens (0, 0, 0, s), then the tokens of each reference image k (10 *
/// (k + 1), y, x, 0) and the image's (0, y, x, 0), row by row. Sizes are [height, width] in tokens.
///
/// Source: FLUX.2 reference pipeline, `_prepare_text_ids`, `_prepare_image_ids` and `_prepare_latent_ids`.
pub(super) fn position_ids(txt: usize, references: &[[usize; 2]], image: [usize; 2]) -> Vec<[f32; 4]> {
    let text = (0..txt).map(|s| [0.0, 0.0, 0.0, s as f32]);
    let tokens = |t: usize, [height, width]: [usize; 2]| {
        (0..height * width).map(move |n| [t as f32, (n / width) as f32, (n % width) as f32, 0.0])
    };
    let references = (1..).zip(references).flat_map(|(k, &size)| tokens(REFERENCE_STEP * k, size));
    text.chain(references).chain(tokens(0, image)).collect()
}

/// Returns the sizes by the shapes of a single file, and otherwise the values of published models.
pub(super) fn config_from_shapes(component: &Component, files: &TensorFiles) -> Result<TransformerConfig> {
    let axis = |name: &str, axis: usize| files.axis(name, axis);
    let blocks = [files.blocks("transformer_blocks."), files.blocks("single_transformer_blocks.")];
    let dim = axis("x_embedder.weight", 0)?;
    let (norm, mlp) = if blocks[0] > 0 {
        ("transformer_blocks.0.attn.norm_q.weight", axis("transformer_blocks.0.ff.linear_in.weight", 0)? / 2)
    } else {
        let qkv_mlp = axis("single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight", 0)?;
        ("single_transformer_blocks.0.attn.norm_q.weight", qkv_mlp.saturating_sub(dim.saturating_mul(3)) / 2)
    };
    let head_dim = axis(norm, 0)?;
    let config = TransformerConfig::new(component, [dim, head_dim, mlp], ROPE_THETA)?;
    Ok(TransformerConfig {
        in_channels: axis("x_embedder.weight", 1)?,
        out_channels: Some(axis("proj_out.weight", 0)?),
        num_layers: blocks[0],
        num_single_layers: blocks[1],
        joint_attention_dim: axis("context_embedder.weight", 1)?,
        timestep_guidance_channels: axis("time_guidance_embed.timestep_embedder.linear_1.weight", 1)?,
        guidance_embeds: files.shape("time_guidance_embed.guidance_embedder.linear_1.weight").is_some(),
        ..config
    })
}

/// Returns the shape of a layer's weight; `None` if this model has no such layer.
pub(super) fn layer_shape(config: &TransformerConfig, name: &str) -> Option<Vec<usize>> {
    let (dim, mlp) = (config.dim(), config.mlp());
    let matrix = match name {
        "x_embedder" => [dim, config.in_channels],
        "context_embedder" => [dim, config.joint_attention_dim],
        "time_guidance_embed.timestep_embedder.linear_1" => [dim, config.timestep_guidance_channels],
        "time_guidance_embed.timestep_embedder.linear_2" => [dim, dim],
        "double_stream_modulation_img.linear" | "double_stream_modulation_txt.linear" => [6 * dim, dim],
        "single_stream_modulation.linear" => [3 * dim, dim],
        "norm_out.linear" => [2 * dim, dim],
        "proj_out" => [config.out_channels(), dim],
        _ => {
            let mut parts = name.splitn(3, '.');
            let (block, layer) = (parts.next()?, parts.nth(1)?);
            match (block, layer) {
                ("transformer_blocks" | "single_transformer_blocks", "attn.norm_q" | "attn.norm_k")
                | ("transformer_blocks", "attn.norm_added_q" | "attn.norm_added_k") => {
                    return Some(vec![config.attention_head_dim]);
                }
                ("single_transformer_blocks", "attn.to_qkv_mlp_proj") => [3 * dim + 2 * mlp, dim],
                ("single_transformer_blocks", "attn.to_out") => [dim, dim + mlp],
                ("transformer_blocks", "ff.linear_in" | "ff_context.linear_in") => [2 * mlp, dim],
                ("transformer_blocks", "ff.linear_out" | "ff_context.linear_out") => [dim, mlp],
                ("transformer_blocks", layer) if DOUBLE_ATTENTION.contains(&layer) => [dim, dim],
                _ => return None,
            }
        }
    };
    Some(matrix.to_vec())
}
