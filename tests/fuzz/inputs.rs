//! Allowed changes of a run: none to its inputs, none after an error, and no file written twice.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flux::input::read;
use safetensors::SafeTensors;

use super::expect::{Content, Expected};

/// Maximum size of files whose bytes are compared. Longer files are sparse; their times are compared.
const MAX_BYTES: u64 = 32 << 20;

/// The content of a folder.
pub struct Snapshot(BTreeMap<PathBuf, Entry>);

#[derive(PartialEq, Eq)]
enum Entry {
    File { digest: u64, length: u64 },
    Link(PathBuf),
    Other,
}

impl Snapshot {
    /// Reads a folder, without following links.
    pub fn read(folder: &Path) -> Self {
        let mut entries = BTreeMap::new();
        add(folder, &mut entries);
        Self(entries)
    }

    /// Returns the changes that are not allowed. New files are in `out`, and there are none after an error.
    pub fn findings(&self, after: &Self, out: &Path, expected: &Expected, succeeded: bool) -> Vec<String> {
        let mut findings = Vec::new();
        let may_change = |path: &Path| expected.may_change.iter().any(|allowed| path.starts_with(allowed));
        for (path, entry) in &self.0 {
            match after.0.get(path) {
                Some(now) if now == entry => {}
                _ if may_change(path) && succeeded => {}
                Some(_) => findings.push(format!("{path:?}, which was there, is changed")),
                None => findings.push(format!("{path:?}, which was there, is gone")),
            }
        }
        for path in after.0.keys().filter(|path| !self.0.contains_key(*path)) {
            let is_expected = expected.writes.iter().any(|(written, _)| written == path) || may_change(path);
            if !succeeded && !may_change(path) {
                findings.push(format!("a run that failed left {path:?}"));
            } else if path.extension().is_some_and(|extension| extension == "part") {
                findings.push(format!("{path:?} was left"));
            } else if !is_expected && !path.starts_with(out) {
                findings.push(format!("{path:?} was written"));
            } else if !may_change(path)
                && path.extension().is_some_and(|extension| extension == "png")
                && let Err(error) = read(path)
            {
                findings.push(format!("{path:?} is no image: {error}"));
            }
        }
        if succeeded {
            findings.extend(written(&expected.writes));
        }
        findings
    }
}

/// Returns the faults in the files that a run had to write.
fn written(files: &[(PathBuf, Content)]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut known = BTreeMap::new();
    for (path, content) in files {
        let Ok(found) = path.metadata() else {
            findings.push(format!("{path:?} was not written"));
            continue;
        };
        if let Some(other) = known.insert((found.dev(), found.ino()), path) {
            findings.push(format!("{path:?} and {other:?} are one file"));
        }
        let is_right = match content {
            Content::Image => read(path).is_ok(),
            Content::Tensors => fs::read(path).is_ok_and(|bytes| {
                bytes.starts_with(b"GGUF") || SafeTensors::deserialize(&bytes).is_ok_and(|file| !file.is_empty())
            }),
        };
        if !is_right {
            findings.push(format!("{path:?} is not what was to be written to it"));
        }
    }
    findings
}

fn add(folder: &Path, entries: &mut BTreeMap<PathBuf, Entry>) {
    // Some cases make a folder unreadable.
    let Ok(found) = fs::read_dir(folder) else { return };
    for path in found.flatten().map(|entry| entry.path()) {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let entry = if metadata.is_dir() {
            add(&path, entries);
            continue;
        } else if metadata.is_symlink() {
            Entry::Link(fs::read_link(&path).unwrap_or_default())
        } else if metadata.is_file() {
            Entry::File { digest: digest(&path, &metadata), length: metadata.len() }
        } else {
            Entry::Other
        };
        entries.insert(path, entry);
    }
}

fn digest(path: &Path, metadata: &fs::Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    let bytes = (metadata.len() <= MAX_BYTES).then(|| fs::read(path).ok()).flatten();
    match bytes {
        Some(bytes) => hasher.write(&bytes),
        None => hasher.write_i64(metadata.mtime_nsec() ^ metadata.mtime()),
    }
    hasher.finish()
}

/// Sizes and times of the shared files: they show a run that writes to one of them.
#[derive(PartialEq, Eq)]
pub struct Shared(Vec<(PathBuf, u64, i64, i64)>);

impl Shared {
    pub fn new(files: &[PathBuf]) -> Self {
        let facts = |path: &PathBuf| {
            let found = path.metadata().ok()?;
            Some((path.clone(), found.len(), found.ctime(), found.ctime_nsec()))
        };
        Self(files.iter().filter_map(facts).collect())
    }

    /// Returns the files that have changed since.
    pub fn changed(&self, now: &Self) -> Vec<PathBuf> {
        self.0.iter().filter(|entry| !now.0.contains(entry)).map(|(path, ..)| path.clone()).collect()
    }
}
