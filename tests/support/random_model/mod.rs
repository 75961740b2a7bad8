//! Small model folders with random weights, complete and in the layout of the real ones.
//!
//! A [`RandomModel`] is a set of sizes; [`RandomModel::write`] turns it into a folder that this program and the
//! reference both load: model_index.json, scheduler, tokenizer, text encoder, transformer and VAE. The images are
//! meaningless, but every tensor name, shape and config key is the real one.
//!
//! Golden files depend on the weights, so a `RandomModel` has the same weights on every machine. A value is an integer
//! of splitmix64, converted to a number by exact arithmetic and one square root, all rounded as in IEEE 754, and each
//! tensor has its own stream, seeded by its name. Linear and convolution weights have the variance gain^2 / fan_in
//! with a gain of 1 or slightly more, so that activations stay in the range of a trained network.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

mod draw;
mod presets;
mod tokenizer;

use std::collections::HashMap;
use std::fs;
use std::io::{Error, Result};
use std::path::Path;

use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

use draw::{Tensor, TensorList, Values, fnv1a};
use tokenizer::{tokenizer, tokenizer_config};

/// The sizes of a model; `Option` fields are keys that a real model folder may lack.
#[derive(Clone, Debug)]
pub struct RandomModel {
    pub transformer: Transformer,
    pub text_encoder: TextEncoder,
    pub vae: Vae,
    pub kind: Kind,
    /// `max_sequence_length` in model_index.json; the program's default is 512.
    pub max_sequence_length: Option<usize>,
    /// `text_encoder_out_layers` in model_index.json. The default is 1/4, 2/4 and 3/4 of the layers, or 9, 18, 27 with
    /// more than 27 layers.
    pub text_encoder_out_layers: Option<[usize; 3]>,
    /// `default_image_size` in model_index.json, height first; the program's default is the VAE's `sample_size`.
    pub default_image_size: Option<[usize; 2]>,
    /// Two models of the same sizes and different seeds share no weight.
    pub seed: u64,
}

/// The variant in model_index.json; the weights are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Distilled,
    /// Undistilled: `is_distilled` is left out, so the pipeline uses guidance.
    Base,
    /// Distilled, with a class of its own and without `is_distilled`: the keys and values of reference images are
    /// cached.
    Kv,
}

/// The storage of a component's weights.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    pub dtype: Float,
    /// 1: a single file. More: that many files, with an index.
    pub shards: usize,
}

/// The number formats of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    Bf16,
    F16,
    F32,
}

/// dim = heads * head_dim; the text features are three concatenated hidden states of the text encoder.
#[derive(Clone, Debug)]
pub struct Transformer {
    pub double_blocks: usize,
    pub single_blocks: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// Sums to `head_dim`, each even.
    pub axes_dims_rope: [usize; 4],
    pub rope_theta: u32,
    /// mlp = floor(dim * mlp_ratio).
    pub mlp_ratio: f64,
    pub storage: Storage,
}

#[derive(Clone, Debug)]
pub struct TextEncoder {
    pub layers: usize,
    pub hidden: usize,
    pub mlp: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// At least `TOKENS`; the rows above are never read, as in the real model.
    pub vocab: usize,
    pub rope_theta: f64,
    /// `true` if the config has theta inside `rope_parameters` (new), not as `rope_theta` (old).
    pub rope_parameters: bool,
    /// If `false`, there is an `lm_head.weight`, which no image needs.
    pub tied: bool,
    pub storage: Storage,
}

#[derive(Clone, Debug)]
pub struct Vae {
    /// Channels before the 2x2 patches: the transformer sees four times as many.
    pub latent_channels: usize,
    pub block_out_channels: [usize; 4],
    /// The decoder's own channels, if they differ from those of the encoder.
    pub decoder_block_out_channels: Option<[usize; 4]>,
    pub layers_per_block: usize,
    pub norm_num_groups: usize,
    pub sample_size: usize,
    pub storage: Storage,
}

/// The presets for text-to-image; golden files exist for each.
pub const PRESETS: [&str; 4] = ["tiny", "sharded", "base", "uneven"];

/// The names of all presets.
pub const ALL_PRESETS: [&str; 5] = ["tiny", "sharded", "base", "uneven", "kv"];

/// Number of token ids of the tokenizer.
pub const TOKENS: usize = tokenizer::TOKENS;

const DOWN_AND_UP_BLOCKS: usize = 4;
const TIMESTEP_CHANNELS: usize = 256;

