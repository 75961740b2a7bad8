//! Detection of adapters that are made for other models, by their shapes and names.

use std::collections::BTreeSet;

use super::change::{Change, Tensors};
use super::keys::{self, DOWN, flat};
use super::modules::{Module, Modules};
use crate::catalog::families::*;
use crate::catalog::own_models::Architecture;
use flux_base::error::{Error, Result};

const HINT: &str = "use it with the model it was trained for, or use an adapter for this model";

/// Parts of layer names that identify a family. No own model has them, except for those of FLUX.3. They are whole words
/// joined by underscores, with `#` for numbers. If several match, the first counts.
const SIGNS: [(Family, &str); 11] = [
    (
        FLUX3,
        "content_mode_blocks txt_mode_blocks mode_blocks early_stream_modulations single_stream_modulations \
         x_embedders emb_in ref_time_in target_timestep_embedder single_blocks_#_q_proj single_blocks_#_k_proj \
         single_blocks_#_v_proj single_blocks_#_attn_out single_blocks_#_mlp_in single_blocks_#_mlp_out \
         single_transformer_blocks_#_ff single_transformer_blocks_#_attn_to_out_#",
    ),
    (AURAFLOW, "joint_transformer_blocks"),
    (CHROMA, "distilled_guidance_layer"),
    (HIDREAM, "double_stream_blocks"),
    (HUNYUAN, "individual_token_refiner double_blocks_#_img_mod_linear single_blocks_#_modulation_linear"),
    (
        FLUX1,
        "double_blocks_#_img_mod_lin double_blocks_#_txt_mod_lin single_blocks_#_modulation_lin \
         single_transformer_blocks_#_attn_to_q single_transformer_blocks_#_attn_to_k \
         single_transformer_blocks_#_attn_to_v single_transformer_blocks_#_norm_linear \
         single_transformer_blocks_#_proj_mlp single_transformer_blocks_#_proj_out",
    ),
    (
        QWEN_IMAGE,
        "transformer_blocks_#_img_mlp transformer_blocks_#_txt_mlp transformer_blocks_#_img_mod \
         transformer_blocks_#_txt_mod",
    ),
    (STABLE_DIFFUSION3, "joint_blocks"),
    (Z_IMAGE, "context_refiner noise_refiner layers_#_attention layers_#_feed_forward"),
    (COSMOS, "blocks_#_self_attn_q_proj"),
    (WAN, "blocks_#_self_attn blocks_#_cross_attn blocks_#_ffn"),
];
/// Parts of layer names that several families share. The number of features tells these families apart.
const SHARED: [&str; 11] = [
    "input_blocks",
    "output_blocks",
    "middle_block",
    "down_blocks",
    "up_blocks",
    "mid_block",
    "transformer_blocks_#_attn1",
    "transformer_blocks_#_norm1_linear",
    "transformer_blocks_#_norm1_context_linear",
    "transformer_blocks_#_ff_net",
    "transformer_blocks_#_ff_context_net",
];

/// Parts of layer names that FLUX.1 and FLUX.2 have and FLUX.3 does not.
const BEFORE_FLUX3: [&str; 5] =
    ["double_blocks", "single_blocks_#_linear1", "single_blocks_#_linear2", "to_qkv_mlp_proj", "add_q_proj"];
/// Entries of `SIGNS` for another family that layers of FLUX.3 match, too.
const SHARED_BY_FLUX3: [&str; 3] = [
    "single_transformer_blocks_#_attn_to_q",
    "single_transformer_blocks_#_attn_to_k",
    "single_transformer_blocks_#_attn_to_v",
];

/// Returns the signs of all families, in order.
fn signs() -> impl Iterator<Item = (&'static str, Family)> {
    SIGNS.iter().flat_map(|(family, signs)| signs.split(' ').map(move |sign| (sign, *family)))
}

