//! Input files of images, recognized by their stamps or else by their digests.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flux::engine::Recipe;
use flux::files::{adapter, digest};
use serde::{Deserialize, Serialize};

use crate::commands::names;

/// An input file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    pub digest: String,
    #[serde(flatten)]
    pub stamp: Stamp,
}

/// The stamps of an image's input files, by their names in the recipe.
pub type Stamps = BTreeMap<String, Stamp>;

/// The size and change times of a file, to recognize the file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    bytes: u64,
    modified_ns: u64,
    /// The time of the last status change, which programs cannot set to an earlier value.
    #[serde(default)]
    changed_ns: u64,
}

impl InputFile {
    /// Returns `true` if the file that a recipe calls `name` is still this file.
    pub fn is_at(&self, name: &str) -> bool {
        let Some(files) = files_of(name) else { return false };
        Stamp::new(&files) == Some(self.stamp) || digest::hash_paths(&files).is_ok_and(|now| now == self.digest)
    }
}

impl Stamp {
    /// Returns the current stamp of the file that a recipe calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::new(&files_of(name)?)
    }

    /// Returns the combined stamp of files that belong together.
    pub fn new(files: &[PathBuf]) -> Option<Self> {
        let mut stamp = Self { bytes: 0, modified_ns: 0, changed_ns: 0 };
        for file in files {
            let found = file.metadata().ok()?;
            let time = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            stamp.bytes += found.len();
            stamp.modified_ns = stamp.modified_ns.max(since.as_nanos() as u64);
            let changed = found.ctime().saturating_mul(1_000_000_000).saturating_add(found.ctime_nsec());
            stamp.changed_ns = stamp.changed_ns.max(changed.max(0) as u64);
        }
        Some(stamp)
    }
}

/// Returns `true` if all these files are in the recipe and unchanged. Files of the recipe that are not passed are not
/// checked.
pub fn are_at<'a>(recipe: &Recipe, mut digests: impl Iterator<Item = (&'a str, Digested<'a>)>) -> bool {
    let is_named = |name: &str| {
        let adapters = recipe.adapters.iter().map(|used| used.file.as_path());
        let files = recipe.files().map(|(_, file)| file).chain(adapters).chain(recipe.upscaler());
        files.into_iter().any(|file| file.to_string_lossy() == name)
    };
    digests.all(|(name, file)| {
        is_named(name)
            && match file {
                Digested::Recorded(file) => file.is_at(name),
                Digested::Carried(digest) => {
                    files_of(name).is_some_and(|files| digest::hash_paths(&files).is_ok_and(|now| now == digest))
                }
            }
    })
}

/// The digest of an input file.
pub enum Digested<'a> {
    /// A digest recorded in the manifest.
    Recorded(&'a InputFile),
    /// A digest stored in the image.
    Carried(&'a str),
}

/// Returns the files that a recipe's file name stands for. An adapter can be a name or a folder, and includes its
/// config.
fn files_of(name: &str) -> Option<Vec<PathBuf>> {
    let path = Path::new(name);
    let path = if path.exists() { path.to_path_buf() } else { names::adapter_at(path).ok()? };
    let may_be_adapter = path.is_dir() || path.extension().is_some_and(|ending| ending != "png");
    let files = may_be_adapter.then(|| adapter::files_of(&path)).flatten();
    files.or_else(|| path.is_file().then(|| vec![path]))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_file_of_the_same_length_and_time_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input.png");
        fs::write(&path, "one").unwrap();
        let stamp = || Stamp::new(std::slice::from_ref(&path)).unwrap();
        let (before, time) = (stamp(), path.metadata().unwrap().modified().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20)); // file timestamps are coarser than the clock
        fs::write(&path, "two").unwrap();
        File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
        let after = stamp();
        assert_eq!((after.bytes, after.modified_ns), (before.bytes, before.modified_ns));
        assert_ne!(after, before);
    }

    #[test]
    fn files_that_the_recipe_does_not_name_are_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input.png");
        fs::write(&path, "one").unwrap();
        let (name, digest) = (path.display().to_string(), digest::hash_bytes(b"one"));
        let with = Recipe { inputs: vec![path.clone()], ..Recipe::default() };
        let are_at = |recipe| are_at(recipe, [(name.as_str(), Digested::Carried(&digest))].into_iter());
        assert!(are_at(&with) && !are_at(&Recipe::default()));
    }
}