/// Mean weight of the norms of queries and keys. At 1 the attention of so few tokens is nearly an average over all of
/// them, and a mistake in rope or in a mask would hardly show.
const QK_NORM: f64 = 1.6;

/// Gain of the two layers above the timestep, around a silu: shift, scale and gate are about 0.6, so that each block
/// matters.
const TIMESTEP_GAIN: f64 = 1.5;

/// Gain of the last convolution: few pixels are clipped.
const IMAGE_GAIN: f64 = 0.6;

impl RandomModel {
    /// Writes the folder, and creates it if it is missing; files of the same names are replaced.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_json(&dir.join("model_index.json"), &self.model_index())?;
        write_json(&dir.join("scheduler/scheduler_config.json"), &scheduler_config())?;
        write_json(&dir.join("tokenizer/tokenizer.json"), &tokenizer(self.text_encoder.rope_parameters))?;
        write_json(&dir.join("tokenizer/tokenizer_config.json"), &tokenizer_config())?;

        let text_encoder = &self.text_encoder;
        write_json(&dir.join("text_encoder/config.json"), &text_encoder.config())?;
        self.write_weights(dir, "text_encoder", "model", text_encoder.storage, &text_encoder.tensors())?;

        let (channels, text) = (4 * self.vae.latent_channels, 3 * text_encoder.hidden);
        let transformer = &self.transformer;
        write_json(&dir.join("transformer/config.json"), &transformer.config(channels, text))?;
        let tensors = transformer.tensors(channels, text);
        self.write_weights(dir, "transformer", "diffusion_pytorch_model", transformer.storage, &tensors)?;

        write_json(&dir.join("vae/config.json"), &self.vae.config())?;
        self.write_weights(dir, "vae", "diffusion_pytorch_model", self.vae.storage, &self.vae.tensors())
    }

    fn model_index(&self) -> Value {
        let class = if self.kind == Kind::Kv { "Flux2KleinKVPipeline" } else { "Flux2KleinPipeline" };
        let mut index = json!({
            "_class_name": class,
            "_diffusers_version": "0.37.0",
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
            "text_encoder": ["transformers", "Qwen3ForCausalLM"],
            "tokenizer": ["transformers", "Qwen2TokenizerFast"],
            "transformer": ["diffusers", "Flux2Transformer2DModel"],
            "vae": ["diffusers", "AutoencoderKLFlux2"],
        });
        if self.kind == Kind::Distilled {
            index["is_distilled"] = json!(true);
        }
        if let Some(tokens) = self.max_sequence_length {
            index["max_sequence_length"] = json!(tokens);
        }
        if let Some(layers) = self.text_encoder_out_layers {
            index["text_encoder_out_layers"] = json!(layers);
        }
        if let Some(size) = self.default_image_size {
            index["default_image_size"] = json!(size);
        }
        index
    }

    /// Writes one file, or shards of equally many tensors and the index that maps tensors to shards.
    fn write_weights(
        &self,
        dir: &Path,
        component: &str,
        stem: &str,
        storage: Storage,
        tensors: &[Tensor],
    ) -> Result<()> {
        let dir = dir.join(component);
        let mut weight_map = Map::new();
        let mut total_size = 0;
        let per_shard = tensors.len().div_ceil(storage.shards);
        for (shard, tensors) in tensors.chunks(per_shard).enumerate() {
            let file = match storage.shards {
                1 => format!("{stem}.safetensors"),
                shards => format!("{stem}-{:05}-of-{shards:05}.safetensors", shard + 1),
            };
            let mut data = Vec::new();
            for tensor in tensors {
                let seed = self.seed ^ fnv1a(&format!("{component}/{}", tensor.name));
                let (dtype, bytes) = tensor.draw(storage.dtype, seed);
                total_size += bytes.len();
                weight_map.insert(tensor.name.clone(), json!(file));
                data.push((&tensor.name, dtype, &tensor.shape, bytes));
            }
            let views = data.iter().map(|(name, dtype, shape, bytes)| {
                let view = TensorView::new(*dtype, shape.to_vec(), bytes).expect("draw fills the shape");
                (name.as_str(), view)
            });
            let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
            safetensors::serialize_to_file(views, Some(metadata), &dir.join(file)).map_err(Error::other)?;
        }
        if storage.shards > 1 {
            let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
            write_json(&dir.join(format!("{stem}.safetensors.index.json")), &index)?;
        }
        Ok(())
    }
}