/// Returns the name of a model with `dim` features.
fn model_name(architecture: Architecture, dim: usize) -> String {
    match dim {
        _ if architecture == Architecture::Flux3 => format!("FLUX.3 klein ({dim} features)"),
        3072 => "FLUX.2 klein 4B (3072 features)".to_string(),
        4096 => "FLUX.2 klein 9B (4096 features)".to_string(),
        6144 => format!("{FLUX2_DEV} (6144 features)"),
        _ => format!("a model with {dim} features"),
    }
}

fn made_for(what: &str, modules: &Modules) -> Error {
    let [double, single] = modules.blocks();
    let model = model_name(modules.architecture(), modules.dim());
    let blocks = match modules.architecture() {
        Architecture::Flux2 => format!("{double} double and {single} single blocks"),
        Architecture::Flux3 => format!("{double} blocks per stream and {single} for all streams"),
    };
    let own = format!("{model}, with {blocks}");
    Error::new(format!("the adapter was trained for {what}, not for {own}")).hint(HINT)
}

/// Errors if the names in an adapter are those of another model. `keys` are the keys of all tensors in the file, and
/// `shape` returns the shape of a tensor.
pub(super) fn check_names(keys: &[&str], shape: impl Fn(&str) -> Option<Vec<usize>>, modules: &Modules) -> Result<()> {
    let names: Vec<String> = keys.iter().map(|key| without_numbers(key)).collect();
    let has = |sign: &str| {
        let words = format!("_{sign}_");
        names.iter().any(|name| name.contains(&words))
    };
    let is_flux3 = modules.architecture() == Architecture::Flux3;
    let is_own = |sign: &str, family: Family| is_flux3 && (family == FLUX3 || SHARED_BY_FLUX3.contains(&sign));
    let sign = signs().find(|(sign, family)| !is_own(sign, family) && has(sign)).map(|(_, family)| family);
    // Input features of the layers with this part in their names.
    let features = |part: &str| {
        let words = format!("_{part}_");
        let of_part = keys.iter().zip(&names).filter(|(_, name)| name.contains(&words));
        let mut downs = of_part.filter(|(key, _)| keys::parse(key).is_some_and(|(_, role)| role == DOWN));
        downs.find_map(|(key, _)| shape(key)?.get(1).copied())
    };
    let shared = || SHARED.iter().find(|sign| has(sign)).and_then(|sign| disambiguate(sign, features, keys));
    let family = match sign {
        Some(Z_IMAGE) if features("attention") == Some(2304) || features("attention_qkv") == Some(2304) => {
            Some(LUMINA2)
        }
        Some(family) => Some(family),
        None => shared(),
    };
    if let Some(family) = family {
        return Err(made_for(family, modules));
    }
    if is_flux3 && BEFORE_FLUX3.iter().any(|sign| has(sign)) {
        return Err(made_for("FLUX.1 or FLUX.2", modules));
    }
    let blocks: BTreeSet<Block> = keys.iter().filter_map(|key| Block::parse(key)).collect();
    let beyond = blocks.iter().filter(|block| block.index >= modules.blocks()[usize::from(block.single)]).count();
    // A few unknown names only get a note. If most blocks do not exist in this model, the adapter is for another one.
    if 2 * beyond > blocks.len() {
        let count = |single: bool| {
            blocks.iter().filter(|block| block.single == single).map(|block| block.index + 1).max().unwrap_or(0)
        };
        let what = match (count(false), count(true)) {
            (19, 38) | (19, 0) | (0, 38) => FLUX1.to_string(),
            (8, 48) | (0, 48) => FLUX2_DEV.to_string(),
            (20, 40) | (20, 0) | (0, 40) => HUNYUAN.to_string(),
            (60, 0) => QWEN_IMAGE.to_string(),
            (double, single) => match features("attn_to_q") {
                Some(1536 | 2432) => STABLE_DIFFUSION3.to_string(),
                _ => format!("a model with at least {double} double and {single} single blocks"),
            },
        };
        return Err(made_for(&what, modules));
    }
    Ok(())
}

