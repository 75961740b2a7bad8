//! The Hugging Face cache: `hub/models--owner--name` with the snapshots of a repository, each a folder of links.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::io::near::{MAX_NAMES, listed};
use crate::io::{name_of, regular};
use flux_base::error::{Error, Result};

/// The prefix of a model repository's folder.
const REPOSITORY: &str = "models--";
const SNAPSHOTS: &str = "snapshots";
/// The file that names the latest downloaded snapshot.
const REF: &str = "refs/main";
/// The max size of that file.
const REF_BYTES: usize = 4096;

/// Resolves a path in the cache: the folder of a repository to its snapshot, the cache folder to the snapshot of the
/// only repository that `is_wanted`, any other path to itself.
///
/// Errors if several repositories are wanted (the error lists them), a repository has no snapshot, or several snapshots
/// and no `refs/main`, or `path` is a dangling link.
pub fn resolve(path: &Path, is_wanted: impl Fn(&Path) -> bool) -> Result<Cow<'_, Path>> {
    regular::check_link(path)?;
    if path.join(SNAPSHOTS).is_dir() {
        return snapshot(path).map(Cow::Owned);
    }
    let mut repositories = repositories(path);
    if repositories.is_empty() {
        repositories = self::repositories(&path.join("hub"));
    }
    if repositories.is_empty() {
        return Ok(Cow::Borrowed(path));
    }
    // A repository whose download has just begun has no snapshot.
    let found = repositories.iter().filter_map(|repository| Some((repository, snapshot(repository).ok()?)));
    let mut wanted: Vec<_> = found.filter(|(_, snapshot)| is_wanted(snapshot)).collect();
    match &mut wanted[..] {
        [(_, snapshot)] => Ok(Cow::Owned(std::mem::take(snapshot))),
        [] => Ok(Cow::Borrowed(path)),
        several => {
            let names = listed(several.iter().map(|(repository, _)| name_of(repository)), MAX_NAMES);
            Err(Error::new(format!("the cache contains {} models: {names}", several.len()))
                .at_path(path)
                .hint("name the folder of one of them"))
        }
    }
}

/// Returns the repository folders in a folder, sorted.
fn repositories(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(REPOSITORY));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// Returns the snapshot that `refs/main` names, or the only snapshot.
fn snapshot(repository: &Path) -> Result<PathBuf> {
    let folder = repository.join(SNAPSHOTS);
    let main = regular::read(&repository.join(REF), REF_BYTES).unwrap_or_default();
    let main = String::from_utf8_lossy(&main).trim().to_string();
    let is_name = !main.is_empty() && !main.starts_with('.') && !main.contains(['/', '\\']);
    if is_name && folder.join(&main).is_dir() {
        return Ok(folder.join(main));
    }
    let entries = std::fs::read_dir(&folder).map_err(|error| regular::closed_folder(&error, &folder))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => Err(Error::new("the repository in this cache has no snapshot: its download is incomplete")
            .at_path(repository)
            .hint("run `flux download` to fetch it again")),
        several => {
            let names = listed(several.iter().map(|path| path.display()), MAX_NAMES);
            Err(Error::new(format!("there are {} snapshots, but no `{REF}` that selects one: {names}", several.len()))
                .at_path(repository)
                .hint("name one of them"))
        }
    }
}