impl Float {
    /// Returns the spelling in `torch_dtype`.
    fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }
}

impl Transformer {
    fn config(&self, channels: usize, text: usize) -> Value {
        json!({
            "_class_name": "Flux2Transformer2DModel",
            "_diffusers_version": "0.37.0",
            "patch_size": 1,
            "in_channels": channels,
            "out_channels": null,
            "num_layers": self.double_blocks,
            "num_single_layers": self.single_blocks,
            "attention_head_dim": self.head_dim,
            "num_attention_heads": self.heads,
            "joint_attention_dim": text,
            "timestep_guidance_channels": TIMESTEP_CHANNELS,
            "mlp_ratio": self.mlp_ratio,
            "axes_dims_rope": self.axes_dims_rope,
            "rope_theta": self.rope_theta,
            "eps": 1e-6,
            "guidance_embeds": false,
        })
    }

    fn tensors(&self, channels: usize, text: usize) -> Vec<Tensor> {
        let dim = self.heads * self.head_dim;
        let mlp = (dim as f64 * self.mlp_ratio) as usize;
        let mut list = TensorList::default();

        list.linear("x_embedder", dim, channels);
        list.linear("context_embedder", dim, text);
        list.sinusoid("time_guidance_embed.timestep_embedder.linear_1", dim);
        list.weight("time_guidance_embed.timestep_embedder.linear_2", &[dim, dim], TIMESTEP_GAIN);
        list.linear("double_stream_modulation_img.linear", 6 * dim, dim);
        list.linear("double_stream_modulation_txt.linear", 6 * dim, dim);
        list.linear("single_stream_modulation.linear", 3 * dim, dim);
        for block in 0..self.double_blocks {
            let block = format!("transformer_blocks.{block}");
            for name in ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] {
                list.linear(&format!("{block}.attn.{name}"), dim, dim);
            }
            for name in ["norm_q", "norm_k", "norm_added_q", "norm_added_k"] {
                list.qk_norm(&format!("{block}.attn.{name}"), self.head_dim);
            }
            for name in ["ff", "ff_context"] {
                list.linear(&format!("{block}.{name}.linear_in"), 2 * mlp, dim);
                list.linear(&format!("{block}.{name}.linear_out"), dim, mlp);
            }
        }
        for block in 0..self.single_blocks {
            let attn = format!("single_transformer_blocks.{block}.attn");
            list.linear(&format!("{attn}.to_qkv_mlp_proj"), 3 * dim + 2 * mlp, dim);
            list.linear(&format!("{attn}.to_out"), dim, dim + mlp);
            list.qk_norm(&format!("{attn}.norm_q"), self.head_dim);
            list.qk_norm(&format!("{attn}.norm_k"), self.head_dim);
        }
        list.linear("norm_out.linear", 2 * dim, dim);
        list.linear("proj_out", channels, dim);
        list.0
    }
}

impl TextEncoder {
    fn config(&self) -> Value {
        let mut config = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-6,
            "vocab_size": self.vocab,
            "max_position_embeddings": 512,
            "tie_word_embeddings": self.tied,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "use_cache": true,
            "use_sliding_window": false,
            "sliding_window": null,
            "max_window_layers": self.layers,
        });
        if self.rope_parameters {
            config["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": self.rope_theta });
            config["layer_types"] = json!(vec!["full_attention"; self.layers]);
            config["dtype"] = json!(self.storage.dtype.name());
        } else {
            config["rope_theta"] = json!(self.rope_theta as u64);
            config["rope_scaling"] = Value::Null;
            config["torch_dtype"] = json!(self.storage.dtype.name());
        }
        config
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (query, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut list = TensorList::default();

        list.add("model.embed_tokens.weight", &[self.vocab, self.hidden], Values::about(0.0, 1.0));
        for layer in 0..self.layers {
            let layer = format!("model.layers.{layer}");
            list.norm(&format!("{layer}.input_layernorm"), self.hidden);
            list.linear(&format!("{layer}.self_attn.q_proj"), query, self.hidden);
            list.linear(&format!("{layer}.self_attn.k_proj"), kv, self.hidden);
            list.linear(&format!("{layer}.self_attn.v_proj"), kv, self.hidden);
            list.linear(&format!("{layer}.self_attn.o_proj"), self.hidden, query);
            list.qk_norm(&format!("{layer}.self_attn.q_norm"), self.head_dim);
            list.qk_norm(&format!("{layer}.self_attn.k_norm"), self.head_dim);
            list.norm(&format!("{layer}.post_attention_layernorm"), self.hidden);
            list.linear(&format!("{layer}.mlp.gate_proj"), self.mlp, self.hidden);
            list.linear(&format!("{layer}.mlp.up_proj"), self.mlp, self.hidden);
            list.linear(&format!("{layer}.mlp.down_proj"), self.hidden, self.mlp);
        }
        list.norm("model.norm", self.hidden);
        if !self.tied {
            list.linear("lm_head", self.vocab, self.hidden);
        }
        list.0
    }
}

