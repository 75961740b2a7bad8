//! The cache of Hugging Face, shared with other tools: `models--owner--name` with `blobs/ETAG`, `refs/REVISION` and
//! `snapshots/COMMIT/FILE`, a link to a blob.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::name::is_plain;
use super::repository::Repository;
use flux_base::error::{Error, Result};
use flux_files::{is_weights, read_text};

/// The branch that is used if no revision is named.
pub const MAIN: &str = "main";
const SNAPSHOTS: &str = "snapshots";
const REFS: &str = "refs";
/// The max bytes of a file in `refs`.
const REF_BYTES: usize = 4096;
/// The max number of entries of a folder that are read.
const MAX_ENTRIES: usize = 10_000;

/// The folder of the cache.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Returns the cache that the environment names, else the cache in the home folder.
    ///
    /// Errors if there is neither.
    pub fn from_environment() -> Result<Self> {
        let value = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let home = env::home_dir().filter(|home| home.is_absolute());
        Self::folder(value, home.as_deref()).map(|root| Self { root }).ok_or_else(|| {
            Error::new("there is no home folder for the model cache")
                .hint("set the environment variable HF_HUB_CACHE to a folder")
        })
    }

    fn folder(value: impl Fn(&str) -> Option<OsString>, home: Option<&Path>) -> Option<PathBuf> {
        hub_home(&value, home, "HF_HUB_CACHE", "hub")
    }

    /// Returns the file with the user's token, by the rules of other tools.
    pub fn token_file() -> Option<PathBuf> {
        let value = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        hub_home(&value, env::home_dir().as_deref(), "HF_TOKEN_PATH", "token")
    }

    /// Returns the folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of a repository, which need not exist. Names on Hugging Face are not case-sensitive, so a
    /// folder whose name differs by case is used if there is no exact match.
    ///
    /// Errors if several folders differ from the name only by case.
    pub fn repository(&self, repository: &Repository) -> Result<CachedRepository> {
        let exact = self.cached(repository);
        if exact.folder.symlink_metadata().is_ok() {
            return Ok(exact);
        }
        let mut others = self.repositories();
        others.retain(|other| other.repository.as_str().eq_ignore_ascii_case(repository.as_str()));
        match &others[..] {
            [] => Ok(exact),
            [only] => Ok(only.clone()),
            [one, other, ..] => {
                let (one, other) = (&one.repository, &other.repository);
                Err(Error::usage(format!(
                    "`{repository}` is ambiguous: the cache has `{one}` and `{other}`, which differ only in case"
                ))
                .hint(format!("write the exact name, such as `{one}`, or remove it with `flux rm {one}`")))
            }
        }
    }

    fn cached(&self, repository: &Repository) -> CachedRepository {
        CachedRepository { repository: repository.clone(), folder: self.root.join(repository.folder()) }
    }

    /// Returns the repositories in the cache, sorted.
    pub fn repositories(&self) -> Vec<CachedRepository> {
        let names = fs::read_dir(&self.root).into_iter().flatten().flatten().take(MAX_ENTRIES);
        let repository = |entry: fs::DirEntry| Repository::from_folder(entry.file_name().to_str()?);
        let mut found: Vec<_> = names.filter_map(repository).collect();
        found.sort();
        found.iter().map(|repository| self.cached(repository)).filter(|cached| cached.folder.is_dir()).collect()
    }

    /// Returns the folder with the locks of a repository.
    pub fn locks(&self, repository: &Repository) -> PathBuf {
        self.root.join(".locks").join(repository.folder())
    }
}

/// Returns the path that the variable `own` names, else `name` in the folder of Hugging Face.
fn hub_home(value: &impl Fn(&str) -> Option<OsString>, home: Option<&Path>, own: &str, name: &str) -> Option<PathBuf> {
    let path = |name: &str| value(name).map(|path| in_home(PathBuf::from(path), home));
    path(own)
        .or_else(|| Some(path("HF_HOME")?.join(name)))
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface").join(name)))
        .or_else(|| Some(home?.join(".cache/huggingface").join(name)))
}

/// Replaces a leading `~` by the home folder, as other tools do.
fn in_home(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// A repository in the cache.
#[derive(Debug, Clone)]
pub struct CachedRepository {
    /// The repository.
    pub repository: Repository,
    folder: PathBuf,
}

/// The files of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// The folder of links.
    pub path: PathBuf,
}

