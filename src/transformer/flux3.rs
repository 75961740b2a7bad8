//! The transformer of FLUX.3: text, references and the image first have blocks for themselves, then all tokens are one
//! stream, text first.
//!
//! Every block is a single block. The blocks of a kind share one modulation for each stream: that of the image depends
//! on the time of the latents, those of text and references on time 0, and all of them on the time that a step leads to
//! where the model was distilled to read it. So what text and references become before they meet the image is the same
//! for every image, and at every step of a model that was not distilled.

use std::sync::Arc;

use super::early::Early;
use super::modulation::{ModulationWeights, SingleModulation, StepModulation, Streams, TimeEmbedder, TimeOf, Vectors};
use super::{FinalLayer, SingleBlock, Transformer, TransformerConfig};
use crate::backend::Backend;
use crate::error::Result;
use crate::files::{Component, TensorFiles};
use crate::nn::{Layers, Weights};
use crate::tensor::Tensor;

/// Vectors of `dim` values in the modulation of a step: three for each stream of each kind of blocks, and two for the
/// final norm.
const VECTORS: usize = 20;
/// What the published models have where no shape tells it.
const ROPE_THETA: f64 = 10000.0;
/// How far on the axes h and w one token is from the next.
const TOKEN_STEP: f32 = 0.5;
/// The streams, by the names that their modulations have in files.
const STREAMS: [&str; 3] = ["image", "image_cond", "txt"];
/// Lists of blocks in the order of use, and the embedder of the time that a step leads to.
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
            SingleBlock::load_apart(&weights.at(BLOCKS[list]).at(i).of_block(first + i), config, is_last)
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
    let early = Early::new(Streams { txt: list(0)?, references: list(1)?, img: list(2)? });
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

/// The weights of a row of modulations, from left to right.
fn modulations<B: Backend>(weights: &Weights<'_, B>, dim: usize) -> Result<Vec<(TimeOf, crate::nn::Linear<B>)>> {
    let mut parts = Vec::new();
    for kind in ["early_stream_modulations", "single_stream_modulations"] {
        for stream in STREAMS {
            let time = if stream == "image" { TimeOf::Latents } else { TimeOf::Context };
            parts.push((time, weights.at(kind).linear(&format!("{stream}.linear"), 3 * dim, dim)?));
        }
    }
    parts.push((TimeOf::Latents, weights.linear("norm_out.linear", 2 * dim, dim)?));
    Ok(parts)
}

/// The modulation that a row holds.
pub(super) fn modulation<B: Backend>(row: &Tensor<B>) -> Result<StepModulation<B>> {
    let mut vectors = Vectors::of::<VECTORS>(row)?;
    let mut streams = || {
        let (img, references, txt) = (vectors.modulation(), vectors.modulation(), vectors.modulation());
        Streams { txt, references, img }
    };
    let (early, single) = (Some(streams()), SingleModulation::Streams(Box::new(streams())));
    Ok(StepModulation { double: None, early, single, norm_out: vectors.norm_out() })
}

/// Positions on the axes (t, h, w, l): `txt` text tokens (0, 0, 0, s), then the tokens of each reference image k
/// (0, y / 2, x / 2, -(k + 1)) and the image's (0, y / 2, x / 2, 0), row by row. Sizes are [height, width] in tokens.
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

/// The sizes that the shapes of a single file tell, beside the values of published models.
pub(super) fn of_shapes(component: &Component, files: &TensorFiles) -> Result<TransformerConfig> {
    let axis = |name: &str, axis: usize| files.axis(name, axis);
    let dim = axis("x_embedders.image.weight", 0)?;
    let first = format!("{}.0", BLOCKS[3]);
    let head_dim = axis(&format!("{first}.attn.norm_q.weight"), 0)?;
    let mlp = axis(&format!("{first}.ff.linear_in.weight"), 0)? / 2;
    let counts = BLOCKS.map(|list| files.blocks(&format!("{list}.")));
    if counts[..3].iter().any(|count| *count != counts[0]) {
        let [txt, references, img, _] = counts;
        let what = format!("there are {txt} blocks of text, {references} of references and {img} of the image");
        return Err(component.place().wrong(what));
    }
    let config = TransformerConfig::of_widths(component, [dim, head_dim, mlp], ROPE_THETA)?;
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

/// The shape of the weight of a layer; none of those that this model has not.
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
        _ if name.contains("_stream_modulations.") => [3 * dim, dim],
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
