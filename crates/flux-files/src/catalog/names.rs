//! Mapping of the tensor names in files to own names: the names that models use, which follow diffusers and Hugging
//! Face.
//!
//! Files of Black Forest Labs and ComfyUI fuse some matrices, so an own tensor may be a range of rows of a tensor in
//! the file, or several ranges in another order. Adapters use the same mapping.

use crate::catalog::architecture::Architecture;
use crate::catalog::role::Role;

/// The rows of a layer in a single file that belong to an own layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// All rows, in the same order.
    Same,
    /// This third of the rows: the layer is q, k and v, concatenated.
    Third(usize),
    /// All rows, the second half first.
    SwappedHalves,
}

/// A layer: its name in a single file, its own name, and its rows.
pub type LayerNames = (&'static str, &'static str, Rows);

use Rows::{Same, SwappedHalves, Third};

/// Layers outside the blocks.
const AROUND_BLOCKS: [LayerNames; 11] = [
    ("img_in", "x_embedder", Same),
    ("txt_in", "context_embedder", Same),
    ("time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1", Same),
    ("time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2", Same),
    ("guidance_in.in_layer", "time_guidance_embed.guidance_embedder.linear_1", Same),
    ("guidance_in.out_layer", "time_guidance_embed.guidance_embedder.linear_2", Same),
    ("double_stream_modulation_img.lin", "double_stream_modulation_img.linear", Same),
    ("double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear", Same),
    ("single_stream_modulation.lin", "single_stream_modulation.linear", Same),
    // (shift, scale) in the file, (scale, shift) in the own tensor.
    ("final_layer.adaLN_modulation.1", "norm_out.linear", SwappedHalves),
    ("final_layer.linear", "proj_out", Same),
];
/// Layers of `double_blocks.N`; the own name is `transformer_blocks.N`.
const DOUBLE_BLOCK: [LayerNames; 16] = [
    ("img_attn.qkv", "attn.to_q", Third(0)),
    ("img_attn.qkv", "attn.to_k", Third(1)),
    ("img_attn.qkv", "attn.to_v", Third(2)),
    ("img_attn.norm.query_norm", "attn.norm_q", Same),
    ("img_attn.norm.key_norm", "attn.norm_k", Same),
    ("img_attn.proj", "attn.to_out.0", Same),
    ("img_mlp.0", "ff.linear_in", Same),
    ("img_mlp.2", "ff.linear_out", Same),
    ("txt_attn.qkv", "attn.add_q_proj", Third(0)),
    ("txt_attn.qkv", "attn.add_k_proj", Third(1)),
    ("txt_attn.qkv", "attn.add_v_proj", Third(2)),
    ("txt_attn.norm.query_norm", "attn.norm_added_q", Same),
    ("txt_attn.norm.key_norm", "attn.norm_added_k", Same),
    ("txt_attn.proj", "attn.to_add_out", Same),
    ("txt_mlp.0", "ff_context.linear_in", Same),
    ("txt_mlp.2", "ff_context.linear_out", Same),
];
/// Layers of `single_blocks.N`; the own name is `single_transformer_blocks.N`.
const SINGLE_BLOCK: [LayerNames; 4] = [
    ("linear1", "attn.to_qkv_mlp_proj", Same),
    ("linear2", "attn.to_out", Same),
    ("norm.query_norm", "attn.norm_q", Same),
    ("norm.key_norm", "attn.norm_k", Same),
];

