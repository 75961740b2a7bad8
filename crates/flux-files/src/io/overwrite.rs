//! Overwriting of files that the user names, as by programs that open a file for writing.
//!
//! An existing file keeps its mode, its owner and its hard links. If a new file can stand for the old one, it replaces
//! the old one as a whole, so that a reader sees either the old bytes or the new ones. Otherwise the bytes are written
//! into the old file: if it has further names or another owner, its folder is not writable, or it is a mount point.
//! Access lists and extended attributes are not copied to the new file.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::path::Path;

use crate::io::atomic::{self, AtomicFile};
use crate::io::partial;
use flux_base::error::{Error, Field, shell_word};

/// Checks that `path` can be written, without changing an existing file.
///
/// Errors if the file is not writable; if there is no file, as [`AtomicFile::create`].
pub fn check(path: &Path) -> io::Result<()> {
    match File::options().write(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => atomic::check(path),
        opened => opened.map(drop),
    }
}

/// Returns the error of a file that must stay as it is.
pub(crate) fn already_there(path: &Path) -> Error {
    Error::new(format!("`{}` already exists", path.display()))
        .for_field(Field::NoClobber)
        .hint(format!("name another file, or leave out `{}` to overwrite it", Field::NoClobber))
}

/// Returns the error of a file of `what` that cannot be written.
pub(crate) fn cannot_write(what: &str, path: &Path, cause: &io::Error) -> Error {
    let hint: &str = match cause.kind() {
        io::ErrorKind::AlreadyExists => return already_there(path),
        io::ErrorKind::NotFound => &create_folder(path),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or name another folder",
        io::ErrorKind::FileTooLarge => "raise the file size limit, for example with `ulimit -f unlimited`",
        _ => "name a file and folder that you can write to",
    };
    Error::new(format!("cannot write the {what}: {cause}")).at_path(path).hint(hint)
}

/// Returns the hint for a file whose folder does not exist.
pub fn create_folder(path: &Path) -> String {
    let folder = path.parent().unwrap_or(path);
    format!("create its folder first, for example with `mkdir -p {}`", shell_word(folder))
}

/// Writes a whole file. `path` must not be a link.
///
/// Errors if the file cannot be written. The message says so if the old bytes are lost.
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

/// Writes a new file with the name and the mode of the file at `path`, if there is one. Further names of the old file
/// keep its bytes.
///
/// Errors if the file cannot be written.
pub fn replace_name(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    if let Ok(old) = path.symlink_metadata().map(|old| old.permissions()) {
        file.set_permissions(old)?;
    }
    file.write_all(bytes)?;
    file.commit()
}

/// Replaces the old file by a new one with its mode. Returns `false` if a new file cannot stand for the old one.
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

/// Returns `true` if nothing but the bytes changes when `new` replaces `old`.
fn can_stand_for(new: &Metadata, old: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    old.nlink() == 1 && (old.uid(), old.gid()) == (new.uid(), new.gid())
}

/// Returns `true` if the folder refuses what the file itself may allow. A rename over a mount point fails with
/// [`io::ErrorKind::ResourceBusy`].
fn is_of_the_folder(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Writes the bytes into the existing file.
fn write_into(mut file: File, bytes: &[u8]) -> io::Result<()> {
    // The bytes are in memory, so a signal that ends the program only waits for the disk.
    let written =
        partial::whole(|| file.set_len(0).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all()));
    written.map_err(|e| {
        // A reader should not find half an image. The first error is the one to report.
        let _ = file.set_len(0);
        io::Error::new(e.kind(), format!("{e}; the file was written in place, and its old content is lost"))
    })
}

#[cfg(test)]
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
    fn a_file_that_takes_a_name_leaves_the_further_names_of_the_old_one_alone() {
        let (folder, path) = file_of(b"the old bytes");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let other = folder.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        replace_name(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&other).unwrap()), (b"new".to_vec(), b"the old bytes".to_vec()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
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