impl Snapshot {
    /// Returns the weight files in the snapshot and its folders, sorted.
    pub fn weights(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.path.clone()];
        let mut found = Vec::new();
        let mut left = MAX_ENTRIES;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(left) {
                left -= 1;
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path);
                } else if is_weights(&path) {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

impl CachedRepository {
    /// Returns the folder of the repository, which need not exist.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the blobs.
    pub fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// Returns the folder of the references.
    pub fn refs(&self) -> PathBuf {
        self.folder.join(REFS)
    }

    /// Returns the folder of the snapshots.
    pub fn snapshots_folder(&self) -> PathBuf {
        self.folder.join(SNAPSHOTS)
    }

    /// Returns the folder of a snapshot.
    pub fn snapshot_folder(&self, commit: &str) -> PathBuf {
        self.snapshots_folder().join(commit)
    }

    /// Returns the snapshots, sorted.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let entries = fs::read_dir(self.snapshots_folder()).into_iter().flatten().flatten().take(MAX_ENTRIES);
        let snapshot = |entry: fs::DirEntry| {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let commit = entry.file_name().into_string().ok()?;
            (is_folder && !commit.starts_with('.')).then(|| Snapshot { commit, path: entry.path() })
        };
        let mut found: Vec<_> = entries.filter_map(snapshot).collect();
        found.sort_by(|a, b| a.commit.cmp(&b.commit));
        found
    }

    /// Returns the commit of a revision: the one that a file in `refs` names, else the revision itself.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        let said = is_plain(revision).then(|| read_text(&self.refs().join(revision), REF_BYTES).ok()).flatten();
        let commit = said.map_or_else(|| revision.to_string(), |text| text.trim().to_string());
        (is_plain(&commit) && !commit.contains('/') && !commit.starts_with('.')).then_some(commit)
    }

    /// Returns the snapshot of a revision; without a revision, the snapshot of the main branch, else the only one.
    pub fn snapshot(&self, revision: Option<&str>) -> Option<Snapshot> {
        let snapshots = self.snapshots();
        let commit = self.commit_of(revision.unwrap_or(MAIN))?;
        let of_commit = |snapshot: &&Snapshot| {
            // A commit may be abbreviated.
            let is_short = revision.is_some() && commit.len() >= 7 && snapshot.commit.starts_with(&commit);
            snapshot.commit == commit || is_short
        };
        let found = snapshots.iter().find(of_commit).cloned();
        match (found, revision, &snapshots[..]) {
            (None, None, [only]) => Some(only.clone()),
            (found, ..) => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_where_the_cache_is() {
        let folder = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            Cache::folder(value, Some(Path::new("/home/me"))).unwrap()
        };
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "~/b"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(folder(&all), Path::new("/a"));
        assert_eq!(folder(&all[1..]), Path::new("/home/me/b/hub"));
        assert_eq!(folder(&all[2..]), Path::new("/c/huggingface/hub"));
        assert_eq!(folder(&[]), Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!(Cache::folder(|_| None, None), None);
    }

    #[test]
    fn a_revision_leads_to_a_snapshot_and_never_out_of_the_cache() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache { root: root.path().to_path_buf() };
        let cached = cache.repository(&Repository::parse("a/b").unwrap()).unwrap();
        let commit = |revision: Option<&str>| cached.snapshot(revision).map(|snapshot| snapshot.commit);
        assert_eq!(commit(None), None);
        for name in ["0123456789", "abcdef0123"] {
            fs::create_dir_all(cached.snapshot_folder(name)).unwrap();
        }
        assert_eq!(commit(None), None, "two commits and no ref");
        fs::create_dir_all(cached.refs().join("refs/pr")).unwrap();
        fs::write(cached.refs().join("main"), "abcdef0123\n").unwrap();
        fs::write(cached.refs().join("refs/pr/1"), "0123456789").unwrap();
        fs::write(cached.refs().join("bad"), "../..").unwrap();
        for (revision, found) in [
            (None, Some("abcdef0123")),
            (Some("main"), Some("abcdef0123")),
            (Some("refs/pr/1"), Some("0123456789")),
            (Some("0123456"), Some("0123456789")),
            (Some("0123"), None),
            (Some("bad"), None),
            (Some("../main"), None),
        ] {
            assert_eq!(commit(revision).as_deref(), found, "{revision:?}");
        }
        assert_eq!(cache.repositories().len(), 1);
    }
}
