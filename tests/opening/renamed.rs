//! Tensors with the names of other programs, fused as in these. This code is independent of the maps by which the
//! program reads them.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use crate::gguf;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Dtype, shape and bytes by name.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Reads the tensors of a file, and its metadata.
pub fn read_with_metadata(path: &Path) -> (Tensors, HashMap<String, String>) {
    let bytes = fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    (read(path), header.metadata().clone().unwrap_or_default())
}

pub fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor =
        |(name, view): (String, TensorView<'_>)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    tensors.tensors().into_iter().map(tensor).collect()
}

/// The values that the shapes of a small model do not determine, in the form of other programs' files.
pub const CONFIG: &str = r#"{
    "transformer": {"axes_dims_rope": [8, 8, 8, 8], "rope_theta": 2000, "eps": 1e-6},
    "text_encoder": {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "max_position_embeddings": 512},
    "vae": {"norm_num_groups": 32, "batch_norm_eps": 1e-4}
}"#;

pub fn write(path: &Path, tensors: &Tensors) {
    write_with(path, tensors, &[("config", CONFIG)]);
}

/// Writes tensors to a safetensors file with this metadata.
pub fn write_with(path: &Path, tensors: &Tensors, metadata: &[(&str, &str)]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let metadata = metadata.iter().map(|(key, text)| (key.to_string(), text.to_string())).collect();
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
}

pub fn prefixed(tensors: &Tensors, prefix: &str) -> Tensors {
    tensors.iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor.clone())).collect()
}

/// Returns a VAE without its encoder, in either style.
pub fn decoder_only(tensors: &Tensors) -> Tensors {
    let is_encoder = |name: &str| name.starts_with("encoder.") || name.starts_with("quant_conv.");
    tensors.iter().filter(|(name, _)| !is_encoder(name)).map(|(name, tensor)| (name.clone(), tensor.clone())).collect()
}

/// Returns a transformer with the names of Black Forest Labs; norms end with `norm_suffix`.
pub fn bfl(tensors: &Tensors, prefix: &str, norm_suffix: &str) -> Tensors {
    const NAMES: [(&str, &str); 22] = [
        ("single_transformer_blocks.", "single_blocks."),
        ("transformer_blocks.", "double_blocks."),
        ("attn.to_qkv_mlp_proj.", "linear1."),
        ("attn.to_out.0.", "img_attn.proj."),
        ("attn.to_add_out.", "txt_attn.proj."),
        ("attn.to_out.", "linear2."),
        ("ff.linear_in.", "img_mlp.0."),
        ("ff.linear_out.", "img_mlp.2."),
        ("ff_context.linear_in.", "txt_mlp.0."),
        ("ff_context.linear_out.", "txt_mlp.2."),
        ("attn.norm_added_q.weight", "txt_attn.norm.query_norm@"),
        ("attn.norm_added_k.weight", "txt_attn.norm.key_norm@"),
        ("x_embedder.", "img_in."),
        ("context_embedder.", "txt_in."),
        ("time_guidance_embed.timestep_embedder.linear_1.", "time_in.in_layer."),
        ("time_guidance_embed.timestep_embedder.linear_2.", "time_in.out_layer."),
        ("_modulation_img.linear.", "_modulation_img.lin."),
        ("_modulation_txt.linear.", "_modulation_txt.lin."),
        ("single_stream_modulation.linear.", "single_stream_modulation.lin."),
        ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
        ("proj_out.", "final_layer.linear."),
        ("attn.norm_", "norm_"),
    ];
    const FUSED: [(&str, [&str; 3]); 2] =
        [("img_attn.qkv", ["to_q", "to_k", "to_v"]), ("txt_attn.qkv", ["add_q_proj", "add_k_proj", "add_v_proj"])];
    let mut renamed = Tensors::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let mut bytes = bytes.clone();
        if name == "norm_out.linear.weight" {
            let half = bytes.len() / 2;
            bytes.rotate_left(half);
        }
        if FUSED.iter().flat_map(|(_, parts)| parts).any(|part| name.ends_with(&format!(".attn.{part}.weight"))) {
            continue;
        }
        let mut new = name.clone();
        NAMES.iter().for_each(|(from, to)| new = new.replace(from, to));
        let stream = if new.starts_with("double") { "img_attn." } else { "" };
        new = new.replace("norm_q.weight", &format!("{stream}norm.query_norm@"));
        new = new.replace("norm_k.weight", &format!("{stream}norm.key_norm@"));
        renamed.insert(format!("{prefix}{}", new.replace('@', norm_suffix)), (*dtype, shape.clone(), bytes));
    }
    for block in 0.. {
        if !tensors.contains_key(&format!("transformer_blocks.{block}.attn.to_q.weight")) {
            break;
        }
        for (name, parts) in FUSED {
            let parts = parts.map(|part| &tensors[&format!("transformer_blocks.{block}.attn.{part}.weight")]);
            let (dtype, shape, _) = parts[0];
            let bytes = parts.iter().flat_map(|(.., bytes)| bytes.clone()).collect();
            renamed.insert(
                format!("{prefix}double_blocks.{block}.{name}.weight"),
                (*dtype, vec![3 * shape[0], shape[1]], bytes),
            );
        }
    }
    renamed
}