/// Returns the architecture that layers with these names belong to.
pub(super) fn architecture<'a>(layers: impl Iterator<Item = &'a str>) -> Architecture {
    let names: Vec<String> = layers.map(without_numbers).collect();
    let has = |sign: &str| names.iter().any(|name| name.contains(&format!("_{sign}_")));
    let is_flux3 = signs().any(|(sign, family)| family == FLUX3 && has(sign));
    // An adapter of joint blocks alone has no other sign.
    let is_joint = || SHARED_BY_FLUX3.iter().any(|sign| has(sign)) && !has("transformer_blocks_#_attn_add_q_proj");
    if is_flux3 || is_joint() { Architecture::Flux3 } else { Architecture::Flux2 }
}

/// Returns the family of an adapter whose names several families share; `None` if nothing tells them apart.
fn disambiguate(sign: &str, features: impl Fn(&str) -> Option<usize>, keys: &[&str]) -> Option<Family> {
    if sign.ends_with("attn1") {
        return match features("attn1_to_q").or_else(|| features("attn1_to_k"))? {
            1152 => Some(PIXART),
            1920 => Some(COG),
            2048 | 4096 => Some(LTX),
            2240 => Some(SANA),
            _ => None,
        };
    }
    if sign.starts_with("transformer_blocks") {
        let dim = features("attn_to_q").or_else(|| features("ff_net")).or_else(|| features("norm1_linear"));
        return Some(if matches!(dim, Some(1536 | 2432)) { STABLE_DIFFUSION3 } else { FLUX1 });
    }
    // U-Nets: the second attention takes keys and values from the text. Only SDXL has several such layers in a row.
    let is_deep = |key: &&str| {
        let flat = flat(key);
        let number = flat.split("_transformer_blocks_").nth(1).and_then(|rest| rest.split('_').next());
        flat.contains("_te2_") || number.is_some_and(|number| number != "0")
    };
    Some(match features("attn2_to_k").or_else(|| features("attn2_to_v")) {
        Some(768) => STABLE_DIFFUSION1,
        Some(1024) => STABLE_DIFFUSION2,
        Some(2048) => STABLE_DIFFUSION_XL,
        _ if keys.iter().any(is_deep) => STABLE_DIFFUSION_XL,
        _ => STABLE_DIFFUSION1,
    })
}

/// Returns the words of a key with an underscore on each side, and `#` for numbers.
fn without_numbers(key: &str) -> String {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let flat = flat(key);
    let words: Vec<&str> = flat.split('_').map(|word| if is_number(word) { "#" } else { word }).collect();
    format!("_{}_", words.join("_"))
}

/// Errors if the tensors for `module` have the shapes of another model.
pub(super) fn check_shape(tensors: &Tensors, module: &Module, modules: &Modules) -> Result<()> {
    let &[rows, cols] = &*module.shape else { return Ok(()) };
    let Some([own_rows, own_cols]) = Change::implied_shape(tensors) else { return Ok(()) };
    if [own_rows, own_cols] == [rows, cols] {
        return Ok(());
    }
    let dim = modules.dim();
    let what = if cols == dim && own_cols != dim {
        model_name(modules.architecture(), own_cols)
    } else if rows == dim && own_rows != dim {
        model_name(modules.architecture(), own_rows)
    } else if own_cols == dim && is_flux_1(&module.name, own_rows, dim) {
        FLUX1.to_string()
    } else {
        format!("a model whose `{}` has shape [{own_rows}, {own_cols}] instead of [{rows}, {cols}]", module.name)
    };
    Err(made_for(&what, modules))
}

/// Returns `true` if a layer with so many rows is one of FLUX.1, whose MLP has four times the features and no gate.
fn is_flux_1(name: &str, rows: usize, dim: usize) -> bool {
    (name.ends_with(".linear1") && rows == 7 * dim) || (name.ends_with("_mlp.0") && rows == 4 * dim)
}

/// The block that a layer belongs to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    single: bool,
    index: usize,
}