/// Layers outside the blocks of FLUX.3.
const FLUX3_AROUND: [LayerNames; 15] = [
    ("emb_in.image", "x_embedders.image", Same),
    ("emb_in.image_cond", "x_embedders.image_cond", Same),
    ("txt_in", "context_embedder", Same),
    ("time_in.in_layer", "timestep_embedder.linear_1", Same),
    ("time_in.out_layer", "timestep_embedder.linear_2", Same),
    ("ref_time_in.in_layer", "target_timestep_embedder.linear_1", Same),
    ("ref_time_in.out_layer", "target_timestep_embedder.linear_2", Same),
    ("early_stream_modulations.image.lin", "early_stream_modulations.image.linear", Same),
    ("early_stream_modulations.image_cond.lin", "early_stream_modulations.image_cond.linear", Same),
    ("early_stream_modulations.txt.lin", "early_stream_modulations.txt.linear", Same),
    ("single_stream_modulations.image.lin", "single_stream_modulations.image.linear", Same),
    ("single_stream_modulations.image_cond.lin", "single_stream_modulations.image_cond.linear", Same),
    ("single_stream_modulations.txt.lin", "single_stream_modulations.txt.linear", Same),
    // (shift, scale) in the file, (scale, shift) in the own tensor.
    ("final_layer.image.adaLN_modulation.1", "norm_out.linear", SwappedHalves),
    ("final_layer.image.linear", "proj_out", Same),
];
/// Layers of every block of FLUX.3.
const FLUX3_BLOCK: [LayerNames; 8] = [
    ("q_proj", "attn.to_q", Same),
    ("k_proj", "attn.to_k", Same),
    ("v_proj", "attn.to_v", Same),
    ("norm.query_norm", "attn.norm_q", Same),
    ("norm.key_norm", "attn.norm_k", Same),
    ("attn_out", "attn.to_out.0", Same),
    ("mlp_in", "ff.linear_in", Same),
    ("mlp_out", "ff.linear_out", Same),
];
/// Layers of a FLUX.3 block in files that fuse q, k and v into one matrix.
const FLUX3_FUSED: [LayerNames; 6] = [
    ("qkv_proj", "attn.to_q", Third(0)),
    ("qkv_proj", "attn.to_k", Third(1)),
    ("qkv_proj", "attn.to_v", Third(2)),
    ("qkv", "attn.to_q", Third(0)),
    ("qkv", "attn.to_k", Third(1)),
    ("qkv", "attn.to_v", Third(2)),
];

/// A list of blocks: its name in a single file, its own name, and the layers of a block.
pub type BlockNames = (&'static str, &'static str, &'static [LayerNames]);

/// The layer names of a transformer.
#[derive(Debug, PartialEq, Eq)]
pub struct LayerMap {
    /// The architecture of the transformer.
    pub architecture: Architecture,
    /// Layers outside the blocks.
    pub around: &'static [LayerNames],
    /// Lists of blocks, in the order of execution.
    pub blocks: &'static [BlockNames],
    /// Layers of a block that some files have in place of others; read, but never written.
    pub fused: &'static [LayerNames],
    /// Prefixes of layers in a single file that some models of the kind lack.
    pub optional: &'static [&'static str],
    /// The layer that embeds image latents.
    pub image_embedder: &'static str,
}

/// The layer names of FLUX.2: double blocks, then single blocks.
pub static FLUX2_LAYERS: LayerMap = LayerMap {
    architecture: Architecture::Flux2,
    around: &AROUND_BLOCKS,
    blocks: &[
        ("double_blocks", "transformer_blocks", &DOUBLE_BLOCK),
        ("single_blocks", "single_transformer_blocks", &SINGLE_BLOCK),
    ],
    fused: &[],
    // Only models trained with a guidance input have an embedding for it.
    optional: &["guidance_in."],
    image_embedder: "x_embedder",
};

/// The layer names of FLUX.3: blocks of text, of references and of the image alone, then blocks of all streams.
pub static FLUX3_LAYERS: LayerMap = LayerMap {
    architecture: Architecture::Flux3,
    around: &FLUX3_AROUND,
    blocks: &[
        ("txt_mode_blocks", "txt_mode_blocks", &FLUX3_BLOCK),
        ("content_mode_blocks.image_cond", "mode_blocks.image_cond", &FLUX3_BLOCK),
        ("content_mode_blocks.image", "mode_blocks.image", &FLUX3_BLOCK),
        ("single_blocks", "single_transformer_blocks", &FLUX3_BLOCK),
    ],
    fused: &FLUX3_FUSED,
    // Only distilled models read the target time of a step.
    optional: &["ref_time_in."],
    image_embedder: "x_embedders.image",
};

