//! Tensors of a model's files that nothing reads.

use crate::error::{Error, Result};
use crate::files::own_models::VISION;
use crate::files::{Role, TensorFiles, Unread};

/// How ComfyUI ends the names of tensors that say how something is computed.
const SETTING: &str = ".comfy_quant";

/// What someone should know of the tensors of a transformer that was loaded, and that no klein model has.
///
/// Errors when one belongs to a layer or a block that is read, which would be computed without it.
pub(crate) fn of_transformer(files: &TensorFiles) -> Result<Option<String>> {
    let lists = files.layers().blocks.iter().flat_map(|(bfl, own, _)| [bfl, own]);
    let is_in_block = |tensor: &&Unread<'_>| {
        let number = |list: &&str| tensor.name.strip_prefix(list)?.strip_prefix('.')?.split('.').next();
        let mut numbers = lists.clone().filter_map(number);
        // What is said of no weights changes none.
        !tensor.name.ends_with(SETTING) && numbers.any(|number| number.parse::<usize>().is_ok())
    };
    if let Some(tensor) = files.unread().iter().find(is_in_block) {
        return Err(unknown(tensor, "a block", Role::Transformer));
    }
    note(files, Role::Transformer, |_| false)
}

/// The same of a text encoder of which the first `layers` run.
pub(crate) fn of_text_encoder(files: &TensorFiles, layers: usize) -> Result<Option<String>> {
    note(files, Role::TextEncoder, |name| {
        let is_behind = || {
            let number = name.strip_prefix("model.layers.").and_then(|name| name.split('.').next()?.parse().ok());
            number.is_some_and(|number: usize| number >= layers)
        };
        // The rotary embedding is computed, no token is chosen, and no image is seen.
        ["model.norm.weight", "lm_head.weight"].contains(&name)
            || name.ends_with(".rotary_emb.inv_freq")
            || name.split('.').any(|word| word == VISION)
            || is_behind()
    })
}

/// The same of a VAE, whose encoder may not be there.
pub(crate) fn of_vae(files: &TensorFiles, has_encoder: bool) -> Result<Option<String>> {
    note(files, Role::Vae, |name| {
        let is_of_encoder = ["encoder.", "quant_conv."].iter().any(|start| name.starts_with(start));
        // How many batches the statistics of latents are of.
        name == "bn.num_batches_tracked" || (!has_encoder && is_of_encoder)
    })
}

fn note(files: &TensorFiles, role: Role, is_expected: impl Fn(&str) -> bool) -> Result<Option<String>> {
    let unread: Vec<_> = files.unread().into_iter().filter(|tensor| !is_expected(tensor.name)).collect();
    let title = role.title();
    if let Some(tensor) = unread.iter().find(|tensor| tensor.is_of_layer) {
        return Err(unknown(tensor, "a layer", role));
    }
    Ok(unread.first().map(|tensor| {
        format!("left out tensors of `{}` that no klein {title} has, such as `{}`", tensor.path.display(), tensor.key)
    }))
}

/// The error of a tensor that belongs to what is read, and is not known there.
fn unknown(tensor: &Unread<'_>, place: &str, role: Role) -> Error {
    let (key, title) = (tensor.key, role.title());
    Error::new(format!("tensor `{key}` belongs to {place} that has no such tensor in a klein {title}"))
        .at_path(tensor.path)
        .hint("it is another model, or was changed by a program that is not known: name another file")
}
