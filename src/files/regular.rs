//! Regular files alone are opened: a pipe would wait for a writer, a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use super::fetch::complete_the_download;
use crate::error::{Error, Result};

/// What to do where someone named a file that is not there.
pub(super) const NAME_ANOTHER: &str = "name a file that is there";

/// Opens a file to read. What it is, is checked on the opened file, so nobody can replace it in between.
///
/// Errors when there is none, it cannot be opened, or it is no regular file. `if_missing` is what to do in the first
/// case.
pub fn open(path: &Path, if_missing: &str) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    // Opening a pipe without a writer waits for one otherwise. On a regular file the flag does nothing.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let opened = options.open(path).and_then(|file| Ok((file.metadata()?.is_file(), file)));
    match opened {
        Ok((true, file)) => Ok(file),
        Ok((false, _)) => Err(not_regular(path)),
        // A socket cannot be opened at all.
        Err(_) if path.metadata().is_ok_and(|found| !found.is_file()) => Err(not_regular(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.read_link() {
            Ok(target) => Err(dangling(path, &target)),
            Err(_) => Err(unreadable(&error, path).hint(if_missing)),
        },
        Err(error) => Err(unreadable(&error, path).hint(remedy(&error))),
    }
}

/// The bytes of a file, which is at most `limit` bytes long. What its length is said to be does not matter: no more
/// than that is read.
///
/// Errors as [`open`], and when the file is longer or cannot be read.
pub(super) fn read(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let file = open(path, &complete_the_download())?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error, path).hint(remedy(&error)))?;
    if bytes.len() > limit {
        return Err(Error::new(format!("the file is too long: more than the {} MiB that it may have", limit >> 20))
            .at_path(path)
            .hint("this is not the file of a klein model: fetch it again"));
    }
    Ok(bytes)
}

/// The text of a file, which is at most `limit` bytes long.
///
/// Errors when it is longer, cannot be read, is no regular file, or no UTF-8.
pub fn read_text(path: &Path, limit: usize) -> Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|_| Error::new("the file is no text").at_path(path))
}

/// Whether anything is there that [`open`] should open or refuse.
pub(super) fn exists(path: &Path) -> bool {
    // Where the system does not tell, for want of permission, opening the file tells the reason. A link that leads
    // nowhere is there: opening it says so.
    path.symlink_metadata().map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
}

/// Errors when there is a link at `path` and nothing where it leads to.
pub(super) fn check_link(path: &Path) -> Result<()> {
    match path.read_link() {
        Ok(target) if matches!(path.try_exists(), Ok(false)) => Err(dangling(path, &target)),
        _ => Ok(()),
    }
}

fn dangling(path: &Path, target: &Path) -> Error {
    Error::new(format!("the file is a link to `{}`, which is not there", target.display()))
        .at_path(path)
        .hint("fetch the file itself, or mend the link: the folder that it leads to was moved, or lost the file")
}

fn not_regular(path: &Path) -> Error {
    Error::new("not a regular file, but a folder, pipe, socket or device")
        .at_path(path)
        .hint("put the file itself there, or a link to it")
}

/// The error of a file or folder that cannot be opened or read.
fn unreadable(error: &io::Error, path: &Path) -> Error {
    Error::new(format!("cannot read it: {error}")).at_path(path)
}

/// The same for a folder that is there.
pub(super) fn closed_folder(error: &io::Error, path: &Path) -> Error {
    unreadable(error, path).hint(remedy(error))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "give this user the right to read it (`chmod u+r FILE`) and to enter its folders (`chmod u+x FOLDER`)"
        }
        _ => "is the disk or network share that holds it in order? if so, fetch the file again",
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::super::{Folder, Safetensors};
    use super::*;

    #[track_caller]
    fn refused<T>(result: Result<T>, words: &[&str]) {
        let error = result.err().expect("refused").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_however_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = Command::new("mkfifo").arg(path("pipe")).status();
        assert!(made.is_ok_and(|made| made.success()), "mkfifo is there");
        let _socket = UnixListener::bind(path("socket")).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        let dir = Folder::Disk(folder.path().to_path_buf());
        for name in ["pipe", "socket", "folder", "device"] {
            let words = ["not a regular file", name, "hint: put the file itself there"];
            refused(dir.read(name, 1 << 20), &words);
            refused(dir.json::<serde_json::Value>(name), &words);
            refused(dir.bytes(name), &words);
            refused(Safetensors::open(&path(name), "fetch it again"), &words);
        }
    }

    #[test]
    fn no_more_is_read_than_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![b' '; 1 << 20]).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap().len(), 1 << 20);
        std::fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
        refused(read(&path, 1 << 20), &["more than the 1 MiB", "file", "hint: "]);
        // A file of this length would not fit in memory.
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        refused(read(&path, 1 << 20), &["more than the 1 MiB"]);
    }

    #[test]
    fn a_missing_file_and_one_without_permission_have_hints_of_their_own() {
        let path = Path::new("none/file");
        refused(open(path, "look again"), &["in: none/file", "hint: look again"]);
        refused(read(path, 1), &["in: none/file", "hint: is the download complete?"]);
        // The tests may run as root, who may read everything, so the system is not asked.
        let denied = closed_folder(&io::ErrorKind::PermissionDenied.into(), path).to_string();
        assert!(denied.contains("chmod u+r") && !denied.contains("download"), "{denied}");
        let other = closed_folder(&io::Error::other("input/output error"), path).to_string();
        assert!(other.contains("disk"), "{other}");
    }
}
