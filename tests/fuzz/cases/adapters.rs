//! Damaged adapters, and files that are no adapters.

use std::path::Path;

use super::{Place, link, models, work};
use crate::rng::Rng;
use crate::run::Case;
use crate::sources::adapter_of;
use crate::tensors::TensorFile;
use crate::{folder, mutate};

/// A damaged adapter of a model.
pub fn damaged(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, source) = models::linked(place, rng);
    let path = place.at("adapter.safetensors");
    link(&adapter_of(source), &path);
    case.what = format!("the adapter of {source:?}");
    match rng.below(6) {
        0 => case.what = format!("the adapter is {}", folder::replace(&path, rng)),
        1..=2 => folder::damage(&path, rng),
        _ => rename(&path, rng),
    }
    let strength = rng.pick(&["", "", "", ":0.5", ":-1", ":0", ":1e38", ":x"]);
    let mut argument = path.into_os_string();
    argument.push(strength);
    case.command.arg("--lora").arg(argument);
    case.expected.blames = vec!["adapter.safetensors".to_string(), "--lora".to_string()];
    work::draw(&mut case, place, &model);
    case
}

/// Renames tensors, some of them to names of other programs.
fn rename(path: &Path, rng: &mut Rng) {
    let prefixes = [
        "diffusion_model.",
        "transformer.",
        "lora_unet_",
        "lora_unet_diffusion_model_",
        "lora_unet_model_diffusion_model_",
        "base_model.model.",
        "model.",
        "unet.",
        "",
        ".",
        "lora_te_",
    ];
    let ends = "\
        .weight _ . .lora_mid.weight .diff_b .lora_C.weight .magnitude .lora_magnitude_vector .default.weight .scale \
        .alpha .rank .bias .w_norm";
    let mut file = TensorFile::read(path);
    let of_all = rng.one_of(3).then(|| *rng.pick(&prefixes));
    let uses_underscores = rng.one_of(4);
    for tensor in &mut file.tensors {
        if let Some(prefix) = of_all.or_else(|| rng.one_of(12).then(|| *rng.pick(&prefixes))) {
            tensor.name.insert_str(0, prefix);
        }
        if uses_underscores && let Some((module, end)) = tensor.name.split_once(".lo") {
            tensor.name = format!("{}.lo{end}", module.replace('.', "_"));
        }
        match rng.below(24) {
            0 => tensor.name += rng.word(ends),
            1 => tensor.name = mutate::hostile_text(rng),
            2 => tensor.shape.extend([1, 1]),
            3 => tensor.shape.reverse(),
            4 => {
                let value = tensor.extreme(rng).1;
                tensor.fill(&value, rng);
            }
            _ => {}
        }
    }
    let keys =
        ["lora_adapter_metadata", "ss_network_alpha", "ss_network_dim", "alpha", "rank", "networkAlpha", "format"];
    if rng.one_of(3) {
        let value = mutate::hostile_value(rng);
        let value = if value.is_string() { value } else { value.to_string().into() };
        file.metadata.insert(rng.pick(&keys).to_string(), value);
    }
    folder::change(path, |_| file.bytes());
}
