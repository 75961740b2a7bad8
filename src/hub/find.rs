//! From what a user names to what is there.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::cache::Cache;
use super::name::Named;
use crate::error::{Error, Result, shell_word};
use crate::files::near;

/// The variable that names folders with models.
const FOLDERS: &str = "FLUX_MODELS";
/// The folder that is looked in besides.
const OWN: &str = "models";

/// What a name is to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A model, or a part of one: a folder or a file.
    Model,
    /// The file of an adapter.
    Adapter,
}

/// What a user named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A path, which need not be there if it has not the form of a name.
    Path(PathBuf),
    /// A name of something that is not in the cache.
    Missing(Named),
}

/// The folders that the program was told to look in.
static OTHERS: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Has models be looked for in these folders, in place of those that the environment names. The first call counts.
pub fn look_in(folders: Vec<PathBuf>) {
    let _ = OTHERS.set(folders);
}

/// The folders in which models are looked for, besides the cache.
pub fn folders() -> Vec<PathBuf> {
    let of_environment = || {
        let named = env::var_os(FOLDERS).unwrap_or_default();
        env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect()
    };
    let others = OTHERS.get().cloned().unwrap_or_else(of_environment);
    [PathBuf::from(OWN)].into_iter().chain(others).collect()
}

/// What `path` leads to. A path that is there wins over a name, and so does one in a folder that is there.
///
/// Errors when a name leads to several files of which one must be named.
pub fn find(path: &Path, wanted: Wanted) -> Result<Found> {
    let as_path = || Ok(Found::Path(path.to_path_buf()));
    if path.symlink_metadata().is_ok() {
        return as_path();
    }
    let Some(text) = path.to_str() else { return as_path() };
    let Some(named) = Named::parse(text) else { return as_path() };
    let folder = text.split_once('/').map(|(folder, _)| Path::new(folder));
    if named.published.is_none() && folder.is_some_and(Path::is_dir) {
        return as_path();
    }
    match in_cache(&named, wanted)?.or_else(|| in_folders(&named)) {
        Some(path) => Ok(Found::Path(path)),
        // A path with a wrong letter: who opens it tells what is near.
        None if named.published.is_none() && !near::near(path).is_empty() => as_path(),
        None => Ok(Found::Missing(named)),
    }
}

/// What `path` leads to.
///
/// Errors as [`find`], and when a name is of something that is not in the cache.
pub fn resolve(path: &Path, wanted: Wanted) -> Result<PathBuf> {
    match find(path, wanted)? {
        Found::Path(path) => Ok(path),
        Found::Missing(named) => Err(named.missing()),
    }
}

impl Named {
    /// The error where it is not in the cache: it says how to fetch it.
    pub fn missing(&self) -> Error {
        let command = format!("flux download {}", shell_word(Path::new(&self.to_string())));
        let hint = match self.published {
            Some(model) => {
                let (size, licence) = (model.bytes / 1_000_000_000, model.licence());
                format!("`{command}` fetches it: {size} GB, licence {licence}")
            }
            None => format!("`{command}` fetches it, if Hugging Face has a repository of this name"),
        };
        Error::new(format!("no file or folder `{self}`, nor a model of this name in the cache of Hugging Face"))
            .hint(hint)
    }
}

fn in_cache(named: &Named, wanted: Wanted) -> Result<Option<PathBuf>> {
    let Ok(cache) = Cache::of_environment() else { return Ok(None) };
    let Some(snapshot) = cache.repository(&named.repository).snapshot(None) else { return Ok(None) };
    if let Some(file) = &named.file {
        return Ok(Some(snapshot.path.join(file)).filter(|path| path.exists()));
    }
    if wanted == Wanted::Model {
        return Ok(Some(snapshot.path));
    }
    let mut files = snapshot.weights();
    match &mut files[..] {
        [] => Ok(None),
        [only] => Ok(Some(std::mem::take(only))),
        several => {
            let name = |path: &PathBuf| path.strip_prefix(&snapshot.path).unwrap_or(path).display().to_string();
            let names: Vec<String> = several.iter().take(10).map(name).collect();
            let first = names.first().cloned().unwrap_or_default();
            Err(Error::usage(format!("`{named}` has {} files of weights: {}", several.len(), names.join(", ")))
                .hint(format!("name one of them, as in `{named}:{first}`")))
        }
    }
}

/// A model of a short name in a folder of its own, as in `models/klein-4b`.
fn in_folders(named: &Named) -> Option<PathBuf> {
    let published = named.published?;
    let found = folders().into_iter().map(|folder| folder.join(published.folder)).find(|path| path.is_dir())?;
    match &named.file {
        Some(file) => Some(found.join(file)).filter(|path| path.exists()),
        None => Some(found),
    }
}
