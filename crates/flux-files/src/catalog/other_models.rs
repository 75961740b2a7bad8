//! The one table of models that this program does not run, identified by their tensor names.

use std::collections::{HashMap, HashSet};

use crate::catalog::families::*;
use crate::catalog::own_models::FLUX2_KLEIN;
use crate::catalog::role::Role;

/// The tiny autoencoder of this program's models, whose decoder renders previews.
pub const TAEF2: &str = "the tiny autoencoder of FLUX.2 (TAEF2)";

/// The kind of a file that this program does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Not a part of a text-to-image model.
    Tool(&'static str),
    Transformer(Family),
    UNet(Family),
    Encoder(&'static str),
    Vae(&'static str),
}

use What::*;

/// Each word is the name of a tensor in the file, or the end of such a name after a dot. If an axis and a length
/// follow, the tensor of the first word has this length on this axis.
type Sign = (What, &'static [&'static str], Axis);
type Axis = Option<(usize, usize)>;
/// As [`Sign`], for a language model: its name comes first.
type LanguageModel = (&'static str, &'static [&'static str], Axis);

/// The first match of each kind counts, so signs with more of the same names come first. All matching encoders count.
const SIGNS: &[Sign] = &[
    (Tool("a ControlNet"), &["controlnet_x_embedder.weight"], None),
    (Tool("a ControlNet"), &["controlnet_blocks.0.weight"], None),
    (Tool("a ControlNet"), &["controlnet_down_blocks.0.weight"], None),
    (Tool("a ControlNet"), &["input_hint_block.0.weight"], None),
    (Tool("an IP-Adapter"), &["image_proj.latents"], None),
    (Tool("an IP-Adapter"), &["image_proj.proj.weight"], None),
    (Tool("an upscaler"), &["body.0.rdb1.conv1.weight"], None),
    (Tool("an upscaler"), &["model.1.sub.0.RDB1.conv1.0.weight"], None),
    (Tool("a textual inversion"), &["emb_params"], None),
    (Tool("a textual inversion"), &["clip_l", "clip_g"], None),
    (Tool(TAEF2), &["3.pool.0.weight"], None),
    (Tool(TAEF2), &["11.pool.0.weight"], None),
    (Tool("a tiny autoencoder"), &["decoder.layers.3.conv.0.weight"], None),
    (Tool("a tiny autoencoder"), &["3.conv.0.weight"], None),
    (Transformer(FLUX3), &["early_stream_modulations.image.lin.weight"], None),
    (Transformer(FLUX3), &["early_stream_modulations.image.linear.weight"], None),
    (Transformer(FLUX3), &["early_stream_modulations.video.lin.weight"], None),
    (Transformer(FLUX3), &["early_stream_modulations.video.linear.weight"], None),
    (Transformer(FLUX2_DEV), &["single_stream_modulation.lin.weight", "guidance_in.in_layer.weight"], None),
    (
        Transformer(FLUX2_DEV),
        &["single_stream_modulation.linear.weight", "time_guidance_embed.guidance_embedder.linear_1.weight"],
        None,
    ),
    (Transformer(HUNYUAN), &["txt_in.individual_token_refiner.blocks.0.norm1.weight"], None),
    (Transformer(HUNYUAN), &["context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight"], None),
    (Transformer(HUNYUAN), &["double_blocks.0.img_mod.linear.weight"], None),
    (Transformer(HUNYUAN), &["byt5_in.fc1.weight"], None),
    (Transformer(HUNYUAN), &["mlp_t5.0.weight"], None),
    (Transformer(CHROMA), &["distilled_guidance_layer.in_proj.weight"], None),
    (Transformer(FLUX1), &["double_blocks.0.img_mod.lin.weight"], None),
    (Transformer(FLUX1), &["single_transformer_blocks.0.proj_mlp.weight"], None),
    (Transformer(Z_IMAGE), &["all_x_embedder.2-1.weight"], None),
    (Transformer(Z_IMAGE), &["cap_embedder.1.weight", "noise_refiner.0.attention.qkv.weight"], Some((0, 3840))),
    (Transformer(Z_IMAGE), &["cap_embedder.1.weight", "noise_refiner.0.attention.to_q.weight"], Some((0, 3840))),
    (Transformer(OMNIGEN2), &["ref_image_refiner.0.attn.to_q.weight"], None),
    (Transformer(LUMINA2), &["noise_refiner.0.attention.qkv.weight"], None),
    (Transformer(LUMINA2), &["noise_refiner.0.attn.to_q.weight"], None),
    (Transformer(QWEN_IMAGE), &["transformer_blocks.0.img_mod.1.weight"], None),
    (Transformer(WAN), &["blocks.0.cross_attn.norm_k.weight", "head.modulation"], None),
    (Transformer(WAN), &["condition_embedder.time_proj.weight", "blocks.0.attn2.norm_k.weight"], None),
    (Transformer(LTX), &["patchify_proj.weight"], None),
    (Transformer(LTX), &["caption_projection.linear_1.weight", "scale_shift_table", "proj_in.weight"], None),
    (Transformer(SANA), &["caption_norm.weight", "patch_embed.proj.weight"], None),
    (Transformer(PIXART), &["adaln_single.linear.weight", "pos_embed.proj.weight"], None),
    (Transformer(PIXART), &["t_block.1.weight"], None),
    (Transformer(STABLE_DIFFUSION3), &["joint_blocks.0.context_block.attn.qkv.weight"], None),
    (
        Transformer(STABLE_DIFFUSION3),
        &["transformer_blocks.0.norm1_context.linear.weight", "pos_embed.proj.weight"],
        None,
    ),
    (Transformer(AURAFLOW), &["double_layers.0.attn.w1q.weight"], None),
    (Transformer(AURAFLOW), &["joint_transformer_blocks.0.attn.to_q.weight"], None),
    (Transformer(HIDREAM), &["caption_projection.0.linear.weight"], None),
    (Transformer(MOCHI), &["t5_yproj.weight"], None),
    (Transformer(COSMOS), &["blocks.0.blocks.0.block.attn.to_q.0.weight"], None),
    (Transformer(COSMOS), &["blocks.0.adaln_modulation_cross_attn.1.weight"], None),
    (Transformer(COG), &["patch_embed.text_proj.weight"], None),
    (Transformer(STABLE_CASCADE), &["clip_txt_mapper.weight"], None),
    (Transformer(STABLE_CASCADE), &["clip_txt_pooled_mapper.weight"], None),
    (UNet(STABLE_DIFFUSION_XL), &["input_blocks.0.0.weight", "label_emb.0.0.weight"], None),
    (
        UNet(STABLE_DIFFUSION_XL),
        &["down_blocks.0.resnets.0.time_emb_proj.weight", "add_embedding.linear_1.weight"],
        None,
    ),
    (UNet(STABLE_DIFFUSION2), &["input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"], Some((1, 1024))),
    (UNet(STABLE_DIFFUSION2), &["down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight"], Some((1, 1024))),
    (UNet(STABLE_DIFFUSION1), &["input_blocks.0.0.weight"], None),
    (UNet(STABLE_DIFFUSION1), &["down_blocks.0.resnets.0.time_emb_proj.weight"], None),
    (Encoder("a text encoder (T5)"), &["encoder.block.0.layer.0.SelfAttention.q.weight"], None),
    (Encoder("a text encoder (T5)"), &["enc.blk.0.attn_q.weight"], None),
    (Encoder("a text encoder (CLIP)"), &["text_model.encoder.layers.0.self_attn.q_proj.weight"], None),
    (Encoder("a text encoder (CLIP)"), &["transformer.resblocks.0.attn.in_proj_weight"], None),
    (Encoder("an image encoder"), &["vision_model.encoder.layers.0.self_attn.q_proj.weight"], None),
    (Encoder("a text encoder (ChatGLM)"), &["encoder.layers.0.self_attention.query_key_value.weight"], None),
    (Vae("a VAE of Stable Diffusion 1, 2 or XL"), &["decoder.conv_in.weight", LDM_VAE], FOUR),
    (Vae("a VAE of Stable Diffusion 1, 2 or XL"), &["decoder.conv_in.weight", DIFFUSERS_VAE], FOUR),
    (Vae("a VAE of FLUX.1, Stable Diffusion 3 or Z-Image"), &["decoder.conv_in.weight", LDM_VAE], SIXTEEN),
    (Vae("a VAE of FLUX.1, Stable Diffusion 3 or Z-Image"), &["decoder.conv_in.weight", DIFFUSERS_VAE], SIXTEEN),
    (Vae("a VAE, but not the FLUX.2 VAE"), &[LDM_VAE], None),
    (Vae("a VAE, but not the FLUX.2 VAE"), &[DIFFUSERS_VAE], None),
    (Vae("a VAE of Wan or Qwen-Image"), &["decoder.middle.0.residual.0.gamma"], None),
    (Vae("a VAE of Wan or Qwen-Image"), &["decoder.mid_block.resnets.0.norm1.gamma"], None),
    (Vae("a video VAE"), &["decoder.up_blocks.0.res_blocks.0.conv1.conv.weight"], None),
    (Vae("a video VAE"), &["decoder.mid_block.resnets.0.conv1.conv.weight"], None),
    (Vae("a VAE encoder without its decoder"), &["encoder.mid.block_1.conv1.weight"], None),
    (Vae("a VAE encoder without its decoder"), &["encoder.mid_block.resnets.0.conv1.weight"], None),
    (Vae("a VAE, but not the FLUX.2 VAE"), &["mid.block_1.conv1.weight"], None),
    (Vae("a VAE, but not the FLUX.2 VAE"), &["mid_block.resnets.0.conv1.weight"], None),
];
const LDM_VAE: &str = "decoder.mid.block_1.conv1.weight";
const DIFFUSERS_VAE: &str = "decoder.mid_block.resnets.0.conv1.weight";
/// Channels of latents.
const FOUR: Axis = Some((1, 4));
const SIXTEEN: Axis = Some((1, 16));

/// Language models that are not the text encoder of a supported model. The first match counts.
const LANGUAGE_MODELS: &[LanguageModel] = &[
    ("Qwen3-VL", &["visual.blocks.0.attn.qkv.weight", "layers.0.self_attn.q_norm.weight"], None),
    ("Qwen3-VL", &["visual.patch_embed.proj.weight", "layers.0.self_attn.q_norm.weight"], None),
    ("Qwen2.5-VL", &["visual.blocks.0.attn.qkv.weight"], None),
    ("Qwen3-MoE", &["layers.0.mlp.gate.weight", "layers.0.self_attn.q_norm.weight"], None),
    ("Gemma 3", &["layers.0.pre_feedforward_layernorm.weight", "layers.0.self_attn.q_norm.weight"], None),
    ("Gemma 2", &["layers.0.pre_feedforward_layernorm.weight"], None),
    ("Gemma", &["blk.0.post_ffw_norm.weight"], None),
    ("OLMo 2", &["layers.0.post_feedforward_layernorm.weight"], None),
    ("a mixture of experts", &["blk.0.ffn_gate_inp.weight"], None),
    ("Mistral", &["multi_modal_projector.patch_merger.merging_layer.weight"], None),
    ("Mistral", &["tekken_model"], None),
    ("Mistral", &["embed_tokens.weight", "layers.0.self_attn.q_proj.weight"], Some((0, 131_072))),
    ("Llama 3", &["embed_tokens.weight", "layers.0.self_attn.q_proj.weight"], Some((0, 128_256))),
    ("Qwen2", &["layers.0.self_attn.q_proj.bias"], None),
    ("Qwen2", &["blk.0.attn_q.bias"], None),
    ("", &["layers.0.self_attn.q_proj.weight"], None),
    ("", &["layers.0.mlp.up_proj.weight"], None),
    ("", &["blk.0.attn_q.weight"], None),
];

/// Returns titles of the foreign models that the tensors `keys` belong to, such as `a transformer of Z-Image`, apart
/// from the parts `own` of a klein model.
pub fn titles(keys: &HashSet<&str>, shape: impl Fn(&str) -> Option<Vec<usize>>, own: &[Role]) -> Vec<String> {
    let found = Found { keys: found(keys), shape };
    let (mut titles, mut kinds) = (Vec::new(), HashSet::new());
    for (what, words, axis) in SIGNS {
        // A part of a klein model is not a part of another model, too.
        let (kind, passes) = match what {
            Tool(_) => (0, !own.is_empty()),
            Transformer(_) | UNet(_) => (1, own.contains(&Role::Transformer)),
            Vae(_) => (2, own.contains(&Role::Vae)),
            Encoder(_) => (3, false),
        };
        if passes || (kind != 3 && kinds.contains(&kind)) || !found.fits(words, *axis) {
            continue;
        }
        if kind == 0 {
            return vec![what.title()];
        }
        kinds.insert(kind);
        titles.push(what.title());
    }
    let language_model = LANGUAGE_MODELS.iter().find(|(_, words, axis)| found.fits(words, *axis));
    // Names of T5 and CLIP have the same endings as names of language models.
    let is_named = own.contains(&Role::TextEncoder) || kinds.contains(&3);
    if let Some((name, ..)) = language_model.filter(|_| !is_named) {
        let own = FLUX2_KLEIN.text_encoder;
        titles.push(match *name {
            "" => format!("a language model, but not {own}"),
            name => format!("a language model ({name}), but not {own}"),
        });
    }
    titles.dedup();
    titles
}

impl What {
    fn title(self) -> String {
        match self {
            Tool(what) | Encoder(what) | Vae(what) => what.to_string(),
            Transformer(family) => format!("a transformer of {family}"),
            UNet(family) => format!("a U-Net of {family}"),
        }
    }
}

/// The words of signs that are in a file, each with a tensor whose name ends with the word.
struct Found<'a, S> {
    keys: HashMap<&'a str, &'a str>,
    shape: S,
}

impl<S: Fn(&str) -> Option<Vec<usize>>> Found<'_, S> {
    fn fits(&self, words: &[&str], axis: Axis) -> bool {
        let is_long = |(axis, length): (usize, usize)| {
            let shape = self.keys.get(words[0]).and_then(|key| (self.shape)(key));
            shape.is_some_and(|shape| shape.get(axis) == Some(&length))
        };
        words.iter().all(|word| self.keys.contains_key(word)) && axis.is_none_or(is_long)
    }
}

/// Returns the words of signs that names in a file end with.
fn found<'a>(keys: &HashSet<&'a str>) -> HashMap<&'a str, &'a str> {
    let words = SIGNS.iter().flat_map(|(_, words, _)| *words);
    let words: HashSet<&str> = words.chain(LANGUAGE_MODELS.iter().flat_map(|(_, words, _)| *words)).copied().collect();
    let longest = words.iter().map(|word| word.split('.').count()).max().unwrap_or(0);
    let ends = |key: &'a str| {
        let starts = key.rmatch_indices('.').map(|(dot, _)| dot + 1).take(longest);
        starts.chain([0]).map(move |start| (&key[start..], key))
    };
    keys.iter().flat_map(|key| ends(key)).filter(|(end, _)| words.contains(end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined_titles(keys: &[&str], axis: (usize, usize)) -> String {
        let shape = |_: &str| Some([vec![0; axis.0], vec![axis.1]].concat());
        titles(&keys.iter().copied().collect(), shape, &[]).join(" and ")
    }

    #[test]
    fn every_sign_is_reached_under_any_prefix() {
        for (what, words, axis) in SIGNS {
            let axis = axis.unwrap_or((0, 0));
            for prefix in ["", "model.diffusion_model.", "a.b.c."] {
                let keys: Vec<String> = words.iter().map(|word| format!("{prefix}{word}")).collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                assert_eq!(joined_titles(&keys, axis), what.title(), "{keys:?}");
            }
        }
        for (name, words, axis) in LANGUAGE_MODELS {
            let title = joined_titles(words, axis.unwrap_or((0, 0)));
            assert!(title.contains(name) && title.ends_with("but not Qwen3"), "{title}: {words:?}");
        }
    }

    #[test]
    fn all_parts_of_a_checkpoint_are_named_once() {
        let keys = [
            "model.diffusion_model.input_blocks.0.0.weight",
            "model.diffusion_model.label_emb.0.0.weight",
            "conditioner.embedders.0.transformer.text_model.encoder.layers.0.self_attn.q_proj.weight",
            "conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_weight",
            "first_stage_model.decoder.mid.block_1.conv1.weight",
            "first_stage_model.decoder.conv_in.weight",
        ];
        let title = "a U-Net of SDXL and a text encoder (CLIP) and a VAE of Stable Diffusion 1, 2 or XL";
        assert_eq!(joined_titles(&keys, (1, 4)), title);
        assert_eq!(joined_titles(&["x", ""], (0, 0)), "");
    }
}