/// Returns a text encoder with the names of llama.cpp.
pub fn llama(tensors: &Tensors) -> Tensors {
    const NAMES: [(&str, &str); 14] = [
        ("model.embed_tokens.", "token_embd."),
        ("model.layers.", "blk."),
        ("model.norm.", "output_norm."),
        ("input_layernorm.", "attn_norm."),
        ("post_attention_layernorm.", "ffn_norm."),
        ("self_attn.q_proj.", "attn_q."),
        ("self_attn.k_proj.", "attn_k."),
        ("self_attn.v_proj.", "attn_v."),
        ("self_attn.o_proj.", "attn_output."),
        ("self_attn.q_norm.", "attn_q_norm."),
        ("self_attn.k_norm.", "attn_k_norm."),
        ("mlp.gate_proj.", "ffn_gate."),
        ("mlp.up_proj.", "ffn_up."),
        ("mlp.down_proj.", "ffn_down."),
    ];
    let rename = |name: &String| NAMES.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
    tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect()
}

/// Writes tensors to a GGUF file.
pub fn write_gguf(path: &Path, tensors: &Tensors) {
    write_gguf_with(path, tensors, &[("config", gguf::Value::Text(CONFIG))]);
}

/// Writes tensors to a GGUF file with these values.
pub fn write_gguf_with(path: &Path, tensors: &Tensors, values: &[(&str, gguf::Value<'_>)]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let tensors: Vec<gguf::Tensor<'_>> = tensors
        .iter()
        .filter(|(_, (dtype, ..))| *dtype != Dtype::I64)
        .map(|(name, (dtype, shape, bytes))| (name.clone(), *dtype, shape.as_slice(), bytes.as_slice()))
        .collect();
    gguf::write(path, values, &tensors);
}

/// Returns a VAE with the names of latent diffusion.
pub fn ldm(tensors: &Tensors) -> Tensors {
    const NAMES: [(&str, &str); 17] = [
        ("post_quant_conv.", "@post."),
        ("quant_conv.", "encoder.quant_conv."),
        ("@post.", "decoder.post_quant_conv."),
        ("conv_norm_out.", "norm_out."),
        ("mid_block.resnets.0.", "mid.block_1."),
        ("mid_block.resnets.1.", "mid.block_2."),
        ("mid_block.attentions.0.group_norm.", "mid.attn_1.norm."),
        ("mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out."),
        ("mid_block.attentions.0.to_", "mid.attn_1."),
        (".down_blocks.", ".down."),
        (".resnets.", ".block."),
        (".downsamplers.0.", ".downsample."),
        (".upsamplers.0.", ".upsample."),
        ("up_blocks.0.", "up.3."),
        ("up_blocks.1.", "up.2."),
        ("up_blocks.2.", "up.1."),
        ("up_blocks.3.", "up.0."),
    ];
    let rename = |(name, (dtype, shape, bytes)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
        let mut new = name.clone();
        NAMES.iter().for_each(|(from, to)| new = new.replace(from, to));
        let mut shape = shape.clone();
        if new.contains("attn_1") && shape.len() == 2 {
            shape.extend([1, 1]);
        }
        (new.replace("conv_shortcut", "nin_shortcut"), (*dtype, shape, bytes.clone()))
    };
    tensors.iter().map(rename).collect()
}