/// Tensors of llama.cpp's `blk.N`; the own name is `model.layers.N`.
const LLAMA_BLOCK: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const LLAMA_AROUND: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// First words of a text encoder's names after `model.`.
const ENCODER_AROUND: [&str; 3] = ["layers", "embed_tokens", "norm"];
/// The only name of a text encoder outside `model.`.
const HEAD: &str = "lm_head.weight";
/// First words of a VAE's names, in every style.
const VAE_AROUND: [&str; 5] = ["encoder", "decoder", "bn", "quant_conv", "post_quant_conv"];

/// The naming style of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Own names.
    Diffusers,
    /// The names in single files published by Black Forest Labs.
    Bfl,
    /// The names of a text encoder for llama.cpp.
    LlamaCpp,
    /// The names of a latent-diffusion VAE.
    Ldm {
        /// The number of levels under `decoder.up`.
        levels: usize,
    },
}

/// The tensor names of a model part in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The prefix of all names.
    pub prefix: String,
    /// The prefix of own names that names in the file lack.
    pub lacks: &'static str,
    /// The naming style.
    pub style: Style,
    /// The layer names of the transformer.
    pub layers: &'static LayerMap,
}

/// Rows of a tensor in a file that are rows of an own tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedRows {
    /// The own name of the tensor.
    pub name: String,
    /// The position of these rows among the pieces of the own tensor, from the top.
    pub index: usize,
    /// The position of these rows among the equal parts of the tensor in the file.
    pub part: usize,
    /// The number of these parts.
    pub of: usize,
}

impl FusedRows {
    fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), index: 0, part: 0, of: 1 }
    }
}

impl Names {
    /// Own names without a prefix.
    pub const OWN: Self = Self { prefix: String::new(), lacks: "", style: Style::Diffusers, layers: &FLUX2_LAYERS };

    /// Returns a name without its prefix, if it has the prefix.
    pub fn strip<'a>(&self, key: &'a str) -> Option<&'a str> {
        let behind = key.strip_prefix(self.prefix.as_str());
        // The head is outside `model.`, at any level of the prefix.
        let is_head = || key.strip_suffix(HEAD).is_some_and(|above| self.prefix.starts_with(above));
        behind.or_else(|| (self.lacks == "model." && is_head()).then_some(HEAD))
    }

    /// Returns `true` if names of the part `role` in this style begin with the first word of `name`.
    pub fn know(&self, role: Role, name: &str) -> bool {
        let word = name.split('.').next().unwrap_or_default();
        let begins = |name: &str| name.split('.').next() == Some(word);
        let LayerMap { around, blocks, .. } = self.layers;
        match (role, self.style) {
            (Role::Transformer, Style::Bfl) => {
                around.iter().any(|(bfl, ..)| begins(bfl)) || blocks.iter().any(|(bfl, ..)| begins(bfl))
            }
            (Role::Transformer, _) => {
                around.iter().any(|(_, own, _)| begins(own)) || blocks.iter().any(|(_, own, _)| begins(own))
            }
            (Role::TextEncoder, Style::LlamaCpp) => {
                word == "blk" || LLAMA_AROUND.iter().any(|(llama, _)| begins(llama))
            }
            (Role::TextEncoder, _) => ENCODER_AROUND.contains(&word) || name == HEAD,
            (Role::Vae, _) => {
                let is_inside = |start| !self.lacks.is_empty() && word.starts_with(start);
                VAE_AROUND.contains(&word) || ["conv", "mid", "up", "norm"].into_iter().any(is_inside)
            }
        }
    }

    /// Maps the tensor `key` of a file to rows of own tensors. An unknown key is its own name.
    pub fn pieces(&self, key: &str) -> Vec<FusedRows> {
        let Some(rest) = self.strip(key) else { return vec![FusedRows::whole(key)] };
        // In the file of a bare decoder, tensors outside the decoder have their full names.
        let is_beside = rest == HEAD || rest.split('.').next().is_some_and(|word| VAE_AROUND.contains(&word));
        let whole = if self.lacks.is_empty() || is_beside { rest.to_string() } else { format!("{}{rest}", self.lacks) };
        match self.style {
            Style::Diffusers => vec![FusedRows::whole(whole)],
            Style::Bfl => translate_bfl(&whole, self.layers).unwrap_or_else(|| vec![FusedRows::whole(whole)]),
            Style::LlamaCpp => vec![FusedRows::whole(translate_llama_cpp(&whole).unwrap_or(whole))],
            Style::Ldm { levels } => vec![FusedRows::whole(translate_ldm(&whole, levels))],
        }
    }
}

