//! Models and adapters by name: what is in the cache, and what the user agrees to fetch.

use std::path::{Path, PathBuf};

use flux::Result;
use flux::engine::{AdapterFile, Recipe};
use flux::hub::{Found, Wanted, find, resolve};

use super::download::ask_and_fetch;
use crate::cli::in_folders;

/// What `path` leads to, be it a path or a name.
///
/// Errors when it is the name of a model that is not in the cache, and is not fetched now.
pub fn model(path: &Path) -> Result<PathBuf> {
    available(path, Wanted::Model)
}

/// The file of an adapter, be it named by its path or by its name.
///
/// Errors as [`model`].
pub fn adapter(path: &Path) -> Result<PathBuf> {
    available(&in_folders(path), Wanted::Adapter).map_err(|e| e.at("--lora"))
}

/// The same, where nothing is fetched.
///
/// Errors when there is none.
pub fn adapter_at(path: &Path) -> Result<PathBuf> {
    resolve(&in_folders(path), Wanted::Adapter)
}

/// A recipe with the files of its adapters in place of their names.
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
