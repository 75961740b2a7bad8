//! Search for the parts of a model in folders, by the headers of the files there.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::catalog::recognise::FileKind;
use crate::catalog::role::Role;
use crate::containers::container::is_weights;
use crate::containers::inspect;
use crate::containers::tensor_files::TensorFiles;
use crate::io::near::{self, MAX_NAMES, listed};
use crate::io::regular;
use crate::models::component::{Component, open_weights};
use flux_base::error::{Error, Result};

/// The max depth of the search in ComfyUI's folders, and the max number of files.
const MAX_LEVELS: usize = 4;
const MAX_FILES: usize = 2000;
/// The folder of ComfyUI's `models` for models in one file.
const WHOLE_MODELS: &str = "checkpoints";

/// Returns the folders of ComfyUI's `models` that hold a component.
fn comfy_folders(role: Role) -> &'static [&'static str] {
    match role {
        Role::TextEncoder => &["text_encoders", "clip"],
        Role::Transformer => &["diffusion_models", "unet"],
        Role::Vae => &["vae"],
    }
}

/// A file that holds the component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The path of the file.
    pub path: PathBuf,
    /// The width that must fit the transformer: features of a token for a text encoder, packed channels for a VAE.
    pub width: usize,
    /// `true` if it is in the folder of whole models, whose files only count if there are no others.
    is_whole: bool,
}

/// The result of the search for a component.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Files that hold the component.
    pub files: Vec<Candidate>,
    /// Errors of files that may hold the component but cannot be read. Files in the component's folders come first.
    pub damaged: Vec<Error>,
}

/// Returns `true` if a folder has the layout of ComfyUI's `models` folder.
pub fn is_comfy(folder: &Path) -> bool {
    comfy_folders(Role::Transformer).iter().chain([&WHOLE_MODELS]).any(|name| folder.join(name).is_dir())
}

/// Returns the folders to search for the other parts of a model whose transformer is `file`: its own folder, and the
/// folder above in ComfyUI's layout. If `file` is a link, the folders of the link come before those of its target.
pub fn around(file: &Path) -> Vec<PathBuf> {
    let has_parts = |folder: &&Path| {
        [Role::TextEncoder, Role::Vae]
            .iter()
            .any(|role| comfy_folders(*role).iter().any(|name| folder.join(name).is_dir()))
    };
    let mut roots: Vec<PathBuf> = Vec::new();
    for file in places(file) {
        let above = || file.ancestors().skip(1).take(MAX_LEVELS);
        roots.extend(above().take(1).chain(above().find(has_parts)).map(Path::to_path_buf));
    }
    let mut seen = BTreeSet::new();
    roots.retain(|root| seen.insert(root.clone()));
    roots
}

/// Returns the places of a file or folder: in the folder that it was named in, and at the target if it is a link.
pub fn places(path: &Path) -> Vec<PathBuf> {
    let whole = |path: &Path| path.canonicalize().ok();
    let parent = path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let named = parent.and_then(whole).and_then(|parent| Some(parent.join(path.file_name()?)));
    let mut places: Vec<PathBuf> = named.into_iter().chain(whole(path)).collect();
    places.dedup();
    if places.is_empty() { vec![path.to_path_buf()] } else { places }
}

/// Returns all files below `roots` that hold the component `role`, sorted and without duplicates: files in the folders
/// of ComfyUI's layout, and in the roots themselves.
pub fn candidates(roots: &[PathBuf], role: Role) -> Candidates {
    let (mut own, mut shared, mut whole) = (Files::default(), Files::default(), Files::default());
    for root in roots {
        comfy_folders(role).iter().for_each(|name| own.list(&root.join(name), MAX_LEVELS));
        shared.list(root, 1);
        whole.list(&root.join(WHOLE_MODELS), MAX_LEVELS);
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

/// Returns the file as a candidate; `None` if it is something else.
///
/// Errors if it may be the component but cannot be used.
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

/// Returns the features that must fit the other components; for a transformer, the features of a text token.
fn width(files: &TensorFiles, role: Role) -> Option<usize> {
    let name = match role {
        Role::TextEncoder => "model.embed_tokens.weight",
        Role::Transformer => "context_embedder.weight",
        Role::Vae => return files.shape("decoder.conv_in.weight")?.get(1)?.checked_mul(4),
    };
    files.shape(name)?.get(1).copied()
}

/// Weight files, and the errors of folders that may contain some.
#[derive(Default)]
struct Files {
    paths: BTreeSet<PathBuf>,
    closed: Vec<Error>,
}

impl Files {
    /// Adds the weight files in `folder` and in `levels - 1` levels of folders below it.
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
            if self.paths.len() >= MAX_FILES {
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

/// Returns the sizes that a transformer needs from the other parts: [features of its text, channels of its latents].
///
/// Errors if it cannot be opened, or lacks the layers that have these sizes.
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
        cols.ok_or_else(|| transformer.place().wrong(format!("tensor `{name}` is missing, or is not a matrix")))
    };
    Ok([cols("context_embedder.weight")?, cols(&format!("{}.weight", files.layers().image_embedder))?])
}

/// Returns the only candidate for the role.
///
/// Errors if there is none, with the error of a damaged file if there is one, or if there are several (the error lists
/// them).
pub fn only(candidates: Candidates, role: Role, missing: impl FnOnce() -> Error) -> Result<PathBuf> {
    let Candidates { mut files, damaged } = candidates;
    if files.iter().any(|found| !found.is_whole) {
        files.retain(|found| !found.is_whole);
    }
    match &files[..] {
        [] => {
            let more = damaged.len().saturating_sub(1);
            let Some(first) = damaged.into_iter().next() else { return Err(missing()) };
            let more = if more > 0 { format!(" ({more} more cannot be used either)") } else { String::new() };
            Err(first.prefixed(&match role {
                Role::Transformer => format!("the transformer file found there cannot be used{more}"),
                _ => format!(
                    "this transformer comes without a {}, and the candidate next to it cannot be used{more}",
                    role.title()
                ),
            }))
        }
        [only] => Ok(only.path.clone()),
        several => {
            let names = listed(several.iter().map(|found| found.path.display()), MAX_NAMES);
            let what = format!("there are {} matching files for the {}: {names}", several.len(), role.title());
            Err(Error::new(what).hint(format!("pass one of them with `{:#}`", role.field())))
        }
    }
}

/// Returns `true` if there is a folder at `path`, and `false` if there is anything else.
///
/// Errors if there is nothing, with similar paths or else `otherwise` as the hint.
pub fn is_folder(path: &Path, otherwise: impl FnOnce() -> String) -> Result<bool> {
    match path.metadata() {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(near::no_such(path, otherwise())),
        Err(error) => Err(regular::closed_folder(&error, path)),
    }
}

/// Returns the kind of the file `path`, which must be the component `role`.
///
/// Errors with the kind of the file if it is not.
pub fn expect_role(path: &Path, role: Role) -> Result<FileKind> {
    let files = [open_weights(path)?];
    let kind = inspect::kind(&files);
    inspect::check_forms(&files)?;
    kind.expect(role).map_err(|e| e.at_path(path))?;
    Ok(kind)
}
