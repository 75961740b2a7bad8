//! Looks for the parts of a model in folders, by the headers of the files there.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::component::{Component, open_weights};
use super::container::is_weights;
use super::inspect;
use super::recognise::FileKind;
use super::regular;
use super::role::Role;
use super::tensor_files::TensorFiles;
use crate::error::{Error, Result};

/// How deep folders in the folders of ComfyUI are looked into, and how many files at most.
const MOST_LEVELS: usize = 4;
const MOST_FILES: usize = 2000;
/// How many files a message names.
const MOST_NAMES: usize = 8;
/// The folder of ComfyUI's `models` for models in one file.
const WHOLE_MODELS: &str = "checkpoints";

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
    /// Whether it is in the folder of whole models, where it only counts if there is no other.
    is_whole: bool,
}

/// What was found for a component.
#[derive(Debug, Default)]
pub struct Candidates {
    /// The files that are one.
    pub files: Vec<Candidate>,
    /// The errors of files that may be one and cannot be read: those in the folders for it first.
    pub damaged: Vec<Error>,
}

/// Whether a folder is laid out as the `models` folder of ComfyUI.
pub fn is_comfy(folder: &Path) -> bool {
    comfy_folders(Role::Transformer).iter().chain([&WHOLE_MODELS]).any(|name| folder.join(name).is_dir())
}

/// Folders to look for the other parts of a model whose transformer is `file`: its own, and that of ComfyUI's layout
/// above. Where it is a link, those of the link first.
pub fn around(file: &Path) -> Vec<PathBuf> {
    let has_parts = |folder: &&Path| {
        [Role::TextEncoder, Role::Vae]
            .iter()
            .any(|role| comfy_folders(*role).iter().any(|name| folder.join(name).is_dir()))
    };
    let mut roots: Vec<PathBuf> = Vec::new();
    for file in places(file) {
        let above = || file.ancestors().skip(1).take(MOST_LEVELS);
        roots.extend(above().take(1).chain(above().find(has_parts)).map(Path::to_path_buf));
    }
    let mut seen = BTreeSet::new();
    roots.retain(|root| seen.insert(root.clone()));
    roots
}

/// Where a file or folder is: in the folder that it was named in, and where it is kept if that is a link.
pub fn places(path: &Path) -> Vec<PathBuf> {
    let whole = |path: &Path| path.canonicalize().ok();
    let parent = path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let named = parent.and_then(whole).and_then(|parent| Some(parent.join(path.file_name()?)));
    let mut places: Vec<PathBuf> = named.into_iter().chain(whole(path)).collect();
    places.dedup();
    if places.is_empty() { vec![path.to_path_buf()] } else { places }
}

/// All files below `roots` that are the component `role`, each once, sorted: those in the folders of ComfyUI's layout,
/// and those in the roots themselves.
pub fn candidates(roots: &[PathBuf], role: Role) -> Candidates {
    let (mut own, mut shared, mut whole) = (Files::default(), Files::default(), Files::default());
    for root in roots {
        comfy_folders(role).iter().for_each(|name| own.list(&root.join(name), MOST_LEVELS));
        shared.list(root, 1);
        whole.list(&root.join(WHOLE_MODELS), MOST_LEVELS);
    }
    let mut seen = BTreeSet::new();
    let mut found = Candidates::default();
    for (files, is_whole) in [(own, false), (shared, false), (whole, true)] {
        found.damaged.extend(files.closed);
        for path in files.paths {
            if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                continue;
            }
            match candidate(path, role, is_whole) {
                Ok(candidate) => found.files.extend(candidate),
                Err(error) => found.damaged.push(error),
            }
        }
    }
    found.files.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// The file as a candidate; none where it is something else.
///
/// Errors when it may be the component and cannot be used.
fn candidate(path: PathBuf, role: Role, is_whole: bool) -> Result<Option<Candidate>> {
    let files = vec![open_weights(&path)?];
    inspect::check_forms(&files)?;
    let kind = inspect::kind(&files);
    if kind.part(role).is_none() {
        return Ok(None);
    }
    let names = kind.expect(role).map_err(|e| e.at_path(&path))?.clone();
    let files = TensorFiles::named(files, &names, |key| kind.owns(role, key))?;
    Ok(width(&files, role).map(|width| Candidate { width, path, is_whole }))
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

/// Files of weights, and the errors of folders that may hold some.
#[derive(Default)]
struct Files {
    paths: BTreeSet<PathBuf>,
    closed: Vec<Error>,
}

impl Files {
    /// Adds the files of weights in `folder` and `levels - 1` levels of folders below it.
    fn list(&mut self, folder: &Path, levels: usize) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return self.closed.push(regular::closed_folder(&error, folder));
            }
            Err(_) => return,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if self.paths.len() >= MOST_FILES {
                return;
            }
            if path.is_dir() {
                if levels > 1 {
                    self.list(&path, levels - 1);
                }
            } else if is_weights(&path) {
                self.paths.insert(path);
            }
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
    Ok([cols("context_embedder.weight")?, cols(&format!("{}.weight", files.layers().image_embedder))?])
}

/// The only one of `candidates` for the role.
///
/// Errors when there is none, with the damage of a file that may be it, or when there are several, which are listed.
pub fn only(candidates: Candidates, role: Role, missing: impl FnOnce() -> Error) -> Result<PathBuf> {
    let Candidates { mut files, damaged } = candidates;
    if files.iter().any(|found| !found.is_whole) {
        files.retain(|found| !found.is_whole);
    }
    match &files[..] {
        [] => {
            let more = damaged.len().saturating_sub(1);
            let Some(first) = damaged.into_iter().next() else { return Err(missing()) };
            let more = if more > 0 { format!(" ({more} more cannot either)") } else { String::new() };
            Err(first.prefixed(&match role {
                Role::Transformer => format!("the file of a transformer that is there cannot be used{more}"),
                _ => format!(
                    "this transformer comes without a {}, and the file beside it that may be one cannot be used{more}",
                    role.title()
                ),
            }))
        }
        [only] => Ok(only.path.clone()),
        several => {
            let names = listed(several.iter().map(|found| found.path.display().to_string()));
            let what = format!("there are {} files of a {} that fits: {names}", several.len(), role.title());
            Err(Error::new(what).hint(format!("name one of them with `{:#}`", role.field())))
        }
    }
}

/// The first names of a list, and how many more there are.
pub fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let shown: Vec<String> = names.take(MOST_NAMES).map(|name| format!("`{name}`")).collect();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// What the file `path` is, which is the component `role`.
///
/// Errors with what it is instead.
pub fn expect_role(path: &Path, role: Role) -> Result<FileKind> {
    let files = [open_weights(path)?];
    let kind = inspect::kind(&files);
    inspect::check_forms(&files)?;
    kind.expect(role).map_err(|e| e.at_path(path))?;
    Ok(kind)
}