impl LayerMap {
    /// Returns all layers of a transformer with the given number of blocks in each list: the name in a single file, the
    /// own name and the rows.
    pub fn layers(&self, blocks: &[usize]) -> Vec<(String, String, Rows)> {
        let around = self.around.iter().map(|(bfl, own, rows)| (bfl.to_string(), own.to_string(), *rows));
        around.chain(self.block_layers(blocks, |layers| layers)).collect()
    }

    /// Returns `true` if models of the kind may lack the layer with this name in a single file.
    pub fn is_optional(&self, bfl: &str) -> bool {
        self.optional.iter().any(|front| bfl.starts_with(front))
    }

    /// Returns the layers that some files have in place of others.
    pub fn fused_layers(&self, blocks: &[usize]) -> Vec<(String, String, Rows)> {
        self.block_layers(blocks, |_| self.fused).collect()
    }

    fn block_layers<'a>(
        &'a self,
        blocks: &'a [usize],
        layers: impl Fn(&'static [LayerNames]) -> &'static [LayerNames] + 'a,
    ) -> impl Iterator<Item = (String, String, Rows)> + 'a {
        self.blocks.iter().zip(blocks).flat_map(move |(&(bfl_block, own_block, own_layers), &count)| {
            let layers = layers(own_layers);
            let of_block = move |block: usize| {
                let name = move |(bfl, own, rows): &LayerNames| {
                    (format!("{bfl_block}.{block}.{bfl}"), format!("{own_block}.{block}.{own}"), *rows)
                };
                layers.iter().map(name)
            };
            (0..count).flat_map(of_block)
        })
    }
}

/// A tensor of a single file, assembled from own tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fused {
    /// The name in the file.
    pub name: String,
    /// The parts that the tensor's rows consist of, from the top.
    pub parts: Vec<FusedPart>,
}

/// Rows of an own tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedPart {
    /// The own name of the tensor.
    pub name: String,
    /// The position of these rows among equal parts of the own tensor.
    pub part: usize,
    /// The number of these parts.
    pub of: usize,
}

impl Fused {
    /// Creates a tensor that differs from the own tensor only by its name.
    pub fn whole(name: String, own: String) -> Self {
        Self { name, parts: vec![FusedPart { name: own, part: 0, of: 1 }] }
    }
}

/// Returns all tensors of a transformer with the given number of blocks in each list, as in single files of Black
/// Forest Labs.
pub fn fused_transformer(map: &LayerMap, blocks: &[usize]) -> Vec<Fused> {
    let mut tensors: Vec<Fused> = Vec::new();
    for (bfl, own, rows) in map.layers(blocks) {
        let name = format!("{bfl}.{}", if bfl.ends_with("_norm") { "scale" } else { "weight" });
        let part = |part, of| FusedPart { name: format!("{own}.weight"), part, of };
        match rows {
            // The thirds are consecutive in the list.
            Third(1..) => tensors.last_mut().expect("the first third comes before").parts.push(part(0, 1)),
            Same | Third(_) => tensors.push(Fused { name, parts: vec![part(0, 1)] }),
            SwappedHalves => tensors.push(Fused { name, parts: vec![part(1, 2), part(0, 2)] }),
        }
    }
    tensors
}

