//! Files that are replaced as a whole: a reader sees the old file or the new one.

use std::fs::{Metadata, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::io::partial::{self, Listed};

/// A file that is written under a temporary name in its target's folder. It is removed on drop unless it was committed.
/// The temporary name identifies the file in case a kill leaves it behind.
pub struct AtomicFile {
    file: NamedTempFile,
    _listed: Listed,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates an empty file with the permissions of any new file. The target is not touched.
    ///
    /// Errors if the folder does not exist or refuses a new file.
    pub fn create(target: &Path) -> io::Result<Self> {
        let (file, listed) = partial::create(folder_of(target))?;
        Ok(Self { file, _listed: listed, target: target.to_path_buf() })
    }

    /// Returns the size, mode and owner of the temporary file.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.as_file().metadata()
    }

    /// Sets the length in bytes. Bytes that were not written are zeros.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.as_file().set_len(bytes)
    }

    /// Sets the permissions of the temporary file.
    pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.file.as_file().set_permissions(permissions)
    }

    /// Renames the file to its target, replacing an existing file.
    ///
    /// Errors if not all of it can be stored, or the target cannot be replaced.
    pub fn commit(self) -> io::Result<()> {
        // The sync, not the write, reports a full disk on the network.
        self.file.as_file().sync_all()?;
        self.file.persist(self.target).map(drop).map_err(|e| e.error)
    }

    /// Commits the file as [`AtomicFile::commit`], without replacing an existing one.
    ///
    /// Errors also if the target exists, with [`io::ErrorKind::AlreadyExists`].
    pub fn commit_new(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist_noclobber(self.target).map(drop).map_err(|e| e.error)
    }
}

/// Writes to the open file, because errors of [`NamedTempFile`] would name the temporary file.
impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        self.file.as_file_mut().seek(place)
    }
}

/// Checks that the folder of `target` takes a new file. The test file has no name if the system supports that.
///
/// Errors as [`AtomicFile::create`].
pub fn check(target: &Path) -> io::Result<()> {
    tempfile::tempfile_in(folder_of(target)).map(drop)
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Writes a whole file, replacing an existing one.
pub fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(target)?;
    file.write_all(bytes)?;
    file.commit()
}

/// Writes a whole file that does not exist yet. Errors as [`AtomicFile::commit_new`].
pub fn write_new(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(target)?;
    file.write_all(bytes)?;
    file.commit_new()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_target_changes_when_the_new_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        write(&target, b"old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        let partial = names(folder.path());
        assert!(partial.len() == 2 && partial[0].starts_with(".flux-") && partial[0].ends_with(".part"), "{partial:?}");
        file.commit().unwrap();
        assert_eq!((fs::read(&target).unwrap().as_slice(), names(folder.path())), (&b"new"[..], vec!["file".into()]));
    }

    #[test]
    fn a_file_that_is_dropped_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        fs::create_dir_all(target.join("in the way")).unwrap();
        write(&target, b"new").unwrap_err();
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_new_file_replaces_none() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        write_new(&target, b"first").unwrap();
        assert_eq!(write_new(&target, b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&target).unwrap().as_slice(), names(folder.path())), (&b"first"[..], vec!["file".into()]));
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write(&folder.path().join("none/file"), b"").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        fs::write(folder.path().join("plain"), b"").unwrap();
        write(&folder.path().join("atomic"), b"").unwrap();
        assert_eq!(mode("atomic"), mode("plain"));
    }
}
