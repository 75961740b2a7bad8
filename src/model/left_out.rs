//! Tensors of a model's files that nothing reads.

use crate::error::{Error, Result};
use crate::files::own_models::VISION;
use crate::files::{Role, TensorFiles};

/// What someone should know of the tensors of a transformer that was loaded, and that no klein model has.
///
/// Errors when one belongs to a layer that is read, which would be computed without it.
pub(crate) fn of_transformer(files: &TensorFiles) -> Result<Option<String>> {
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
        return Err(Error::new(format!(
            "tensor `{}` belongs to a layer that has no such tensor in a klein {title}",
            tensor.key
        ))
        .at_path(tensor.path)
        .hint("it is another model, or was changed by a program that is not known: name another file"));
    }
    Ok(unread.first().map(|tensor| {
        format!("left out tensors of `{}` that no klein {title} has, such as `{}`", tensor.path.display(), tensor.key)
    }))
}
