//! What files of weights are, told by their headers alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::component::open_weights;
use super::container::Container;
use super::inspect;
use super::role::Role;
use crate::error::Result;

/// What some files are to this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A part of a model.
    Part(Role),
    /// A transformer with other parts.
    Model,
    /// What changes a model.
    Adapter,
    /// Nothing that it runs.
    Other,
}

/// What some files are, and the format of most of their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// What they are.
    pub content: Content,
    /// The format, in small letters.
    pub format: String,
}

/// What the files of one part of a model, or one file, are. Only headers are read.
///
/// Errors when one of them is damaged, cut off or not there.
pub fn survey(paths: &[PathBuf]) -> Result<Surveyed> {
    let files = paths.iter().map(|path| open_weights(path)).collect::<Result<Vec<_>>>()?;
    let kind = inspect::kind(&files);
    let content = match kind.main_role() {
        _ if kind.is_adapter() => Content::Adapter,
        Some(Role::Transformer) if kind.has_several() => Content::Model,
        Some(role) => Content::Part(role),
        None => Content::Other,
    };
    Ok(Surveyed { content, format: format_of(&files) })
}

/// The format that most values have.
fn format_of(files: &[Container]) -> String {
    let mut formats: BTreeMap<String, usize> = BTreeMap::new();
    for file in files {
        let views = file.names().filter_map(|name| file.tensor(name).ok());
        views.for_each(|view| {
            *formats.entry(format!("{:?}", view.format()).to_lowercase()).or_default() += view.elements()
        });
    }
    let most = formats.into_iter().max_by_key(|(_, values)| *values);
    most.map(|(format, _)| format).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_tell_what_files_are() {
        let of = |path: &str| survey(&[PathBuf::from("models/tiny").join(path)]);
        for (path, role) in [
            ("transformer/diffusion_pytorch_model.safetensors", Role::Transformer),
            ("text_encoder/model.safetensors", Role::TextEncoder),
            ("vae/diffusion_pytorch_model.safetensors", Role::Vae),
        ] {
            let found = of(path).unwrap();
            assert_eq!((found.content, found.format.as_str()), (Content::Part(role), "bf16"), "{path}");
        }
        assert!(of("model_index.json").is_err() && of("none.safetensors").is_err());
    }
}
