//! The search for models in the cache and in folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use flux::files::own_models::OWN_MODELS;
use flux::files::{is_weights, read_text};
use flux_hub::{Cache, CachedRepository, Licence, Published, Repository};

use super::found::{Entry, licence_in};

/// Maximum depth of the search, and maximum number of entries visited.
const DEPTH: usize = 3;
const MAX_ENTRIES: usize = 20_000;
const INDEXES: [&str; 2] = ["model_index.json", "modular_model_index.json"];
const INDEX_BYTES: usize = 1 << 20;

/// The state of a search.
struct Search<'a> {
    /// Returns the name of the entry at a path.
    name: &'a dyn Fn(&Path) -> String,
    /// The licence of all entries, if known.
    licence: Option<Licence>,
    left: usize,
    entries: Vec<Entry>,
}

/// Returns the entries of a repository in the cache.
pub fn in_cache(cache: &Cache, cached: &CachedRepository) -> Vec<Entry> {
    let published = Published::for_repository(&cached.repository);
    // The short name belongs to the folder with the exact spelling, not to one that differs only in case.
    let is_meant = |published: &&Published| {
        let repository = Repository::parse(published.repository);
        let meant = repository.and_then(|repository| cache.repository(&repository).ok());
        meant.is_some_and(|meant| meant.folder() == cached.folder())
    };
    let short =
        published.filter(is_meant).map_or(cached.repository.to_string(), |published| published.name.to_string());
    let known = published.map(Published::licence);
    let snapshots = cached.snapshots();
    if snapshots.is_empty() {
        let blobs = fs::read_dir(cached.blobs()).into_iter().flatten().flatten();
        let is_begun = blobs.take(MAX_ENTRIES).next().is_some();
        return is_begun.then(|| Entry::unfinished(short, cached.folder(), known)).into_iter().collect();
    }
    let current = cached.snapshot(None);
    let mut entries = Vec::new();
    for snapshot in &snapshots {
        let licence = known.clone().or_else(|| licence_in(&snapshot.path));
        let is_current = current.as_ref() == Some(snapshot);
        // Other snapshots can only be named by path.
        let name = |path: &Path| match path.strip_prefix(&snapshot.path) {
            Ok(file) if is_current && file == Path::new("") => short.clone(),
            Ok(file) if is_current => format!("{short}:{}", file.display()),
            _ => path.display().to_string(),
        };
        let mut search = Search { name: &name, licence, left: MAX_ENTRIES, entries: Vec::new() };
        search.folder(&snapshot.path, DEPTH);
        entries.extend(search.entries);
    }
    entries
}

/// Returns the entries of a folder.
pub fn in_folder(folder: &Path) -> Vec<Entry> {
    let name = |path: &Path| path.display().to_string();
    let mut search = Search { name: &name, licence: None, left: MAX_ENTRIES, entries: Vec::new() };
    search.folder(folder, DEPTH);
    search.entries
}

impl Search<'_> {
    fn folder(&mut self, path: &Path, depth: usize) {
        let index = INDEXES.map(|name| path.join(name)).into_iter().find(|index| index.symlink_metadata().is_ok());
        if let Some(index) = index {
            if is_own_or_unread(&index) {
                let licence = self.licence.clone().or_else(|| licence_in(path));
                self.entries.push(Entry::for_model((self.name)(path), path, licence));
            }
            return;
        }
        let (mut folders, mut groups) = (Vec::new(), BTreeMap::<PathBuf, Vec<PathBuf>>::new());
        for entry in fs::read_dir(path).into_iter().flatten().flatten().take(self.left) {
            self.left -= 1;
            let found = entry.path();
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if is_hidden {
                continue;
            }
            if found.is_dir() {
                folders.push(found);
            } else if is_weights(&found) {
                groups.entry(without_number(&found)).or_default().push(found);
            }
        }
        for files in groups.values_mut() {
            files.sort();
            // Shards are named by their folder.
            let place = if let [only] = &files[..] { only.clone() } else { path.to_path_buf() };
            let licence = self.licence.clone().or_else(|| licence_in(path));
            self.entries.extend(Entry::for_files((self.name)(&place), files, &place, licence));
        }
        folders.sort();
        if depth > 1 {
            folders.iter().for_each(|folder| self.folder(folder, depth - 1));
        }
    }
}

/// Returns `true` if a `model_index.json` is of a supported model, or cannot be read.
fn is_own_or_unread(index: &Path) -> bool {
    let Ok(text) = read_text(index, INDEX_BYTES) else { return true };
    let Ok(index) = serde_json::from_str::<serde_json::Value>(&text) else { return true };
    let class = index.get("_class_name").and_then(|class| class.as_str());
    class.is_none_or(|class| OWN_MODELS.iter().any(|model| class.starts_with(model.class_front)))
}

/// Returns the path of a shard without its number.
fn without_number(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.rsplit_once("-of-").and_then(|(front, behind)| {
        let (count, ending) = behind.split_once('.')?;
        let (stem, number) = front.rsplit_once('-')?;
        (is_number(number) && is_number(count)).then(|| format!("{stem}-{count}.{ending}"))
    });
    path.with_file_name(parts.unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_one() {
        let of = |name: &str| without_number(Path::new(name)).display().to_string();
        assert_eq!(of("a/model-00001-of-00002.safetensors"), "a/model-00002.safetensors");
        assert_eq!(of("a/model-00002-of-00002.safetensors"), "a/model-00002.safetensors");
        for name in ["a/b.safetensors", "out-of-time.gguf", "a-1-of-2.gguf"] {
            assert_eq!(of(name), name);
        }
    }
}