impl Vae {
    fn config(&self) -> Value {
        let mut config = json!({
            "_class_name": "AutoencoderKLFlux2",
            "_diffusers_version": "0.37.0",
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": self.latent_channels,
            "block_out_channels": self.block_out_channels,
            "layers_per_block": self.layers_per_block,
            "norm_num_groups": self.norm_num_groups,
            "act_fn": "silu",
            "sample_size": self.sample_size,
            "force_upcast": true,
            "use_quant_conv": true,
            "use_post_quant_conv": true,
            "mid_block_add_attention": true,
            "batch_norm_eps": 1e-4,
            "batch_norm_momentum": 0.1,
            "patch_size": [2, 2],
            "down_block_types": vec!["DownEncoderBlock2D"; DOWN_AND_UP_BLOCKS],
            "up_block_types": vec!["UpDecoderBlock2D"; DOWN_AND_UP_BLOCKS],
        });
        if let Some(channels) = self.decoder_block_out_channels {
            config["decoder_block_out_channels"] = json!(channels);
        }
        config
    }

    fn tensors(&self) -> Vec<Tensor> {
        let latent = self.latent_channels;
        let mut list = TensorList::default();

        let down = self.block_out_channels;
        let mut channels = down[0];
        list.conv("encoder.conv_in", channels, 3, 3);
        for (block, out) in down.into_iter().enumerate() {
            let block_name = format!("encoder.down_blocks.{block}");
            for resnet in 0..self.layers_per_block {
                list.resnet(&format!("{block_name}.resnets.{resnet}"), channels, out);
                channels = out;
            }
            if block + 1 < DOWN_AND_UP_BLOCKS {
                list.conv(&format!("{block_name}.downsamplers.0.conv"), out, out, 3);
            }
        }
        list.mid_block("encoder.mid_block", channels);
        list.group_norm("encoder.conv_norm_out", channels);
        list.conv("encoder.conv_out", 2 * latent, channels, 3);
        list.conv("quant_conv", 2 * latent, 2 * latent, 1);

        let up = self.decoder_block_out_channels.unwrap_or(down);
        let mut channels = up[DOWN_AND_UP_BLOCKS - 1];
        list.conv("post_quant_conv", latent, latent, 1);
        list.conv("decoder.conv_in", channels, latent, 3);
        list.mid_block("decoder.mid_block", channels);
        for (block, out) in up.into_iter().rev().enumerate() {
            let block_name = format!("decoder.up_blocks.{block}");
            for resnet in 0..=self.layers_per_block {
                list.resnet(&format!("{block_name}.resnets.{resnet}"), channels, out);
                channels = out;
            }
            if block + 1 < DOWN_AND_UP_BLOCKS {
                list.conv(&format!("{block_name}.upsamplers.0.conv"), out, out, 3);
            }
        }
        list.group_norm("decoder.conv_norm_out", channels);
        list.weight("decoder.conv_out", &[3, channels, 3, 3], IMAGE_GAIN);
        list.bias("decoder.conv_out", 3);

        list.add("bn.running_mean", &[4 * latent], Values::about(0.0, 0.5));
        list.add("bn.running_var", &[4 * latent], Values::Uniform { middle: 1.25, reach: 0.75 });
        list.add("bn.num_batches_tracked", &[], Values::Count(1000));
        list.0
    }
}

fn scheduler_config() -> Value {
    json!({
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "_diffusers_version": "0.37.0",
        "num_train_timesteps": 1000,
        "shift": 3.0,
        "use_dynamic_shifting": true,
        "time_shift_type": "exponential",
        "base_shift": 0.5,
        "max_shift": 1.15,
        "base_image_seq_len": 256,
        "max_image_seq_len": 4096,
        "shift_terminal": null,
        "invert_sigmas": false,
        "stochastic_sampling": false,
        "use_karras_sigmas": false,
        "use_exponential_sigmas": false,
        "use_beta_sigmas": false,
    })
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    fs::write(path, text)
}
