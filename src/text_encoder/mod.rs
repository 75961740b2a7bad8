//! The text encoder, Qwen3: encodes a prompt to the features that the transformer reads.
//!
//! The features are several hidden states, concatenated. Layers after the last of them, the final norm, the output
//! head and the vision part of Qwen3-VL are never loaded. The transformer was trained with padding, so padding tokens
//! are encoded too. If all padding is at one position, it has one state, which is computed once. Nothing here knows
//! images or the transformer. Start with [`TextEncoder`]; [`Tokenizer`] makes its tokens.

mod config;
mod gguf_tokenizer;
mod layer;
mod prompt;
mod qwen3;
mod tokenizer_file;

pub use config::TextEncoderConfig;
pub use gguf_tokenizer::Vocabulary;
pub use layer::Layer;
use prompt::outside;
pub use prompt::{Padding, PromptTokens, Template, Tokenizer, Window};
pub use qwen3::TOKENS as CARRIED_TOKENS;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use crate::backend::{Backend, GraphCache, Participants};
use crate::error::{Error, Result};
use crate::files::{ModelFiles, Role, TensorFiles, TensorView};
use crate::nn::{Blocks, Weights};
use crate::ops::{Mask, Pairs, Rope, TokenLayout};
use crate::tensor::Tensor;

/// Qwen3 up to the last layer that is read.
pub struct TextEncoder<B: Backend> {
    backend: B,
    config: TextEncoderConfig,
    embed_tokens: TensorView, // [vocab, hidden], stays on the host: a prompt needs a few hundred rows
    layers: Arc<Layers<B>>,
    /// The cached rotary tables of the first prompt. If prompts are padded to one length, the tables suit all prompts.
    rope: OnceLock<(Vec<usize>, Arc<Rope<B>>)>,
    /// The key is the number of tokens that are no padding; the mask depends on it.
    graphs: GraphCache<usize, Reads<B>, B>,
}

/// The layers that run.
struct Layers<B: Backend> {
    backend: B,
    layers: Vec<Layer<B>>,
    out_layers: Vec<usize>,
    blocks: Arc<Blocks<B>>,
}

/// The inputs of a prompt's graph, which must outlive it.
struct Reads<B: Backend> {
    layers: Arc<Layers<B>>,
    rope: Arc<Rope<B>>,
}

/// Maximum number of prompt lengths that have a graph.
const MAX_GRAPHS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

impl<B: Backend> TextEncoder<B> {
    /// Loads the layers up to the last of `out_layers` (hidden state k is the output of layer k - 1).
    ///
    /// Errors if a tensor is missing or its shape does not fit the config, or the model lacks one of the states.
    pub fn load(weights: &Weights<'_, B>, config: TextEncoderConfig, out_layers: &[usize]) -> Result<Self> {
        let weights = weights.at("model");
        let last = out_layers.iter().copied().max().unwrap_or(0);
        // The last hidden state is normed in the encoder; no FLUX.2-klein model reads it.
        if last >= config.num_hidden_layers || out_layers.is_empty() || out_layers.contains(&0) {
            return Err(Error::new(format!(
                "text_encoder_out_layers {out_layers:?} do not fit an encoder of {} layers",
                config.num_hidden_layers
            ))
            .at("model_index.json")
            .hint("this is not the index of a klein model: fetch the whole folder again"));
        }
        let embed_tokens = weights.view("embed_tokens.weight", &[config.vocab_size, config.hidden_size])?;
        let layer = |i| Layer::load(&weights.at("layers").at(i).for_block(i), &config);
        let layers = (0..last).map(layer).collect::<Result<_>>()?;
        let (backend, blocks) = (weights.backend().clone(), Arc::clone(weights.blocks()));
        blocks.allocate(&backend)?;
        Ok(Self {
            backend: weights.backend().clone(),
            config,
            embed_tokens,
            layers: Arc::new(Layers { backend, layers, out_layers: out_layers.to_vec(), blocks }),
            rope: OnceLock::new(),
            graphs: GraphCache::new(MAX_GRAPHS, Participants::One),
        })
    }

    /// Returns the number of weights that are uploaded: those of the layers that run.
    pub fn elements(config: &TextEncoderConfig, out_layers: &[usize]) -> u64 {
        out_layers.iter().copied().max().unwrap_or(0) as u64 * config.layer_elements()
    }

