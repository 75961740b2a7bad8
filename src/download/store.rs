//! Where files are put: the cache that other tools share, or a plain folder.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use flux::Result;
use flux::error::Error;
use flux::files::{atomic, read_text};
use flux::hub::{Cache, CachedRepository, Repository};
use flux::stage::CancelFlag;

use super::check;
use super::remote::{RemoteFile, Sum};
use crate::progress::Transfers;

/// How often a lock that another program holds is asked for.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The longest note of what a file in a folder is.
const RECORD_BYTES: usize = 4096;

/// The cache, or a folder.
pub enum Store {
    Cache { cached: CachedRepository, locks: PathBuf },
    Folder { root: PathBuf, cached: Option<CachedRepository>, commit: String },
}

/// Where a file is to be, and where it is until it is whole.
pub struct Place {
    pub whole: PathBuf,
    pub partial: PathBuf,
}

/// A lock, which the system ends with the program.
pub struct Lock(#[allow(dead_code, reason = "it is held, not read")] Option<File>);

impl Store {
    /// The cache.
    pub fn cache(cache: &Cache, repository: &Repository) -> Self {
        Self::Cache { cached: cache.repository(repository), locks: cache.locks(repository) }
    }

    /// A folder for the files of a commit, which is made where there is none. What the cache has is copied from there.
    ///
    /// Errors when it cannot be made.
    pub fn folder(root: &Path, repository: &Repository, commit: &str) -> Result<Self> {
        make_folder(root)?;
        let cached = Cache::of_environment().ok().map(|cache| cache.repository(repository));
        Ok(Self::Folder { root: root.to_path_buf(), cached, commit: commit.to_string() })
    }

    /// Where a file is to be.
    fn path(&self, file: &RemoteFile) -> PathBuf {
        match self {
            Self::Cache { cached, .. } => cached.blobs().join(&file.blob),
            Self::Folder { root, .. } => root.join(&file.path),
        }
    }

    fn partial(&self, file: &RemoteFile) -> PathBuf {
        let end = match self {
            Self::Cache { .. } => ".incomplete".to_string(),
            // A part of another version goes on in no file of this one.
            Self::Folder { .. } => format!(".{}.part", &check::sha256_of(file.blob.as_bytes())[..16]),
        };
        let mut path = OsString::from(self.path(file));
        path.push(end);
        path.into()
    }

    /// Where a file is to be. Its folder is made, and what the cache has is put there for a folder to be checked.
    ///
    /// Errors when the folder cannot be made.
    pub fn place(&self, file: &RemoteFile) -> Result<Place> {
        let place = Place { whole: self.path(file), partial: self.partial(file) };
        make_folder(place.whole.parent().unwrap_or(Path::new(".")))?;
        if let Self::Folder { cached: Some(cached), .. } = self {
            let blob = cached.blobs().join(&file.blob);
            let is_whole = file.sum != Sum::None && size_of(&blob) == Some(file.size);
            if is_whole && size_of(&place.partial).is_none() {
                let _ = fs::copy(&blob, &place.partial); // what is not copied is fetched
            }
        }
        Ok(place)
    }

    /// Whether a file is there as a whole; with `verify` its checksum is computed, and a damaged file is removed from
    /// the cache. In a folder a file of another version stays until it is replaced.
    ///
    /// Errors when it cannot be read, or removed.
    pub fn has(&self, file: &RemoteFile, verify: bool, shown: &mut Transfers, cancel: &CancelFlag) -> Result<bool> {
        let path = self.path(file);
        if size_of(&path) != Some(file.size) {
            return Ok(false);
        }
        if let Self::Folder { root, .. } = self {
            if recorded(root, file) && (!verify || check::is_right(&path, &file.sum, shown, cancel)?) {
                return Ok(true);
            }
            // The name and the size may be those of another version.
            let is_right = file.sum != Sum::None && check::is_right(&path, &file.sum, shown, cancel)?;
            if is_right {
                self.record(file);
            } else {
                shown.line(&format!("{}: another version, or damaged, fetching it again", file.path));
                let _ = fs::remove_file(record_of(root, file));
            }
            return Ok(is_right);
        }
        if !verify || check::is_right(&path, &file.sum, shown, cancel)? {
            return Ok(true);
        }
        shown.line(&format!("{}: wrong checksum, fetching it again", file.path));
        fs::remove_file(&path).map_err(|e| unwritable(&e, &path))?;
        Ok(false)
    }

    /// Whether another program has fetched a file since it was missing.
    pub fn has_now(&self, file: &RemoteFile) -> bool {
        let is_recorded = match self {
            Self::Folder { root, .. } => recorded(root, file),
            Self::Cache { .. } => true,
        };
        is_recorded && size_of(&self.path(file)) == Some(file.size)
    }

    /// Remembers of which version a file in a folder is, where other tools do so too. Without that it is read, or
    /// fetched, once more.
    pub fn record(&self, file: &RemoteFile) {
        let Self::Folder { root, commit, .. } = self else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let path = record_of(root, file);
        if path.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok()) {
            let text = format!("{commit}\n{}\n{}\n", file.blob, now.as_secs_f64());
            let _ = atomic::write(&path, text.as_bytes());
        }
    }

    /// Errors when less is free on the disk than files need, beside what is there of them.
    pub fn check_space(&self, missing: &[&RemoteFile]) -> Result<()> {
        let there = |file: &RemoteFile| size_of(&self.partial(file)).unwrap_or_default().min(file.size);
        let needed: u64 = missing.iter().map(|file| file.size - there(file)).sum();
        let folder = self.root();
        match free_bytes(folder) {
            Some(free) if free < needed => {
                let what = format!("{needed} bytes are to be fetched, {free} bytes are free");
                Err(Error::new(what)
                    .at_path(folder)
                    .hint("free some space, or name a folder on another disk (HF_HUB_CACHE, or `--folder`)"))
            }
            _ => Ok(()),
        }
    }

    fn root(&self) -> &Path {
        match self {
            Self::Cache { cached, .. } => cached.folder(),
            Self::Folder { root, .. } => root,
        }
    }

    /// The lock of a whole folder; files of the cache have one each.
    pub fn lock_whole(&self, cancel: &CancelFlag, shown: &mut Transfers) -> Result<Option<Lock>> {
        let Self::Folder { root, .. } = self else { return Ok(None) };
        let Ok(file) = File::open(root) else { return Ok(None) };
        held(file, &format!("into {}", root.display()), cancel, shown).map(Some)
    }

    /// The lock of a file, as other tools that share the cache take it.
    pub fn lock(&self, file: &RemoteFile, cancel: &CancelFlag, shown: &mut Transfers) -> Result<Option<Lock>> {
        let Self::Cache { locks, .. } = self else { return Ok(None) };
        make_folder(locks)?;
        let path = locks.join(format!("{}.lock", file.blob));
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let opened = opened.map_err(|e| unwritable(&e, &path))?;
        held(opened, &format!("of {}", file.path), cancel, shown).map(Some)
    }

    /// Gives all files their names in the snapshot of a commit, and says which commit a revision is. Returns the
    /// folder, or the path of the file that was named.
    ///
    /// Errors when the cache cannot be written.
    pub fn finish(&self, files: &[RemoteFile], revision: &str, commit: &str, named: Option<&str>) -> Result<PathBuf> {
        let Self::Cache { cached, .. } = self else {
            return Ok(named.map_or_else(|| self.root().to_path_buf(), |file| self.root().join(file)));
        };
        let snapshot = cached.snapshot_folder(commit);
        for file in files {
            link(&snapshot, file)?;
        }
        if cached.commit_of(revision).as_deref() != Some(commit) {
            let path = cached.refs().join(revision);
            make_folder(path.parent().unwrap_or(&path))?;
            atomic::write(&path, commit.as_bytes()).map_err(|e| unwritable(&e, &path))?;
        }
        Ok(named.map_or_else(|| snapshot.clone(), |file| snapshot.join(file)))
    }
}