/// Returns llama.cpp's name for a tensor of a text encoder, if llama.cpp has a tensor of this kind.
pub fn llama_cpp_name(own: &str) -> Option<String> {
    let (layer, suffix) = own.rsplit_once('.')?;
    let find =
        |list: &[(&'static str, &str)], name: &str| list.iter().find(|(_, own)| *own == name).map(|(llama, _)| *llama);
    match layer.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((index, name)) => Some(format!("blk.{index}.{}.{suffix}", find(&LLAMA_BLOCK, name)?)),
        None => Some(format!("{}.{suffix}", find(&LLAMA_AROUND, layer)?)),
    }
}

fn translate_bfl(key: &str, map: &LayerMap) -> Option<Vec<FusedRows>> {
    // Norms are `.scale` in the original files, and `.weight` in some converted files.
    let layer =
        key.strip_suffix(".weight").or_else(|| key.strip_suffix("_norm.scale").map(|_| &key[..key.len() - 6]))?;
    let block = map.blocks.iter().find_map(|(bfl, own, layers)| {
        let (index, rest) = layer.strip_prefix(bfl)?.strip_prefix('.')?.split_once('.')?;
        Some((format!("{own}.{index}."), *layers, map.fused, rest))
    });
    let (front, layers, fused, rest) = block.unwrap_or((String::new(), map.around, &[], layer));
    let pieces = layers.iter().chain(fused).filter(|(bfl, ..)| *bfl == rest).flat_map(|(_, own, rows)| {
        let name = format!("{front}{own}.weight");
        match *rows {
            Same => vec![FusedRows::whole(name)],
            Third(part) => vec![FusedRows { name, index: 0, part, of: 3 }],
            SwappedHalves => {
                [0, 1].map(|index| FusedRows { name: name.clone(), index, part: 1 - index, of: 2 }).to_vec()
            }
        }
    });
    let pieces: Vec<FusedRows> = pieces.collect();
    (!pieces.is_empty()).then_some(pieces)
}

fn translate_llama_cpp(key: &str) -> Option<String> {
    let (layer, suffix) = key.rsplit_once('.')?;
    let find =
        |list: &[(&str, &'static str)], name: &str| list.iter().find(|(llama, _)| *llama == name).map(|(_, own)| *own);
    match layer.strip_prefix("blk.") {
        Some(rest) => {
            let (index, name) = rest.split_once('.')?;
            Some(format!("model.layers.{index}.{}.{suffix}", find(&LLAMA_BLOCK, name)?))
        }
        None => Some(format!("{}.{suffix}", find(&LLAMA_AROUND, layer)?)),
    }
}

fn translate_ldm(key: &str, levels: usize) -> String {
    let parts: Vec<&str> = key.split('.').collect();
    let reversed = |level: &str| {
        let level = level.parse::<usize>().ok().and_then(|level| (levels.checked_sub(1)?).checked_sub(level));
        level.map_or("x".to_string(), |level| level.to_string())
    };
    let (front, rest): (String, &[&str]) = match &parts[..] {
        ["encoder", "quant_conv", rest @ ..] => ("quant_conv".to_string(), rest),
        ["decoder", "post_quant_conv", rest @ ..] => ("post_quant_conv".to_string(), rest),
        [side @ ("encoder" | "decoder"), "norm_out", rest @ ..] => (format!("{side}.conv_norm_out"), rest),
        [side, "mid", "block_1", rest @ ..] => (format!("{side}.mid_block.resnets.0"), rest),
        [side, "mid", "block_2", rest @ ..] => (format!("{side}.mid_block.resnets.1"), rest),
        [side, "mid", "attn_1", layer, rest @ ..] => {
            let layer = match *layer {
                "norm" => "group_norm",
                "q" => "to_q",
                "k" => "to_k",
                "v" => "to_v",
                "proj_out" => "to_out.0",
                other => other,
            };
            (format!("{side}.mid_block.attentions.0.{layer}"), rest)
        }
        ["encoder", "down", level, "block", resnet, rest @ ..] => {
            (format!("encoder.down_blocks.{level}.resnets.{resnet}"), rest)
        }
        ["encoder", "down", level, "downsample", rest @ ..] => {
            (format!("encoder.down_blocks.{level}.downsamplers.0"), rest)
        }
        ["decoder", "up", level, "block", resnet, rest @ ..] => {
            (format!("decoder.up_blocks.{}.resnets.{resnet}", reversed(level)), rest)
        }
        ["decoder", "up", level, "upsample", rest @ ..] => {
            (format!("decoder.up_blocks.{}.upsamplers.0", reversed(level)), rest)
        }
        _ => return key.to_string(),
    };
    let rest = rest.iter().map(|part| if *part == "nin_shortcut" { "conv_shortcut" } else { part });
    std::iter::once(front.as_str()).chain(rest).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(style: Style, key: &str) -> Vec<(String, usize, usize, usize)> {
        let pieces = Names { style, ..Names::OWN }.pieces(key);
        pieces.into_iter().map(|FusedRows { name, index, part, of }| (name, index, part, of)).collect()
    }

    #[test]
    fn fused_matrices_are_rows_of_one_tensor_and_the_final_modulation_is_swapped() {
        let third = |name: &str, part| (format!("transformer_blocks.3.attn.{name}.weight"), 0, part, 3);
        assert_eq!(
            names(Style::Bfl, "double_blocks.3.txt_attn.qkv.weight"),
            [third("add_q_proj", 0), third("add_k_proj", 1), third("add_v_proj", 2)]
        );
        let half = |index| ("norm_out.linear.weight".to_string(), index, 1 - index, 2);
        assert_eq!(names(Style::Bfl, "final_layer.adaLN_modulation.1.weight"), [half(0), half(1)]);
    }

    #[test]
    fn every_style_becomes_the_names_that_models_ask_for() {
        const LDM: Style = Style::Ldm { levels: 4 };
        for (style, key, name) in [
            (Style::Bfl, "img_in.weight", "x_embedder.weight"),
            (Style::Bfl, "single_blocks.12.norm.key_norm.scale", "single_transformer_blocks.12.attn.norm_k.weight"),
            (Style::Bfl, "single_blocks.12.norm.key_norm.weight", "single_transformer_blocks.12.attn.norm_k.weight"),
            (Style::Bfl, "double_blocks.0.img_mlp.2.weight", "transformer_blocks.0.ff.linear_out.weight"),
            (Style::Bfl, "double_blocks.0.img_mlp.2.scale", "double_blocks.0.img_mlp.2.scale"),
            (Style::Bfl, "double_blocks.weight", "double_blocks.weight"),
            (Style::LlamaCpp, "blk.7.attn_output.weight", "model.layers.7.self_attn.o_proj.weight"),
            (Style::LlamaCpp, "token_embd.weight", "model.embed_tokens.weight"),
            (Style::LlamaCpp, "blk.7.what.weight", "blk.7.what.weight"),
            (LDM, "decoder.up.3.block.1.nin_shortcut.bias", "decoder.up_blocks.0.resnets.1.conv_shortcut.bias"),
            (LDM, "decoder.up.0.upsample.conv.weight", "decoder.up_blocks.3.upsamplers.0.conv.weight"),
            (LDM, "decoder.up.9.block.1.conv1.bias", "decoder.up_blocks.x.resnets.1.conv1.bias"),
            (LDM, "encoder.mid.attn_1.proj_out.weight", "encoder.mid_block.attentions.0.to_out.0.weight"),
            (LDM, "encoder.quant_conv.bias", "quant_conv.bias"),
            (LDM, "bn.running_mean", "bn.running_mean"),
        ] {
            assert_eq!(names(style, key), [(name.to_string(), 0, 0, 1)], "{key}");
        }
        let prefixed = Names { prefix: "any.where.".into(), style: Style::Bfl, ..Names::OWN };
        assert_eq!(prefixed.pieces("any.where.img_in.weight"), [FusedRows::whole("x_embedder.weight")]);
        assert_eq!(prefixed.pieces("img_in.weight"), [FusedRows::whole("img_in.weight")], "one that is not behind it");
    }

    #[test]
    fn names_lack_what_their_style_leaves_out() {
        let of = |prefix: &str, lacks: &'static str, style, key: &str| {
            let names = Names { prefix: prefix.into(), lacks, style, ..Names::OWN };
            names.pieces(key).remove(0).name
        };
        let qwen = |prefix: &str, key: &str| of(prefix, "model.", Style::Diffusers, key);
        assert_eq!(qwen("", "layers.3.mlp.up_proj.weight"), "model.layers.3.mlp.up_proj.weight");
        assert_eq!(qwen("a.model.", "a.model.norm.weight"), "model.norm.weight");
        for head in ["a.b.model.lm_head.weight", "a.b.lm_head.weight", "a.lm_head.weight", "lm_head.weight"] {
            assert_eq!(qwen("a.b.model.", head), "lm_head.weight", "{head}");
        }
        assert_eq!(qwen("a.model.", "b.lm_head.weight"), "b.lm_head.weight");
        let ldm = |key: &str| of("x.", "decoder.", Style::Ldm { levels: 4 }, key);
        assert_eq!(ldm("x.up.3.block.1.conv1.bias"), "decoder.up_blocks.0.resnets.1.conv1.bias");
        assert_eq!(ldm("x.norm_out.weight"), "decoder.conv_norm_out.weight");
        for beside in ["bn.running_mean", "post_quant_conv.weight"] {
            assert_eq!(ldm(&format!("x.{beside}")), beside);
        }
    }

    #[test]
    fn layers_for_adapters_are_those_of_files() {
        for (bfl, own, rows) in FLUX2_LAYERS.layers(&[2, 3]) {
            let pieces = names(Style::Bfl, &format!("{bfl}.weight"));
            let found = pieces.iter().filter(|piece| piece.0 == format!("{own}.weight")).count();
            assert_eq!(found, if rows == SwappedHalves { 2 } else { 1 }, "{bfl}");
        }
        assert_eq!(FLUX2_LAYERS.layers(&[2, 3]).len(), 11 + 2 * 16 + 3 * 4);
    }
    #[test]
    fn fused_tensors_are_what_their_names_are_read_as() {
        for Fused { name, parts } in fused_transformer(&FLUX2_LAYERS, &[2, 3]) {
            let pieces = Names { style: Style::Bfl, ..Names::OWN }.pieces(&name);
            assert_eq!(pieces.len(), parts.len(), "{name}");
            for (place, part) in parts.iter().enumerate() {
                let same = |piece: &&FusedRows| {
                    // The rows are at the right place of the own tensor, and of the tensor in the file.
                    let here = if part.of > 1 { piece.index == part.part } else { piece.index == 0 };
                    piece.name == part.name && here && piece.part == place && piece.of == parts.len()
                };
                assert_eq!(pieces.iter().filter(same).count(), 1, "{name}: {part:?} of {pieces:?}");
            }
        }
        assert_eq!(fused_transformer(&FLUX2_LAYERS, &[5, 20]).len(), 11 + 5 * 12 + 20 * 4);
    }

    #[test]
    fn names_of_llama_cpp_are_found_again() {
        for key in ["blk.7.attn_output.weight", "blk.0.ffn_norm.weight", "token_embd.weight", "output_norm.weight"] {
            let own = names(Style::LlamaCpp, key).remove(0).0;
            assert_eq!(llama_cpp_name(&own).as_deref(), Some(key));
        }
        for unknown in ["model.layers.3.self_attn.q_proj.bias.what", "visual.weight", "x", "model.layers.weight"] {
            assert_eq!(llama_cpp_name(unknown), None, "{unknown}");
        }
    }
}
