//! The content of weight files, as their headers show it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::catalog::role::Role;
use crate::containers::container::Container;
use crate::containers::inspect;
use crate::models::component::open_weights;
use flux_base::error::Result;

/// The content of some files, as far as this program can use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A part of a model.
    Part(Role),
    /// A transformer with other parts.
    Model,
    /// A change to a model.
    Adapter,
    /// Nothing that this program runs.
    Other,
}

/// The content of some files, and the format of most of their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// The content.
    pub content: Content,
    /// The format, in lowercase.
    pub format: String,
}

/// Surveys the files of one part of a model, or one file. Reads only headers.
///
/// Errors if a file is damaged, cut off or missing.
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

/// Returns the format of most values.
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
        let of = |path: &str| survey(&[PathBuf::from("../../models/tiny").join(path)]);
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