/// What a folder remembers of a file: the commit, the tag, and when it was fetched.
fn record_of(root: &Path, file: &RemoteFile) -> PathBuf {
    root.join(".cache/huggingface/download").join(format!("{}.metadata", file.path))
}

/// Whether a folder remembers that a file is of this version, and it has not been written since.
fn recorded(root: &Path, file: &RemoteFile) -> bool {
    let Ok(text) = read_text(&record_of(root, file), RECORD_BYTES) else { return false };
    let mut lines = text.lines().skip(1);
    let is_of_version = lines.next() == Some(&file.blob);
    let at = lines.next().and_then(|line| line.trim().parse::<f64>().ok());
    let written = root.join(&file.path).metadata().and_then(|found| found.modified()).ok();
    let written = written.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    // Some file systems know times to the second.
    is_of_version && at.zip(written).is_some_and(|(at, written)| written.as_secs_f64() <= at + 1.0)
}

/// Makes the link to the blob of a file, unless it is there.
fn link(snapshot: &Path, file: &RemoteFile) -> Result<()> {
    let path = snapshot.join(&file.path);
    let up = "../".repeat(2 + file.path.matches('/').count());
    let target = PathBuf::from(format!("{up}blobs/{}", file.blob));
    if path.read_link().is_ok_and(|found| found == target) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(snapshot);
    make_folder(folder)?;
    // A link takes the place of another one at once, so a reader sees one of them.
    let mut new = path.clone().into_os_string();
    new.push(format!(".{}.part", std::process::id()));
    let new = PathBuf::from(new);
    let _ = fs::remove_file(&new);
    make_link(&target, &new, folder).and_then(|()| fs::rename(&new, &path)).map_err(|e| unwritable(&e, &path))
}

