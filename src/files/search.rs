//! Looks for the parts of a model in folders, by the headers of the files there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::component::{Component, open_weights};
use super::container::Container;
use super::recognise::{Kind, Role};
use super::tensor_files::TensorFiles;
use crate::error::{Error, Result};

/// How deep folders in the folders of ComfyUI are looked into, and how many files at most.
const MOST_LEVELS: usize = 3;
const MOST_FILES: usize = 2000;
const ENDINGS: [&str; 2] = ["safetensors", "gguf"];

/// The folders of ComfyUI's `models` that hold a component.
fn comfy_folders(role: Role) -> &'static [&'static str] {
    match role {
        Role::TextEncoder => &["text_encoders", "clip"],
        Role::Transformer => &["diffusion_models", "unet"],
        Role::Vae => &["vae"],
    }
}

/// A file that is a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The file.
    pub path: PathBuf,
    /// Features that fit to those of the transformer: those of a token for a text encoder, packed channels for a VAE.
    pub width: usize,
}

/// Whether a folder is laid out as the `models` folder of ComfyUI.
pub fn is_comfy(folder: &Path) -> bool {
    comfy_folders(Role::Transformer).iter().any(|name| folder.join(name).is_dir())
}

/// Folders to look for the other parts of a model whose transformer is `file`: its own, and that of ComfyUI's layout above.
pub fn around(file: &Path) -> Vec<PathBuf> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let above = || file.ancestors().skip(1).take(MOST_LEVELS);
    let has_parts = |folder: &&Path| {
        [Role::TextEncoder, Role::Vae]
            .iter()
            .any(|role| comfy_folders(*role).iter().any(|name| folder.join(name).is_dir()))
    };
    above().take(1).chain(above().find(has_parts)).map(Path::to_path_buf).collect()
}

/// All files below `roots` that are the component `role`, each once, sorted: those in the folders of ComfyUI's layout,
/// and those in the roots themselves. A file that cannot be read is none.
pub fn candidates(roots: &[PathBuf], role: Role) -> Vec<Candidate> {
    let mut files = BTreeSet::new();
    for root in roots {
        list(root, 1, &mut files);
        comfy_folders(role).iter().for_each(|name| list(&root.join(name), MOST_LEVELS, &mut files));
    }
    let mut seen = BTreeSet::new();
    let is_new = |path: &PathBuf| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone()));
    files.into_iter().filter(is_new).collect::<Vec<_>>().into_iter().filter_map(|path| candidate(path, role)).collect()
}

fn candidate(path: PathBuf, role: Role) -> Option<Candidate> {
    let file = open_weights(&path).ok()?;
    let Kind::Component(found, names) = Kind::of(file.names()) else { return None };
    let files = TensorFiles::named(vec![file], names).ok().filter(|_| found == role)?;
    Some(Candidate { width: width(&files, role)?, path })
}

/// Features of a component that must fit to those of the others; of a transformer, those of a text token.
fn width(files: &TensorFiles, role: Role) -> Option<usize> {
    let name = match role {
        Role::TextEncoder => "model.embed_tokens.weight",
        Role::Transformer => "context_embedder.weight",
        Role::Vae => return files.shape("decoder.conv_in.weight")?.get(1)?.checked_mul(4),
    };
    files.shape(name)?.get(1).copied()
}

/// Adds the files of weights in `folder` and `levels - 1` levels of folders below it.
fn list(folder: &Path, levels: usize, files: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if files.len() >= MOST_FILES {
            return;
        }
        if path.is_dir() {
            if levels > 1 {
                list(&path, levels - 1, files);
            }
        } else if path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known)) {
            files.insert(path);
        }
    }
}

/// What a transformer needs of the other parts: [features of its text, channels of its latents].
///
/// Errors when it cannot be opened, or has no such layers.
pub fn needs(transformer: &Component) -> Result<[usize; 2]> {
    #[derive(serde::Deserialize)]
    struct Sizes {
        joint_attention_dim: usize,
        in_channels: usize,
    }
    if let Some(Sizes { joint_attention_dim, in_channels }) = transformer.config()? {
        return Ok([joint_attention_dim, in_channels]);
    }
    let files = transformer.tensors()?;
    let cols = |name: &str| {
        let cols = files.shape(name).and_then(|shape| shape.get(1).copied());
        cols.ok_or_else(|| transformer.place().wrong(format!("tensor `{name}` is missing, or is no matrix")))
    };
    Ok([cols("context_embedder.weight")?, cols("x_embedder.weight")?])
}

/// The only one of `candidates` for the role.
///
/// Errors when there is none or there are several, which are listed.
pub fn only(candidates: &[Candidate], role: Role, missing: impl FnOnce() -> Error) -> Result<PathBuf> {
    match candidates {
        [] => Err(missing()),
        [only] => Ok(only.path.clone()),
        several => {
            let names: Vec<_> = several.iter().map(|found| format!("`{}`", found.path.display())).collect();
            let what =
                format!("there are {} files of a {} that fits: {}", several.len(), role.title(), names.join(", "));
            Err(Error::new(what).hint(format!("name one of them with `{}`", role.option())))
        }
    }
}

/// Checks that `path` is a file of the component `role`.
///
/// Errors with what it is instead.
pub fn expect_role(path: &Path, role: Role) -> Result<()> {
    let file = open_weights(path)?;
    match Kind::of(Container::names(&file)) {
        Kind::Component(found, _) if found == role => Ok(()),
        kind => Err(Error::new(format!("the file is {}, expected a {}", kind.title(), role.title()))
            .at_path(path)
            .hint(kind.remedy())),
    }
}
