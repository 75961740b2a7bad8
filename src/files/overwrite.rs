//! Files that the user names: what is there already is written over as by programs that open a file for writing.
//!
//! A file that exists keeps its mode, its owner and its hard links. Where a new file can stand for the old one, it
//! takes its place as a whole, so that a reader sees the old bytes or the new ones. Where it cannot, the bytes are
//! written into the old file: it has further names or another owner, its folder takes no file, or it is mounted by
//! itself. Access lists and extended attributes are not copied to the new file.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::path::Path;

use super::atomic::{self, AtomicFile};
use super::partial;
use crate::error::shell_word;

/// Checks that `path` can be written, without a change to what is there.
///
/// Errors when the file refuses to be written; when there is none, as [`AtomicFile::create`].
pub fn check(path: &Path) -> io::Result<()> {
    match File::options().write(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => atomic::check(path),
        opened => opened.map(drop),
    }
}

/// What to do where the folder of a file to write is not there.
pub fn create_folder(path: &Path) -> String {
    let folder = path.parent().unwrap_or(path);
    format!("create its folder first, as with `mkdir -p {}`", shell_word(folder))
}

/// Writes a whole file. `path` is no link.
///
/// Errors when the file cannot be written. The message says so where the old bytes are lost.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = match File::options().write(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return atomic::write(path, bytes),
        opened => opened?,
    };
    let old = file.metadata()?;
    if !old.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    match replace(path, &old, bytes) {
        Ok(true) => Ok(()),
        Ok(false) => write_into(file, bytes),
        Err(e) if is_of_the_folder(&e) => write_into(file, bytes),
        Err(e) => Err(e),
    }
}

/// Puts a new file with the mode of the old one in its place. Returns whether a new file can stand for it.
fn replace(path: &Path, old: &Metadata, bytes: &[u8]) -> io::Result<bool> {
    let mut file = AtomicFile::create(path)?;
    if !can_stand_for(&file.metadata()?, old) {
        return Ok(false);
    }
    file.set_permissions(old.permissions())?;
    file.write_all(bytes)?;
    file.commit()?;
    Ok(true)
}

/// Whether nothing but the bytes changes when `new` takes the place of `old`.
#[cfg(unix)]
fn can_stand_for(new: &Metadata, old: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    old.nlink() == 1 && (old.uid(), old.gid()) == (new.uid(), new.gid())
}

#[cfg(not(unix))]
fn can_stand_for(_new: &Metadata, _old: &Metadata) -> bool {
    true
}

/// Whether the folder refuses what the file itself may allow. A rename over a file that is mounted by itself is
/// [`io::ErrorKind::ResourceBusy`].
fn is_of_the_folder(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Writes the bytes into the file that is there.
fn write_into(mut file: File, bytes: &[u8]) -> io::Result<()> {
    // The bytes are at hand, so a signal that ends the program waits for no more than the disk.
    let written =
        partial::whole(|| file.set_len(0).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all()));
    written.map_err(|e| {
        // A reader should find no half image. The error to tell is the first one.
        let _ = file.set_len(0);
        io::Error::new(e.kind(), format!("{e}; the file was written in place, and what it held is lost"))
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    use super::*;

    fn file_of(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_keeps_its_mode_and_is_replaced_as_a_whole() {
        let (folder, path) = file_of(b"old");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let reader = File::open(&path).unwrap();
        write(&path, b"new bytes").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(
            (io::read_to_string(reader).unwrap(), fs::read(&path).unwrap()),
            ("old".into(), b"new bytes".into())
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_name_of_a_file_shows_the_new_bytes() {
        let (folder, path) = file_of(b"the old bytes");
        let other = folder.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&other).unwrap()), (b"new".to_vec(), b"new".to_vec()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_keeps_its_owner() {
        let (_folder, path) = file_of(b"old");
        if chown(&path, Some(12345), Some(23456)).is_err() {
            eprintln!("skipped: no right to give a file away");
            return;
        }
        write(&path, b"new").unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), fs::read(&path).unwrap()), (12345, 23456, b"new".to_vec()));
    }

    #[test]
    fn a_check_changes_nothing() {
        let (folder, path) = file_of(b"old");
        let before = fs::metadata(&path).unwrap();
        check(&path).unwrap();
        check(&folder.path().join("none")).unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!((before.ino(), before.modified().unwrap()), (after.ino(), after.modified().unwrap()));
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(folder.path()).unwrap().count()), (b"old".to_vec(), 1));
    }
}
