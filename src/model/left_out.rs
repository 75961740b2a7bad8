//! Tensors of a model's files that no layer reads.

use crate::error::{Error, Result};
use crate::files::own_models::VISION;
use crate::files::{Role, TensorFiles, Unread};

/// The suffix of ComfyUI's tensors with settings of a layer's computation.
const SETTING: &str = ".comfy_quant";

/// Returns a note about the unread tensors of a loaded transformer.
///
/// Errors if an unread tensor belongs to a block that is read: the block would be computed without it.
pub(crate) fn transformer_note(files: &TensorFiles) -> Result<Option<String>> {
    let lists = files.layers().blocks.iter().flat_map(|(bfl, own, _)| [bfl, own]);
    let is_in_block = |tensor: &&Unread<'_>| {
        let number = |list: &&str| tensor.name.strip_prefix(list)?.strip_prefix('.')?.split('.').next();
        let mut numbers = lists.clone().filter_map(number);
        // A setting without its weights changes nothing.
        !tensor.name.ends_with(SETTING) && numbers.any(|number| number.parse::<usize>().is_ok())
    };
    if let Some(tensor) = files.unread().iter().find(is_in_block) {
        return Err(unknown(tensor, "a block", Role::Transformer));
    }
    note(files, Role::Transformer, |_| false)
}

/// As [`transformer_note`], for a text encoder that runs its first `layers` layers.
pub(crate) fn text_encoder_note(files: &TensorFiles, layers: usize) -> Result<Option<String>> {
    note(files, Role::TextEncoder, |name| {
        let is_behind = || {
            let number = name.strip_prefix("model.layers.").and_then(|name| name.split('.').next()?.parse().ok());
            number.is_some_and(|number: usize| number >= layers)
        };
        // Rotary embeddings are computed, no token is sampled, and the encoder's vision part is not used.
        ["model.norm.weight", "lm_head.weight"].contains(&name)
            || name.ends_with(".rotary_emb.inv_freq")
            || name.split('.').any(|word| word == VISION)
            || is_behind()
    })
}

/// As [`transformer_note`], for a VAE that may lack its encoder.
pub(crate) fn vae_note(files: &TensorFiles, has_encoder: bool) -> Result<Option<String>> {
    note(files, Role::Vae, |name| {
        let is_of_encoder = ["encoder.", "quant_conv."].iter().any(|start| name.starts_with(start));
        // The number of batches behind the latent statistics.
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
        format!(
            "ignored tensors of `{}` that are not part of a klein {title}, such as `{}`",
            tensor.path.display(),
            tensor.key
        )
    }))
}

/// The error for an unknown tensor in a part of the model that is read.
fn unknown(tensor: &Unread<'_>, place: &str, role: Role) -> Error {
    let (key, title) = (tensor.key, role.title());
    Error::new(format!("tensor `{key}` belongs to {place} of a klein {title} that has no such tensor"))
        .at_path(tensor.path)
        .hint("it is another model, or was changed by an unknown program: choose another file")
}
