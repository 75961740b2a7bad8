//! Norms of an adapter's change by blocks, from its file alone: no model is needed.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;

use super::blocks::{OTHER, groups};
use super::change::{Change, Delta, LowRank, rows_of};
use super::keys::{self, flat, is_of_text_encoder};
use super::locate::{self, Found};
use super::modules::Module;
use super::peft::Peft;
use super::scaling::{Factors, Scaling};
use super::{FETCH_AGAIN, Keys, foreign, is_peft, read_layer, without_prefix};
use crate::catalog::own_models::Architecture;
use crate::containers::container::Container;
use crate::containers::inspect;
use flux_base::error::{Error, Result};

/// Rows of a change that one task computes.
const TASK_ROWS: usize = 64;

/// The change of an adapter, by blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdapterNorms {
    /// Number of layers that the file changes.
    pub layers: usize,
    /// The smallest and the largest rank, if layers have low-rank factors.
    pub rank: Option<[usize; 2]>,
    /// The blocks that it changes, in the order of the model.
    pub blocks: Vec<BlockNorm>,
    /// Notes on parts of the file that the norms do not contain.
    pub notes: Vec<String>,
}

/// The change of a block at strength 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockNorm {
    /// Group of the block, as in [`BlockStrengths`](super::BlockStrengths).
    pub group: &'static str,
    /// Number of the block in its group; `None` for layers outside blocks.
    pub block: Option<usize>,
    /// Number of layers that the file changes in the block.
    pub layers: usize,
    /// Frobenius norm of all changes in the block.
    pub norm: f64,
}

/// The change of a layer.
struct LayerNorm {
    place: (usize, Option<usize>),
    rank: Option<usize>,
    /// Square of the Frobenius norm; `None` if only the weight of the model would tell.
    square: Option<f64>,
    has_magnitude: bool,
}

impl AdapterNorms {
    /// Reads the adapter at a path: a file, or a folder with one file. Returns `None` if it is no adapter.
    ///
    /// Errors if the file is damaged, lacks a tensor, or gives its scale in a way that is not understood.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let Ok(Found { file, config, .. }) = locate::find(path, &[]) else { return Ok(None) };
        let opened = [Container::Safetensors(file)];
        let is_adapter = inspect::kind(&opened).is_adapter();
        let [Container::Safetensors(file)] = opened else { return Ok(None) };
        if !is_adapter {
            return Ok(None);
        }
        let at = |e: Error| e.at_path(file.path()).hint(FETCH_AGAIN);
        let peft = config.as_deref().map(Peft::from_file).transpose()?;
        let scaling = Scaling::new(file.metadata(), peft).map_err(at)?;
        file.check_finite().map_err(at)?;
        let (mut layers, mut others) = (BTreeMap::<&str, Keys>::new(), 0);
        for key in file.names() {
            match keys::parse(key).filter(|_| !is_of_text_encoder(key)) {
                Some((layer, role)) => drop(layers.entry(layer).or_default().insert(role, key.to_string())),
                None => others += 1,
            }
        }
        let architecture = foreign::architecture(layers.keys().copied());
        // Scales are looked up before the norms are computed on all cores.
        let changes = layers.iter().map(|(layer, keys)| {
            let (alpha, tensors) = read_layer(&file, keys)?;
            let own = without_prefix(layer);
            let of_first = || tensors.values().next().map_or(Vec::new(), |(_, view)| view.shape().to_vec());
            let shape = Change::implied_shape(&tensors).map_or_else(of_first, Vec::from);
            let factors = Factors { names: &[own.to_string()], alpha, is_peft: is_peft(keys) };
            let scale = |rank| Ok(scaling.scale_for(&factors, rank)?.0);
            let all = Change::all(tensors, alpha.is_some(), &Module::whole(own, own, &shape), scale)?;
            Ok(all.into_iter().map(|change| (place_of(layer, architecture), change)).collect())
        });
        let changes = changes.collect::<Result<Vec<Vec<_>>>>().map_err(at)?;
        let norms: Vec<LayerNorm> = changes.par_iter().flatten().map(|(place, change)| norm(*place, change)).collect();
        let mut notes: Vec<String> = scaling.note().into_iter().collect();
        let mut count =
            |is_meant: fn(&LayerNorm) -> bool, what: &str| match norms.iter().filter(|it| is_meant(it)).count() {
                0 => {}
                count => notes.push(format!("{count} layers {what}")),
            };
        count(|layer| layer.square.is_none(), "are replaced: their norms are those of nothing without the model");
        count(|layer| layer.has_magnitude, "have magnitudes (DoRA), which the norms do not contain");
        notes.extend(
            (others > 0).then(|| format!("{others} tensors are not in the norms: of a text encoder, or unknown")),
        );
        let ranks = norms.iter().filter_map(|layer| layer.rank);
        let rank = ranks.clone().min().zip(ranks.max()).map(|(least, most)| [least, most]);
        let mut blocks = BTreeMap::<_, (usize, f64)>::new();
        for layer in &norms {
            let (layers, square) = blocks.entry(layer.place).or_default();
            (*layers, *square) = (*layers + 1, *square + layer.square.unwrap_or(0.0));
        }
        let group = |index: usize| groups(architecture).get(index).map_or(OTHER, |group| group.name);
        let blocks = blocks.into_iter().map(|((index, block), (layers, square))| BlockNorm {
            group: group(index),
            block,
            layers,
            norm: square.sqrt(),
        });
        Ok(Some(Self { layers: layers.len(), rank, blocks: blocks.collect(), notes }))
    }
}