impl Block {
    fn parse(name: &str) -> Option<Self> {
        let name = name.replace('.', "_");
        let (front, behind) = name.split_once("blocks_")?;
        let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
        Some(Self { single: front.contains("single_"), index: digits.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_from_every_style_of_name() {
        let block = |single, index| Some(Block { single, index });
        assert_eq!(Block::parse("transformer.single_transformer_blocks.3.attn.to_out"), block(true, 3));
        assert_eq!(Block::parse("lora_unet_double_blocks_18_img_attn_qkv"), block(false, 18));
        assert_eq!(Block::parse("transformer_blocks.0.ff"), block(false, 0));
        assert_eq!(
            (Block::parse("img_in"), Block::parse("blocks_x"), Block::parse("double_blocks.")),
            (None, None, None)
        );
    }

    fn check(keys: &[&str], shape: &[usize]) -> std::result::Result<(), String> {
        let modules = Modules::new(Vec::new(), Architecture::Flux2, 3072, [5, 20]);
        check_names(keys, |_| Some(shape.to_vec()), &modules).map_err(|e| e.to_string())
    }

    #[test]
    fn names_of_another_model_are_refused_and_a_stray_one_is_not() {
        let all: Vec<String> = (0..19).map(|i| format!("double_blocks.{i}.img_attn.proj.lora_A.weight")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let flux_1 = check(&all, &[4, 3072]).unwrap_err();
        assert!(
            flux_1.contains("FLUX.1,") && flux_1.contains("FLUX.2 klein 4B") && flux_1.contains("hint: "),
            "{flux_1}"
        );
        let nine = check(&all[..12], &[4, 3072]).unwrap_err();
        assert!(nine.contains("12 double") && nine.contains("0 single"), "{nine}");
        assert!(check(&all[..6], &[4, 3072]).is_ok(), "one of six");
        assert!(check(&["double_stream_modulation_img.lin", "what_is_this"], &[4, 3072]).is_ok());
    }

    #[test]
    fn adapters_of_other_families_are_named_as_what_they_are() {
        for (family, features, key) in [
            ("FLUX.1", 3072, "lora_unet_double_blocks_0_img_mod_lin.lora_down.weight"),
            ("FLUX.1", 3072, "diffusion_model.single_blocks.3.modulation.lin.lora_A.weight"),
            ("FLUX.1", 3072, "transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight"),
            ("FLUX.1", 3072, "transformer.single_transformer_blocks.37.proj_out.lora_A.weight"),
            ("FLUX.1", 3072, "transformer.transformer_blocks.0.norm1.linear.lora_A.weight"),
            ("FLUX.1", 3072, "transformer.transformer_blocks.0.ff.net.0.proj.lora_A.weight"),
            ("FLUX.2-dev", 6144, "diffusion_model.single_blocks.47.linear1.lora_A.weight"),
            ("FLUX.3", 3072, "diffusion_model.content_mode_blocks.image.0.q_proj.lora_A.weight"),
            ("FLUX.3", 3072, "diffusion_model.single_blocks.0.q_proj.lora_A.weight"),
            ("FLUX.3", 3072, "transformer.mode_blocks.image.0.attn.to_q.lora_A.weight"),
            ("FLUX.3", 3072, "transformer.txt_mode_blocks.0.attn.to_q.lora_A.weight"),
            ("FLUX.3", 3072, "transformer.single_transformer_blocks.0.ff.linear_in.lora_A.weight"),
            ("FLUX.3", 3072, "transformer.single_transformer_blocks.0.attn.to_out.0.lora_A.weight"),
            ("FLUX.3", 3072, "lora_unet_single_blocks_0_mlp_in.lora_down.weight"),
            ("SDXL", 2048, "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k.lora_down.weight"),
            ("SDXL", 640, "lora_unet_down_blocks_1_attentions_0_transformer_blocks_1_attn1_to_q.lora_down.weight"),
            ("SDXL", 2048, "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora.down.weight"),
            (
                "Stable Diffusion 1",
                768,
                "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight",
            ),
            ("Stable Diffusion 2", 1024, "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn2.to_v.lora_A.weight"),
            ("Stable Diffusion 3", 1536, "transformer.transformer_blocks.0.norm1.linear.lora_A.weight"),
            ("Stable Diffusion 3", 2432, "transformer.transformer_blocks.30.attn.to_q.lora_A.weight"),
            ("Stable Diffusion 3", 1536, "lora_unet_joint_blocks_0_x_block_attn_qkv.lora_down.weight"),
            ("Z-Image", 3840, "diffusion_model.layers.0.attention.to_q.lora_A.weight"),
            ("Z-Image", 3840, "lora_unet_context_refiner_0_feed_forward_w1.lora_down.weight"),
            ("Lumina 2", 2304, "diffusion_model.layers.0.attention.qkv.lora_A.weight"),
            ("Qwen-Image", 3072, "transformer.transformer_blocks.0.img_mlp.net.0.proj.lora_A.weight"),
            ("Qwen-Image", 3072, "lora_unet_transformer_blocks_0_txt_mod_1.lora_down.weight"),
            ("Qwen-Image", 3072, "transformer.transformer_blocks.59.attn.to_q.lora_A.weight"),
            ("Wan", 5120, "diffusion_model.blocks.0.self_attn.q.lora_A.weight"),
            ("Wan", 5120, "lora_unet_blocks_0_cross_attn_k.lora_down.weight"),
            ("Wan", 5120, "diffusion_model.blocks.0.ffn.0.lora_A.weight"),
            ("Hunyuan", 3072, "diffusion_model.double_blocks.0.img_mod.linear.lora_A.weight"),
            ("Chroma", 3072, "diffusion_model.distilled_guidance_layer.layers.0.in_layer.lora_A.weight"),
            ("Cosmos", 2048, "diffusion_model.blocks.0.self_attn.q_proj.lora_A.weight"),
            ("LTX-Video", 2048, "diffusion_model.transformer_blocks.0.attn1.to_q.lora_A.weight"),
        ] {
            let error = check(&[key], &[4, features]).expect_err(key);
            assert!(error.contains(&format!("{family}, ")) && error.contains("FLUX.2 klein 4B"), "{key}: {error}");
        }
    }

    /// A layer of FLUX.3 is not taken for one of another family if the model is FLUX.3.
    #[test]
    fn no_layer_of_flux3_has_a_sign_of_another() {
        let modules = Modules::new(Vec::new(), Architecture::Flux3, 3072, [5, 28]);
        let layers = &crate::catalog::names::FLUX3_LAYERS;
        let counts = [5, 5, 5, 28];
        for (bfl, own, _) in layers.layers(&counts).into_iter().chain(layers.fused_layers(&counts)) {
            for name in [bfl, own] {
                for key in [format!("diffusion_model.{name}.lora_A.weight"), format!("lora_unet_{name}.alpha")] {
                    let checked = check_names(&[&key], |_| Some(vec![4, 3072]), &modules);
                    assert!(checked.is_ok(), "{key}: {}", checked.unwrap_err());
                }
            }
        }
        let refused = |key: &str| check_names(&[key], |_| Some(vec![4, 3072]), &modules).unwrap_err().to_string();
        for key in
            ["diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight", "single_blocks.3.linear1.lora_A.weight"]
        {
            let error = refused(key);
            assert!(error.contains("FLUX.1 or FLUX.2") && error.contains("FLUX.3 klein"), "{error}");
        }
        assert!(refused("transformer.single_transformer_blocks.3.proj_mlp.lora_A.weight").contains("for FLUX.1,"));
    }

    /// The layer names of klein match no other family, in any style.
    #[test]
    fn no_layer_of_this_model_has_a_sign_of_another() {
        for (bfl, own, _) in crate::catalog::names::FLUX2_LAYERS.layers(&[5, 20]) {
            for name in [bfl, own] {
                for key in [format!("diffusion_model.{name}.lora_A.weight"), format!("lora_unet_{name}.alpha")] {
                    assert_eq!(check(&[&key], &[4, 3072]), Ok(()), "{key}");
                }
            }
        }
    }
}
