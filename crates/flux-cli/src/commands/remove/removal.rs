//! Removal from the cache: links and references of snapshots, and the blobs that no other snapshot uses. Files outside
//! the repository's folder are not touched.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use flux::Result;
use flux::error::Error;
use flux::files::near::ignoring_case;
use flux::files::read_text;
use flux_hub::{Cache, CachedRepository, Named, Snapshot};

/// Maximum size of a reference file, in bytes.
const MAX_REF: usize = 4096;

/// Maximum number of folder entries visited.
const MAX_ENTRIES: usize = 100_000;

/// The files to remove from a repository, in this order.
pub struct Removal {
    repository: PathBuf,
    locks: PathBuf,
    /// Reference files, which contain a commit.
    refs: Vec<PathBuf>,
    /// Links, or files if the file system has no links.
    links: Vec<PathBuf>,
    /// Folders of snapshots.
    snapshots: Vec<PathBuf>,
    /// Blobs, with their sizes in bytes.
    blobs: Vec<(PathBuf, u64)>,
    /// True if nothing of the repository is left.
    is_whole: bool,
}

impl Removal {
    /// Lists the files that belong only to this name, or to one revision of it.
    ///
    /// Errors when the model is not in the cache, its folder is a link, or the named file is a folder.
    pub fn plan(cache: &Cache, named: &Named, revision: Option<&str>) -> Result<Self> {
        let cached = cache.repository(&named.repository)?;
        check_own_folder(&cached)?;
        check_no_link(&cached.snapshots_folder())?;
        if revision.is_some() || named.file.is_some() {
            // When everything is removed, a link is removed itself.
            check_no_link(&cached.blobs())?;
        }
        let all = cached.snapshots();
        let meant: Vec<Snapshot> = match revision {
            None => all.clone(),
            Some(revision) => cached.snapshot(Some(revision)).into_iter().collect(),
        };
        let not_there = |what: String| Error::new(what).at_path(cached.folder()).hint("`flux list` prints the models");
        if meant.is_empty() && (revision.is_some() || named.file.is_some()) {
            return Err(not_there(format!("the cache has no such revision or file of `{named}`")));
        }
        let links_of = |snapshot: &Snapshot| match &named.file {
            Some(file) => file_in(snapshot, file, named).map(|found| found.into_iter().collect()),
            None => Ok(files_below(&snapshot.path)),
        };
        let links: Vec<Vec<PathBuf>> = meant.iter().map(links_of).collect::<Result<_>>()?;
        let links = links.concat();
        if links.is_empty() && named.file.is_some() {
            return Err(not_there(format!("the cache has no file `{named}`")));
        }
        let removed: BTreeSet<&PathBuf> = links.iter().collect();
        let is_whole = named.file.is_none() && meant.len() == all.len();
        let others = all.iter().flat_map(|snapshot| files_below(&snapshot.path));
        let used: BTreeSet<PathBuf> =
            others.filter(|path| !removed.contains(path)).filter_map(|path| blob_of(&cached, &path)).collect();
        let wanted: BTreeSet<PathBuf> = if is_whole {
            files_below(&cached.blobs()).into_iter().collect()
        } else {
            links.iter().filter_map(|path| blob_of(&cached, path)).collect()
        };
        let size = |path: &Path| path.symlink_metadata().map_or(0, |found| found.len());
        let blobs = wanted.difference(&used).map(|path| (path.clone(), size(path))).collect();
        let is_of_meant = |path: &PathBuf| {
            let commit = read_text(path, MAX_REF).unwrap_or_default();
            is_whole || meant.iter().any(|snapshot| snapshot.commit == commit.trim())
        };
        let refs = files_below(&cached.refs()).into_iter().filter(is_of_meant);
        Ok(Self {
            repository: cached.folder().to_path_buf(),
            locks: cache.locks(&cached.repository),
            refs: if named.file.is_some() { Vec::new() } else { refs.collect() },
            links,
            snapshots: if named.file.is_some() { Vec::new() } else { meant.into_iter().map(|it| it.path).collect() },
            blobs,
            is_whole,
        })
    }

