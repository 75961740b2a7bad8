//! Models and adapters by name, from the cache or downloaded after a question.

use std::path::{Path, PathBuf};

use flux::engine::{AdapterFile, Recipe};
use flux::{Error, Result};
use flux_hub::{Found, Wanted, find, resolve};

use super::download::ask_and_fetch;
use crate::cli::in_folders;

/// Resolves a path or the name of a model.
///
/// Errors when the named model is not in the cache and is not downloaded now.
pub fn model(path: &Path) -> Result<PathBuf> {
    available(path, Wanted::Model)
}

/// Resolves the path or name of an adapter to its file.
///
/// Errors as [`model`].
pub fn adapter(path: &Path) -> Result<PathBuf> {
    available(&in_folders(path), Wanted::Adapter).map_err(|e| e.at("--lora"))
}

/// Resolves the path or name of an adapter, and errors if there is no such file.
///
/// Errors as [`model`].
pub fn existing_adapter(path: &Path) -> Result<PathBuf> {
    match adapter(path)? {
        file if file.exists() => Ok(file),
        _ => Err(Error::new("the adapter does not exist").at_path(path)),
    }
}

/// [`adapter`] without a download.
///
/// Errors when the adapter does not exist.
pub fn adapter_at(path: &Path) -> Result<PathBuf> {
    resolve(&in_folders(path), Wanted::Adapter)
}

/// Returns a recipe with its adapters' names resolved to files.
///
/// Errors as [`adapter`].
pub fn with_adapters(recipe: &Recipe) -> Result<Recipe> {
    let found = |used: &AdapterFile| Ok(AdapterFile { file: adapter(&used.file)?, ..used.clone() });
    Ok(Recipe { adapters: recipe.adapters.iter().map(found).collect::<Result<_>>()?, ..recipe.clone() })
}

fn available(path: &Path, wanted: Wanted) -> Result<PathBuf> {
    match find(path, wanted)? {
        Found::Path(path) => Ok(path),
        Found::Missing(named) => {
            ask_and_fetch(&named)?;
            resolve(path, wanted)
        }
    }
}
