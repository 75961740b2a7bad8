//! From the name that a user passes to a path.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::cache::Cache;
use super::name::Named;
use flux_base::error::{Error, Result, shell};
use flux_files::near;

/// The variable that names folders with models.
const FOLDERS: &str = "FLUX_MODELS";
/// The folder that is searched as well.
const OWN: &str = "models";

/// The kind of thing that a name must lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A model, or a part of one: a folder or a file.
    Model,
    /// The file of an adapter.
    Adapter,
}

/// The result of looking up a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A path. It need not exist if it does not have the form of a name.
    Path(PathBuf),
    /// A name of something that is not in the cache.
    Missing(Named),
}

/// The folders that [`look_in`] has set.
static OTHERS: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Sets the folders to search for models, in place of the folders that the environment names. Only the first call
/// counts.
pub fn look_in(folders: Vec<PathBuf>) {
    let _ = OTHERS.set(folders);
}

/// Returns the folders to search for models, besides the cache.
pub fn folders() -> Vec<PathBuf> {
    let of_environment = || {
        let named = env::var_os(FOLDERS).unwrap_or_default();
        env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect()
    };
    let others = OTHERS.get().cloned().unwrap_or_else(of_environment);
    [PathBuf::from(OWN)].into_iter().chain(others).collect()
}

/// Looks up `path`. An existing path takes precedence over a name, and so does a path in an existing folder.
///
/// Errors if a name leads to several files and one of them must be named.
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
    let found = match in_cache(&named, wanted)? {
        Some(path) => Some(path),
        None => in_folders(&named)?,
    };
    match found {
        Some(path) => Ok(Found::Path(path)),
        // A path with a typo: opening it reports the error, with similar paths.
        None if named.published.is_none() && !near::near(path).is_empty() => as_path(),
        None => Ok(Found::Missing(named)),
    }
}

/// Returns the path that `path` leads to.
///
/// Errors as [`find`], and if a name leads to something that is not in the cache.
pub fn resolve(path: &Path, wanted: Wanted) -> Result<PathBuf> {
    match find(path, wanted)? {
        Found::Path(path) => Ok(path),
        Found::Missing(named) => Err(named.missing()),
    }
}

impl Named {
    /// Returns the error for a name that is not in the cache, with the command that downloads it.
    pub fn missing(&self) -> Error {
        let command = format!("flux download {}", shell::word(&self.to_string()));
        let hint = match self.published {
            Some(model) => {
                let (size, licence) = (model.bytes / 1_000_000_000, model.licence());
                format!("download it with `{command}`: {size} GB, licence {licence}")
            }
            None => format!("download it with `{command}`, if Hugging Face has a repository of this name"),
        };
        Error::new(format!("no file or folder `{self}`, and no model of this name in the Hugging Face cache"))
            .hint(hint)
    }
}

fn in_cache(named: &Named, wanted: Wanted) -> Result<Option<PathBuf>> {
    let Ok(cache) = Cache::from_environment() else { return Ok(None) };
    let Some(snapshot) = cache.repository(&named.repository)?.snapshot(None) else { return Ok(None) };
    if let Some(file) = &named.file {
        return Ok(near::ignoring_case(&snapshot.path, file)?.filter(|path| path.exists()));
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
            Err(Error::usage(format!("`{named}` has {} weight files: {}", several.len(), names.join(", ")))
                .hint(format!("name one of them, as in `{named}:{first}`")))
        }
    }
}

/// Returns the model of a short name in its own folder, as in `models/klein-4b`.
fn in_folders(named: &Named) -> Result<Option<PathBuf>> {
    let Some(published) = named.published else { return Ok(None) };
    for folder in folders() {
        let Some(found) = near::ignoring_case(&folder, published.folder)?.filter(|path| path.is_dir()) else {
            continue;
        };
        return match &named.file {
            Some(file) => Ok(near::ignoring_case(&found, file)?.filter(|path| path.exists())),
            None => Ok(Some(found)),
        };
    }
    Ok(None)
}