    /// Returns the number of bytes that would be freed.
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Removes the files, and returns the number of freed bytes.
    ///
    /// Errors when a download is in progress, or a file cannot be removed.
    pub fn run(&self) -> Result<u64> {
        self.check_unlocked()?;
        for path in self.refs.iter().chain(&self.links) {
            remove(path)?;
        }
        self.snapshots.iter().for_each(|path| remove_empty(path));
        let mut freed = 0;
        for (path, bytes) in &self.blobs {
            remove(path)?;
            freed += bytes;
        }
        if self.is_whole {
            // This includes files of other tools. Links are removed, not followed.
            fs::remove_dir_all(&self.repository).map_err(|e| unremoved(&e, &self.repository))?;
            remove_locks(&self.locks);
        }
        Ok(freed)
    }

    /// Errors when another process holds a lock of the repository.
    fn check_unlocked(&self) -> Result<()> {
        for path in files_below(&self.locks) {
            use rustix::fs::{FlockOperation, flock};
            let Ok(file) = fs::File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK) {
                return Err(Error::new("a download of this model is running")
                    .at_path(&path)
                    .hint("stop it first, or wait for it"));
            }
        }
        Ok(())
    }
}

/// Errors when the repository is not in the cache, or its folder is a link.
fn check_own_folder(cached: &CachedRepository) -> Result<()> {
    let folder = cached.folder();
    match folder.symlink_metadata() {
        Ok(_) => check_no_link(folder),
        Err(_) => Err(Error::new(format!("the cache has no `{}`", cached.repository))
            .at_path(folder)
            .hint("`flux list` prints the models; remove models in other folders by hand")),
    }
}

/// Errors when a folder is a link or not a folder. A missing folder is fine.
fn check_no_link(folder: &Path) -> Result<()> {
    match folder.symlink_metadata() {
        Ok(found) if !found.is_dir() => {
            let what = if found.is_symlink() { "this is a link, not a part of the cache" } else { "not a folder" };
            Err(Error::new(what).at_path(folder).hint("remove it or its target by hand"))
        }
        _ => Ok(()),
    }
}

/// Returns the path of a file in a snapshot, if the file exists.
///
/// Errors when it is a folder, or a parent folder is a link.
fn file_in(snapshot: &Snapshot, file: &str, named: &Named) -> Result<Option<PathBuf>> {
    let path = ignoring_case(&snapshot.path, file)?.unwrap_or_else(|| snapshot.path.join(file));
    let below = |folder: &&Path| folder.starts_with(&snapshot.path);
    path.ancestors().skip(1).take_while(below).try_for_each(check_no_link)?;
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => Err(Error::usage(format!("`{named}` is a folder, expected a file"))
            .at_path(&path)
            .hint(format!("name a file in it, or `{}` for the whole model", named.without_file()))),
        found => Ok(found.is_ok().then_some(path)),
    }
}

/// Returns the blob that a snapshot's link points to. `None` if it is outside the repository's blobs.
fn blob_of(cached: &CachedRepository, link: &Path) -> Option<PathBuf> {
    let name = link.read_link().ok()?.file_name()?.to_os_string();
    let blob = cached.blobs().join(name);
    let is_own = blob.symlink_metadata().is_ok_and(|found| found.is_file());
    (is_own && link.canonicalize().ok()? == blob.canonicalize().ok()?).then_some(blob)
}

/// Returns all non-folders below a folder, without following links.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = match folder.symlink_metadata() {
        Ok(kind) if kind.is_dir() => vec![folder.to_path_buf()],
        _ => Vec::new(),
    };
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten().take(MAX_ENTRIES) {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unremoved(&error, path)),
        _ => Ok(()),
    }
}

fn unremoved(error: &io::Error, path: &Path) -> Error {
    let hint = "give this user write permission for its folder";
    Error::new(format!("cannot remove it: {error}")).at_path(path).hint(hint)
}

/// Removes a folder and its subfolders as far as they are empty.
fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Removes lock files that no process holds.
fn remove_locks(folder: &Path) {
    if folder.parent().is_some_and(Path::is_symlink) {
        return; // a linked folder is outside the cache
    }
    files_below(folder).iter().filter(|path| path.extension().is_some_and(|end| end == "lock")).for_each(|path| {
        let _ = fs::remove_file(path);
    });
    let _ = fs::remove_dir(folder);
}