    /// Encodes tokens to features. Calls `done(layers so far)` after each layer, whose error ends the work.
    ///
    /// n tokens -> [n, out_layers * hidden].
    ///
    /// Errors if a token id is outside the vocabulary, and as `done`.
    /// Source: FLUX.2 reference `_get_qwen3_prompt_embeds`.
    pub fn forward(&self, tokens: &PromptTokens, mut done: impl FnMut(usize) -> Result<()>) -> Result<Tensor<B>> {
        let positions = positions(tokens);
        let embedded = self.embed(&tokens.ids[..positions.len()])?;
        // Capturing a graph runs the layers once more, and replaying it does not run them one by one.
        let told = RefCell::new((0, &mut done));
        let tell = |layers| {
            let (last, done) = &mut *told.borrow_mut();
            if layers <= *last {
                return Ok(());
            }
            *last = layers;
            done(layers)
        };
        let rope = self.cached_rope(&positions)?;
        let is_cached = self.rope.get().is_some_and(|(cached, _)| *cached == positions);
        // Graphs cannot contain copies of streamed weights.
        if !is_cached || self.layers.blocks.are_streamed() {
            return padded(self.layers.forward(&embedded, &rope, tokens.real, tell)?, tokens);
        }
        let new = || self.graphs.insert(tokens.real, Arc::new(Reads { layers: Arc::clone(&self.layers), rope }));
        let work = self.graphs.find(|real, _| *real == tokens.real).unwrap_or_else(new);
        let features = work.run(&self.backend, work.was_run(), [&embedded], |reads, [embedded]| {
            reads.layers.forward(embedded, &reads.rope, tokens.real, tell)
        })?;
        tell(self.layers())?;
        padded(features, tokens)
    }

    /// Returns the number of layers that run.
    pub fn layers(&self) -> usize {
        self.layers.layers.len()
    }

    /// [`TextEncoder::rope`] with a cache of the first tables.
    fn cached_rope(&self, positions: &[usize]) -> Result<Arc<Rope<B>>> {
        match self.rope.get() {
            Some((cached, rope)) if cached == positions => Ok(Arc::clone(rope)),
            Some(_) => self.rope(positions).map(Arc::new),
            None => {
                let made = Arc::new(self.rope(positions)?);
                let (cached, first) = self.rope.get_or_init(|| (positions.to_vec(), Arc::clone(&made)));
                Ok(if cached == positions { Arc::clone(first) } else { made })
            }
        }
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor<B>> {
        let vocab = self.config.vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(outside(*id, vocab));
        }
        let ids: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
        self.backend.embedding(&self.embed_tokens, &ids)
    }

    /// Returns the rotate-half tables of these positions.
    pub fn rope(&self, positions: &[usize]) -> Result<Rope<B>> {
        let (n, half) = (positions.len(), self.config.head_dim / 2);
        let angle = |position: usize, i: usize| {
            let frequency = self.config.rope_theta.powf(-(2.0 * i as f64) / self.config.head_dim as f64) as f32;
            position as f32 * frequency
        };
        let table = |f: fn(f32) -> f32| -> Vec<f32> {
            positions.iter().flat_map(|&p| (0..half).map(move |i| (p, i))).map(|(p, i)| f(angle(p, i))).collect()
        };
        Ok(Rope {
            cos: self.backend.upload_f32(&table(f32::cos), n, half)?,
            sin: self.backend.upload_f32(&table(f32::sin), n, half)?,
            pairs: Pairs::Halves,
        })
    }
}

impl<B: Backend> Layers<B> {
    /// Runs the layers on embedded [n, hidden], whose first `real` rows are no padding -> [n, out_layers * hidden].
    fn forward(
        &self,
        embedded: &Tensor<B>,
        rope: &Rope<B>,
        real: usize,
        done: impl Fn(usize) -> Result<()>,
    ) -> Result<Tensor<B>> {
        let n = embedded.rows();
        let mut hidden_states = embedded.row_view(0..n);
        let mut read = Vec::new();
        let mut pass = self.blocks.begin(&self.backend);
        for (index, layer) in self.layers.iter().enumerate() {
            pass.enter(index)?;
            hidden_states = layer.forward(hidden_states, rope, TokenLayout::single(n), Mask::Causal { keys: real })?;
            if self.out_layers.contains(&(index + 1)) {
                read.push((index + 1, Tensor::concat_rows(&[&hidden_states])?));
            }
            done(index + 1)?;
        }
        let states: Vec<&Tensor<B>> = self
            .out_layers
            .iter()
            .map(|wanted| &read.iter().find(|(index, _)| index == wanted).expect("every layer that is read ran").1)
            .collect();
        Tensor::concat_cols(&states)
    }
}

/// Returns the positions of the computed tokens: all tokens, or without padding that repeats the first padding token.
fn positions(tokens: &PromptTokens) -> Vec<usize> {
    let (n, real) = (tokens.ids.len(), tokens.real);
    match tokens.padding {
        Padding::Counted => (0..n).collect(),
        Padding::At(place) => (0..real).chain((real < n).then_some(place)).collect(),
    }
}

/// Returns the features of all tokens; the last row may stand for all padding.
fn padded<B: Backend>(features: Tensor<B>, tokens: &PromptTokens) -> Result<Tensor<B>> {
    let (n, rows) = (tokens.ids.len(), features.rows());
    if rows == n {
        return Ok(features);
    }
    let pad = || features.row_view(rows - 1..rows);
    let all: Vec<_> = [features.row_view(0..rows)].into_iter().chain((rows..n).map(|_| pad())).collect();
    Tensor::concat_rows(&all.iter().collect::<Vec<_>>())
}

/// Opens the encoder's files.
pub fn open(dir: &ModelFiles) -> Result<TensorFiles> {
    dir.component(Role::TextEncoder).tensors()
}