/// Makes a link to a path from `folder`; a file system without links gets the file under a second name, or a copy.
fn make_link(target: &Path, new: &Path, folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if std::os::unix::fs::symlink(target, new).is_ok() {
        return Ok(());
    }
    let blob = folder.join(target);
    fs::hard_link(&blob, new).or_else(|_| fs::copy(&blob, new).map(drop))
}

/// The files of a snapshot whose blobs do not have the checksums that they are named by.
///
/// Errors when one of them cannot be read.
pub fn damaged_in(snapshot: &Path, shown: &mut Transfers, cancel: &CancelFlag) -> Result<Vec<String>> {
    let mut folders = vec![snapshot.to_path_buf()];
    let mut damaged = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
                continue;
            }
            let Some(blob) = path.read_link().ok().and_then(|to| to.file_name()?.to_str().map(String::from)) else {
                continue;
            };
            let sum = RemoteFile::new("a", Some(0), &blob).map_or(Sum::None, |file| file.sum);
            if !check::is_right(&path, &sum, shown, cancel)? {
                damaged.push(path.strip_prefix(snapshot).unwrap_or(&path).display().to_string());
            }
        }
    }
    damaged.sort();
    Ok(damaged)
}

/// Waits until a lock is ours.
#[cfg(unix)]
fn held(file: File, what: &str, cancel: &CancelFlag, shown: &mut Transfers) -> Result<Lock> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    let mut is_told = false;
    loop {
        cancel.check()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(Some(file))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(_) => {
                shown.line(&format!("note: a download {what} cannot be locked here, so start no second one"));
                return Ok(Lock(None));
            }
        }
        if !is_told {
            shown.line(&format!("waiting until another download {what} has ended"));
            is_told = true;
        }
        thread::sleep(ASK_EVERY);
    }
}

#[cfg(not(unix))]
fn held(_file: File, _what: &str, _cancel: &CancelFlag, _shown: &mut Transfers) -> Result<Lock> {
    Ok(Lock(None))
}

/// Bytes that are free for this user on the disk of a folder, or of the folder that it will be in.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let full = std::path::absolute(folder).ok()?;
        let there = full.ancestors().find(|path| path.is_dir())?;
        let disk = rustix::fs::statvfs(there).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| unwritable(&error, path))
}

/// The bytes of a regular file, if there is one.
pub fn size_of(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(fs::Metadata::is_file).map(|found| found.len())
}

/// The error of a place that cannot be written.
pub fn unwritable(error: &io::Error, path: &Path) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space; the same command goes on where this one ended"
        }
        _ => "give this user the right to write there, or name another folder (HF_HUB_CACHE, or `--folder`)",
    };
    Error::new(format!("cannot write it: {error}")).at_path(path).hint(hint)
}
