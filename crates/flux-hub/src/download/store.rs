//! The store of downloaded files: the cache that other tools share, or a plain folder.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::{Cache, CachedRepository, Repository};
use flux_base::Result;
use flux_base::error::Error;
use flux_base::stage::CancelFlag;
use flux_files::digest::sha256;
use flux_files::{atomic, read_text};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::check;
use super::remote::{RemoteFile, Sum};
use flux_runtime::progress::Transfers;

/// The interval between attempts to take a lock that another program holds.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The max bytes of a file's record in a folder.
const RECORD_BYTES: usize = 4096;

/// The cache, or a folder.
pub enum Store {
    Cache { cached: CachedRepository, locks: PathBuf },
    Folder { root: PathBuf, cached: Option<CachedRepository>, commit: String },
}

/// The final path of a file, and its path until it is complete.
pub struct Place {
    pub whole: PathBuf,
    pub partial: PathBuf,
}

/// A lock, which the system releases when the program ends.
pub struct Lock(#[allow(dead_code, reason = "it is held, not read")] Option<File>);

impl Store {
    /// Opens the store of a repository in the cache.
    ///
    /// Errors as [`Cache::repository`].
    pub fn cache(cache: &Cache, repository: &Repository) -> Result<Self> {
        let cached = cache.repository(repository)?;
        let locks = cache.locks(&cached.repository);
        Ok(Self::Cache { cached, locks })
    }

    /// Opens a folder for the files of a commit, and creates it if necessary. Files in the cache are copied from there.
    ///
    /// Errors if the folder cannot be created.
    pub fn folder(root: &Path, repository: &Repository, commit: &str) -> Result<Self> {
        make_folder(root)?;
        let cached = Cache::from_environment().ok().map(|cache| cache.repository(repository)).transpose()?;
        Ok(Self::Folder { root: root.to_path_buf(), cached, commit: commit.to_string() })
    }

    /// Returns the final path of a file.
    fn path(&self, file: &RemoteFile) -> PathBuf {
        match self {
            Self::Cache { cached, .. } => cached.blobs().join(&file.blob),
            Self::Folder { root, .. } => root.join(&file.path),
        }
    }

    fn partial(&self, file: &RemoteFile) -> PathBuf {
        let end = match self {
            Self::Cache { .. } => ".incomplete".to_string(),
            // A partial file of another version must not be resumed for this version.
            Self::Folder { .. } => format!(".{}.part", &sha256(file.blob.as_bytes())[..16]),
        };
        let mut path = OsString::from(self.path(file));
        path.push(end);
        path.into()
    }

    /// Returns the paths of a file, and creates its folder. For a folder, a copy from the cache becomes the partial
    /// file, which is checked later.
    ///
    /// Errors if the folder cannot be created.
    pub fn place(&self, file: &RemoteFile) -> Result<Place> {
        let place = Place { whole: self.path(file), partial: self.partial(file) };
        make_folders_below(self.root(), &place.whole)?;
        if let Self::Folder { cached: Some(cached), .. } = self {
            let blob = cached.blobs().join(&file.blob);
            let is_whole = file.sum != Sum::None && size_of(&blob) == Some(file.size);
            if is_whole && place.partial.symlink_metadata().is_err() {
                let _ = fs::copy(&blob, &place.partial); // if the copy fails, the file is downloaded
            }
        }
        Ok(place)
    }

    /// Returns `true` if a file is complete. With `verify`, its checksum is computed, and a damaged file is removed
    /// from the cache. In a folder, a file of another version stays until it is replaced.
    ///
    /// Errors if the file cannot be read or removed.
    pub fn has(&self, file: &RemoteFile, verify: bool, shown: &mut Transfers, cancel: &CancelFlag) -> Result<bool> {
        let path = self.path(file);
        expect_no_links(self.root(), &path)?;
        if let Self::Folder { root, .. } = self {
            expect_no_links(root, &record_of(root, file))?;
        }
        if size_of(&path) != Some(file.size) {
            return Ok(false);
        }
        if let Self::Folder { root, .. } = self {
            if recorded(root, file) && (!verify || check::is_right(&path, &file.sum, shown, cancel)?) {
                return Ok(true);
            }
            // Another version may have the same name and size.
            let is_right = file.sum != Sum::None && check::is_right(&path, &file.sum, shown, cancel)?;
            if is_right {
                self.record(file);
            } else {
                shown.line(&format!("{}: another version, or damaged, downloading it again", file.path));
                let _ = fs::remove_file(record_of(root, file));
            }
            return Ok(is_right);
        }
        if !verify || check::is_right(&path, &file.sum, shown, cancel)? {
            return Ok(true);
        }
        shown.line(&format!("{}: wrong checksum, downloading it again", file.path));
        fs::remove_file(&path).map_err(|e| unwritable(&e, &path))?;
        Ok(false)
    }

    /// Returns `true` if another program has downloaded a missing file meanwhile.
    pub fn has_now(&self, file: &RemoteFile) -> bool {
        let is_recorded = match self {
            Self::Folder { root, .. } => recorded(root, file),
            Self::Cache { .. } => true,
        };
        is_recorded && size_of(&self.path(file)) == Some(file.size)
    }

    /// Records the version of a file in a folder, at the place that other tools use. Without this record, the file is
    /// read or downloaded again.
    pub fn record(&self, file: &RemoteFile) {
        let Self::Folder { root, commit, .. } = self else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let path = record_of(root, file);
        if make_folders_below(root, &path).is_ok() {
            let text = format!("{commit}\n{}\n{}\n", file.blob, now.as_secs_f64());
            let _ = atomic::write(&path, text.as_bytes());
        }
    }

    /// Errors if the disk has less free space than the missing files still need.
    pub fn check_space(&self, missing: &[&RemoteFile]) -> Result<()> {
        let there = |file: &RemoteFile| size_of(&self.partial(file)).unwrap_or_default().min(file.size);
        let needed: u64 = missing.iter().map(|file| file.size - there(file)).sum();
        let folder = self.root();
        match free_bytes(folder) {
            Some(free) if free < needed => {
                let what = format!("the download needs {needed} bytes, but only {free} bytes are free");
                Err(Error::new(what)
                    .at_path(folder)
                    .hint("free some space, or use a folder on another disk (HF_HUB_CACHE or `--folder`)"))
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

    /// Takes the lock of a whole folder; files of the cache have a lock each.
    pub fn lock_whole(&self, cancel: &CancelFlag, shown: &mut Transfers) -> Result<Option<Lock>> {
        let Self::Folder { root, .. } = self else { return Ok(None) };
        let Ok(file) = File::open(root) else { return Ok(None) };
        held(file, &format!("into {}", root.display()), cancel, shown).map(Some)
    }

    /// Takes the lock of a file, as other tools that share the cache do.
    pub fn lock(&self, file: &RemoteFile, cancel: &CancelFlag, shown: &mut Transfers) -> Result<Option<Lock>> {
        let Self::Cache { locks, .. } = self else { return Ok(None) };
        make_folder(locks)?;
        let path = locks.join(format!("{}.lock", file.blob));
        let opened = open_own(&path).map_err(|e| unwritable(&e, &path))?;
        held(opened, &format!("of {}", file.path), cancel, shown).map(Some)
    }

    /// Links all files into the snapshot of a commit, and records the commit of a revision. Returns the folder, or the
    /// path of the file that was named.
    ///
    /// Errors if the cache cannot be written.
    pub fn finish(&self, files: &[RemoteFile], revision: &str, commit: &str, named: Option<&str>) -> Result<PathBuf> {
        let Self::Cache { cached, .. } = self else {
            return Ok(named.map_or_else(|| self.root().to_path_buf(), |file| self.root().join(file)));
        };
        let snapshot = cached.snapshot_folder(commit);
        for file in files {
            make_folders_below(self.root(), &snapshot.join(&file.path))?;
            link(&snapshot, file)?;
        }
        if cached.commit_of(revision).as_deref() != Some(commit) {
            let path = cached.refs().join(revision);
            make_folders_below(self.root(), &path)?;
            atomic::write(&path, commit.as_bytes()).map_err(|e| unwritable(&e, &path))?;
        }
        Ok(named.map_or_else(|| snapshot.clone(), |file| snapshot.join(file)))
    }
}

/// Returns the path of a file's record in a folder: the commit, the tag, and the time of the download.
fn record_of(root: &Path, file: &RemoteFile) -> PathBuf {
    root.join(".cache/huggingface/download").join(format!("{}.metadata", file.path))
}

/// Returns `true` if a file has this version by the folder's record, and has not been written since.
fn recorded(root: &Path, file: &RemoteFile) -> bool {
    let Ok(text) = read_text(&record_of(root, file), RECORD_BYTES) else { return false };
    let mut lines = text.lines().skip(1);
    let is_of_version = lines.next() == Some(&file.blob);
    let at = lines.next().and_then(|line| line.trim().parse::<f64>().ok());
    let written = root.join(&file.path).metadata().and_then(|found| found.modified()).ok();
    let written = written.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    // Some file systems store times in seconds.
    is_of_version && at.zip(written).is_some_and(|(at, written)| written.as_secs_f64() <= at + 1.0)
}

/// Creates the link to the blob of a file, unless it exists.
fn link(snapshot: &Path, file: &RemoteFile) -> Result<()> {
    let path = snapshot.join(&file.path);
    let up = "../".repeat(2 + file.path.matches('/').count());
    let target = PathBuf::from(format!("{up}blobs/{}", file.blob));
    if path.read_link().is_ok_and(|found| found == target) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(snapshot);
    // A rename replaces another link at once, so a reader sees one of them.
    let mut new = path.clone().into_os_string();
    new.push(format!(".{}.part", std::process::id()));
    let new = PathBuf::from(new);
    let _ = fs::remove_file(&new);
    make_link(&target, &new, folder).and_then(|()| fs::rename(&new, &path)).map_err(|e| unwritable(&e, &path))
}

/// Creates a link to a path relative to `folder`; without symbolic links in the file system, a hard link or a copy.
fn make_link(target: &Path, new: &Path, folder: &Path) -> io::Result<()> {
    if std::os::unix::fs::symlink(target, new).is_ok() {
        return Ok(());
    }
    let blob = folder.join(target);
    fs::hard_link(&blob, new).or_else(|_| fs::copy(&blob, new).map(drop))
}

/// Returns the files of a snapshot whose blobs do not have the checksums in their names.
///
/// Errors if a file cannot be read.
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

/// Waits until the lock is taken.
fn held(file: File, what: &str, cancel: &CancelFlag, shown: &mut Transfers) -> Result<Lock> {
    let mut is_told = false;
    loop {
        cancel.check()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(Some(file))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(_) => {
                shown.line(&format!("note: the download {what} cannot be locked here, so do not start another one"));
                return Ok(Lock(None));
            }
        }
        if !is_told {
            shown.line(&format!("waiting for another download {what} to end"));
            is_told = true;
        }
        thread::sleep(ASK_EVERY);
    }
}

/// Returns the bytes that are free for this user on the disk of a folder, which need not exist.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let full = std::path::absolute(folder).ok()?;
    let there = full.ancestors().find(|path| path.is_dir())?;
    let disk = rustix::fs::statvfs(there).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Creates the folders between `root` and a file below it. None of them may be a link, because the file would be
/// written elsewhere. `root` may be a link, because it is the user's choice.
///
/// Errors if a folder is a link, or cannot be created.
fn make_folders_below(root: &Path, file: &Path) -> Result<()> {
    make_folder(root)?;
    for folder in folders_below(root, file) {
        match fs::create_dir(&folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => expect_folder(&folder)?,
            made => made.map_err(|e| unwritable(&e, &folder))?,
        }
    }
    Ok(())
}

/// Errors if a folder between `root` and a file below it is a link. Folders may be missing.
fn expect_no_links(root: &Path, file: &Path) -> Result<()> {
    folders_below(root, file).take_while(|folder| folder.symlink_metadata().is_ok()).try_for_each(|f| expect_folder(&f))
}

fn expect_folder(path: &Path) -> Result<()> {
    let kind = path.symlink_metadata().map_err(|e| unwritable(&e, path))?.file_type();
    if kind.is_dir() {
        return Ok(());
    }
    let what = if kind.is_symlink() { "a link, which is not followed" } else { "not a folder" };
    Err(Error::new(format!("cannot write into it: it is {what}"))
        .at_path(path)
        .hint("remove it, or use another folder"))
}

/// Returns the folders between `root` and a file below it, outermost first.
fn folders_below(root: &Path, file: &Path) -> impl Iterator<Item = PathBuf> {
    let below = file.parent().and_then(|folder| folder.strip_prefix(root).ok()).unwrap_or(Path::new(""));
    let mut path = root.to_path_buf();
    let names: Vec<OsString> = below.components().map(|name| name.as_os_str().to_owned()).collect();
    names.into_iter().map(move |name| {
        path.push(name);
        path.clone()
    })
}

/// Opens a file of this program for reading and writing, and creates it if there is none.
///
/// Errors if there is a link, or something that is not a regular file: it could lead elsewhere, or block forever.
fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Opens the partial file, or creates it.
///
/// Errors as [`open_own`], and if the file has further names, whose bytes would change as well.
pub fn open_partial(path: &Path) -> Result<File> {
    let file = open_own(path).map_err(|e| unwritable(&e, path))?;
    if file.metadata().map_err(|e| unwritable(&e, path))?.nlink() > 1 {
        return Err(Error::new("cannot write it: the file has another hard link").at_path(path).hint("remove it"));
    }
    Ok(file)
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| unwritable(&error, path))
}

/// Returns the size of a regular file, if there is one.
pub fn size_of(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(fs::Metadata::is_file).map(|found| found.len())
}

/// Returns the error for a path that cannot be written.
pub fn unwritable(error: &io::Error, path: &Path) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space, and run the same command again to resume"
        }
        _ => "give this user write permission there, or use another folder (HF_HUB_CACHE or `--folder`)",
    };
    Error::new(format!("cannot write it: {error}")).at_path(path).hint(hint)
}