/// Returns the index of a layer's group and the number of its block, by its name in any style.
fn place_of(layer: &str, architecture: Architecture) -> (usize, Option<usize>) {
    let words = format!("_{}_", flat(layer));
    let number = |name: &str| {
        let name = format!("_{}_", flat(name));
        words.split(&name).nth(1)?.split('_').next()?.parse::<usize>().ok()
    };
    let groups = groups(architecture);
    let places = groups.iter().enumerate();
    let mut found = places.filter_map(|(index, group)| Some((index, Some(group.names.into_iter().find_map(number)?))));
    // `single_transformer_blocks` also contains `transformer_blocks`, and is in a later group.
    found.next_back().unwrap_or((groups.len(), None))
}

fn norm(place: (usize, Option<usize>), change: &Change) -> LayerNorm {
    let [rows, cols] = change.shape;
    let square = match &change.delta {
        Delta::Replacement(_) => None,
        Delta::LowRank(low_rank) => Some(low_rank_square(low_rank)),
        delta => Some(
            (0..rows.div_ceil(TASK_ROWS))
                .map(|task| {
                    let rows = task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS);
                    let mut values = vec![0.0; rows.len() * cols];
                    delta.add_to(rows, cols, 1.0, &mut values);
                    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>()
                })
                .sum(),
        ),
    };
    let rank = match &change.delta {
        Delta::LowRank(low_rank) => Some(low_rank.rank()),
        _ => None,
    };
    LayerNorm { place, rank, square, has_magnitude: change.magnitude.is_some() }
}

/// Returns the square of the norm of `scale * up down`, from the products of each factor with itself.
fn low_rank_square(LowRank { up, down, scale }: &LowRank) -> f64 {
    let (up_values, rank) = (rows_of(up, 0..up.rows()), up.cols());
    let down_values = rows_of(down, 0..down.rows());
    let mut of_up = vec![0.0; rank * rank];
    for row in up_values.chunks_exact(rank) {
        for (value, sums) in row.iter().zip(of_up.chunks_exact_mut(rank)) {
            sums.iter_mut().zip(row).for_each(|(sum, other)| *sum += f64::from(*value) * f64::from(*other));
        }
    }
    let downs: Vec<&[f32]> = down_values.chunks_exact(down.cols()).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let pairs = downs.iter().flat_map(|a| downs.iter().map(move |b| dot(a, b)));
    let square = of_up.iter().zip(pairs).map(|(up, down)| up * down).sum::<f64>();
    f64::from(*scale).powi(2) * square.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_belongs_to_a_block_in_every_style() {
        let single = (1, Some(12));
        for (layer, place) in [
            ("transformer.transformer_blocks.3.attn.to_q", (0, Some(3))),
            ("lora_unet_double_blocks_3_img_attn_qkv", (0, Some(3))),
            ("diffusion_model.single_blocks.12.linear1", single),
            ("lycoris_single_transformer_blocks_12_attn_to_out", single),
            ("double_stream_modulation_img.linear", (2, None)),
            ("proj_out", (2, None)),
        ] {
            assert_eq!(place_of(layer, Architecture::Flux2), place, "{layer}");
        }
        for (layer, place) in [
            ("txt_mode_blocks.4.attn.to_q", (0, Some(4))),
            ("diffusion_model.content_mode_blocks.image.1.q_proj", (1, Some(1))),
            ("transformer.mode_blocks.image_cond.2.attn.to_q", (2, Some(2))),
            ("single_transformer_blocks.27.ff.linear_in", (3, Some(27))),
            ("x_embedders.image", (4, None)),
        ] {
            assert_eq!(place_of(layer, Architecture::Flux3), place, "{layer}");
        }
    }
}
