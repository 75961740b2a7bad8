//! The transformer of FLUX.3: text, references and image first have early blocks of their own, then all tokens are one
//! stream, text first.
//!
//! Every block is a single block. All early blocks of a kind of tokens share one modulation, and all joint blocks share
//! one for each kind. The image's modulation depends on the time of the latents, and those of text and references on
//! time 0. In models distilled to read the time that a step leads to, all modulations depend on that time as well. So
//! the early blocks of text and references give the same result for every image, and in undistilled models at every
//! step.

use std::sync::Arc;

use super::early::Early;
use super::modulation::{ModulationWeights, PerKind, SingleModulation, StepModulation, TimeEmbedder, TimeOf, Vectors};
use super::{FinalLayer, SingleBlock, Transformer, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::files::{Component, TensorFiles};
use crate::nn::{Layers, Weights};
use crate::tensor::Tensor;

/// Vectors of `dim` values in the modulation of a step: three for each kind of tokens in the early blocks and in the
/// single blocks, and two for the final norm.
const VECTORS: usize = 20;
/// The value of published models, which no shape determines.
const ROPE_THETA: f64 = 10000.0;
/// Distance between neighbouring tokens on the axes h and w.
const TOKEN_STEP: f32 = 0.5;
/// The modulations of the early blocks and of the single blocks, each for all kinds of tokens.
const MODULATIONS: [&str; 2] = ["early_stream_modulations", "single_stream_modulations"];
/// The kinds of tokens, by the names of their modulations in files.
const KINDS: [&str; 3] = ["image", "image_cond", "txt"];
/// The lists of blocks in the order of use, and the embedder of the time that a step leads to.
const BLOCKS: [&str; 4] =
    ["txt_mode_blocks", "mode_blocks.image_cond", "mode_blocks.image", "single_transformer_blocks"];
const NEXT_TIME: &str = "target_timestep_embedder";

pub(super) fn load<B: Backend>(weights: &Weights<'_, B>, config: &TransformerConfig) -> Result<Transformer<B>> {
    let (dim, channels) = (config.dim(), config.timestep_guidance_channels);
    let counts = config.block_counts();
    let list = |list: usize| {
        let first = counts[..list].iter().sum::<usize>();
        let block = |i: usize| {
            let is_last = list + 1 == BLOCKS.len() && i + 1 == counts[list];
            SingleBlock::load_apart(&weights.at(BLOCKS[list]).at(i).for_block(first + i), config, is_last)
        };
        Ok((first, (0..counts[list]).map(block).collect::<Result<Vec<_>>>()?))
    };
    let x_embedder = weights.linear("x_embedders.image", dim, config.in_channels)?;
    let reference_embedder = weights.linear("x_embedders.image_cond", dim, config.in_channels)?;
    let context_embedder = weights.linear("context_embedder", dim, config.joint_attention_dim)?;
    let next = config.reads_next_time().then(|| TimeEmbedder::load(&weights.at(NEXT_TIME), dim, channels));
    let modulation = ModulationWeights {
        time: TimeEmbedder::load(&weights.at("timestep_embedder"), dim, channels)?,
        next: next.transpose()?,
        parts: modulations(weights, dim)?,
    };
    let early = Early::new(PerKind { txt: list(0)?, references: list(1)?, img: list(2)? });
    Ok(Transformer {
        backend: weights.backend().clone(),
        config: config.clone(),
        x_embedder,
        reference_embedder,
        context_embedder,
        modulation,
        early,
        transformer_blocks: Vec::new(),
        single_transformer_blocks: list(3)?.1,
        final_layer: FinalLayer::load(weights, config)?,
        layers: Layers::default(),
        blocks: Arc::clone(weights.blocks()),
    })
}

/// Loads the weights of a row of modulations, from left to right.
fn modulations<B: Backend>(weights: &Weights<'_, B>, dim: usize) -> Result<Vec<(TimeOf, crate::nn::Linear<B>)>> {
    let mut parts = Vec::new();
    for blocks in MODULATIONS {
        for tokens in KINDS {
            let time = if tokens == "image" { TimeOf::Latents } else { TimeOf::Context };
            parts.push((time, weights.at(blocks).linear(&format!("{tokens}.linear"), 3 * dim, dim)?));
        }
    }
    parts.push((TimeOf::Latents, weights.linear("norm_out.linear", 2 * dim, dim)?));
    Ok(parts)
}

/// Splits a row into the modulation of a step.
pub(super) fn modulation<B: Backend>(row: &Tensor<B>) -> Result<StepModulation<B>> {
    let mut vectors = Vectors::from_row::<VECTORS>(row)?;
    let mut kinds = || {
        let [img, references, txt] = vectors.modulations();
        PerKind { txt, references, img }
    };
    let (early, single) = (Some(kinds()), SingleModulation::Apart(Box::new(kinds())));
    Ok(StepModulation { double: None, early, single, norm_out: vectors.norm_out() })
}

/// Positions on the axes (t, h, w, l): `txt` text tokens (0, 0, 0, s), then the tokens of each reference image k (0, y
/// / 2, x / 2, -(k + 1)) and the image's (0, y / 2, x / 2, 0), row by row. Sizes are [height, width] in tokens.
///
/// Source: FLUX.3 reference pipeline.
pub(super) fn position_ids(txt: usize, references: &[[usize; 2]], image: [usize; 2]) -> Vec<[f32; 4]> {
    let text = (0..txt).map(|s| [0.0, 0.0, 0.0, s as f32]);
    let tokens = |l: f32, [height, width]: [usize; 2]| {
        let at = move |n: usize| [0.0, TOKEN_STEP * (n / width) as f32, TOKEN_STEP * (n % width) as f32, l];
        (0..height * width).map(at)
    };
    let references = (1..).zip(references).flat_map(|(k, &size)| tokens(-(k as f32), size));
    text.chain(references).chain(tokens(0.0, image)).collect()
}

/// Returns the sizes by the shapes of a single file, and otherwise the values of published models.
pub(super) fn config_from_shapes(component: &Component, files: &TensorFiles) -> Result<TransformerConfig> {
    let axis = |name: &str, axis: usize| files.axis(name, axis);
    let dim = axis("x_embedders.image.weight", 0)?;
    let first = format!("{}.0", BLOCKS[3]);
    let head_dim = axis(&format!("{first}.attn.norm_q.weight"), 0)?;
    let mlp = axis(&format!("{first}.ff.linear_in.weight"), 0)? / 2;
    let counts = BLOCKS.map(|list| files.blocks(&format!("{list}.")));
    if counts[..3].iter().any(|count| *count != counts[0]) {
        let [txt, references, img, _] = counts;
        let what = format!(
            "the numbers of blocks differ: {txt} for text, {references} for references and {img} for the image"
        );
        return Err(component.place().wrong(what));
    }
    let config = TransformerConfig::new(component, [dim, head_dim, mlp], ROPE_THETA)?;
    Ok(TransformerConfig {
        in_channels: axis("x_embedders.image.weight", 1)?,
        cond_in_channels: Some(axis("x_embedders.image_cond.weight", 1)?),
        out_channels: Some(axis("proj_out.weight", 0)?),
        num_layers: counts[0],
        num_single_layers: counts[3],
        joint_attention_dim: axis("context_embedder.weight", 1)?,
        timestep_guidance_channels: axis("timestep_embedder.linear_1.weight", 1)?,
        flow_map: Some(files.shape(&format!("{NEXT_TIME}.linear_1.weight")).is_some()),
        ..config
    })
}

/// Returns `true` if a layer computes the modulation of a kind of tokens.
fn is_modulation(name: &str) -> bool {
    let parts = name.strip_suffix(".linear").and_then(|name| name.split_once('.'));
    parts.is_some_and(|(blocks, tokens)| MODULATIONS.contains(&blocks) && KINDS.contains(&tokens))
}

/// Returns the shape of a layer's weight; `None` if this model has no such layer.
pub(super) fn layer_shape(config: &TransformerConfig, name: &str) -> Option<Vec<usize>> {
    let (dim, mlp, channels) = (config.dim(), config.mlp(), config.timestep_guidance_channels);
    let matrix = match name {
        "x_embedders.image" | "x_embedders.image_cond" => [dim, config.in_channels],
        "context_embedder" => [dim, config.joint_attention_dim],
        "timestep_embedder.linear_1" => [dim, channels],
        "timestep_embedder.linear_2" => [dim, dim],
        "target_timestep_embedder.linear_1" if config.reads_next_time() => [dim, channels],
        "target_timestep_embedder.linear_2" if config.reads_next_time() => [dim, dim],
        "norm_out.linear" => [2 * dim, dim],
        "proj_out" => [config.out_channels(), dim],
        _ if is_modulation(name) => [3 * dim, dim],
        _ => {
            let list = BLOCKS.iter().find_map(|list| name.strip_prefix(list)?.strip_prefix('.'))?;
            match list.split_once('.')?.1 {
                "attn.norm_q" | "attn.norm_k" => return Some(vec![config.attention_head_dim]),
                "attn.to_q" | "attn.to_k" | "attn.to_v" | "attn.to_out.0" => [dim, dim],
                "ff.linear_in" => [2 * mlp, dim],
                "ff.linear_out" => [dim, mlp],
                _ => return None,
            }
        }
    };
    Some(matrix.to_vec())
}
