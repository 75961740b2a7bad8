//! Opening of regular files only: a pipe would wait for a writer, and a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::catalog::fetch::complete_the_download;
use flux_base::error::{Error, Result};

/// The hint for a named file that does not exist.
pub(crate) const NAME_ANOTHER: &str = "name an existing file";

/// Opens a file for reading. The check of its type is on the opened file, which cannot be replaced in between.
///
/// Errors if the file does not exist, cannot be opened, or is not a regular file. `if_missing` is the hint in the first
/// case.
pub fn open(path: &Path, if_missing: &str) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    // Opening a pipe would otherwise wait for a writer. The flag has no effect on a regular file.
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

/// Opens a regular file with these options, without waiting and without following a link.
///
/// Errors as the system does, and if `path` is a link, a folder, a pipe, a socket or a device.
pub fn open_unlinked(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let refused = |kind: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a regular file"));
    // A socket cannot be opened at all, nor can a folder be opened for writing, so the type is checked first.
    match path.symlink_metadata().map(|found| found.file_type()) {
        Ok(kind) if kind.is_symlink() => return Err(refused("a link")),
        Ok(kind) if kind.is_dir() => return Err(refused("a folder")),
        Ok(kind) if !kind.is_file() => return Err(refused("a pipe, a socket or a device")),
        _ => {}
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused("a pipe, a socket or a device")) }
}

/// Reads a file of a model, which has at most `limit` bytes.
///
/// Errors as [`read_bounded`].
pub(crate) fn read(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let read = read_bounded(path, limit, &complete_the_download());
    read.map_err(|e| e.hint("this is not a file of a klein model: fetch it again"))
}

/// Reads a file, which has at most `limit` bytes. The length that the system reports is not used: reading stops after
/// the limit.
///
/// Errors as [`open`], and if the file is longer or cannot be read.
pub fn read_bounded(path: &Path, limit: usize, if_missing: &str) -> Result<Vec<u8>> {
    let file = open(path, if_missing)?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error, path).hint(remedy(&error)))?;
    if bytes.len() > limit {
        let limit = if limit < 1 << 20 { format!("{limit} bytes") } else { format!("{} MiB", limit >> 20) };
        return Err(Error::new(format!("the file is too long: the maximum is {limit}")).at_path(path));
    }
    Ok(bytes)
}

/// Reads a text file, which has at most `limit` bytes.
///
/// Errors if the file is longer, cannot be read, is not a regular file, or is not UTF-8.
pub fn read_text(path: &Path, limit: usize) -> Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|_| Error::new("the file is not text").at_path(path))
}

/// Returns `true` if there is anything at `path` that [`open`] should open or refuse.
pub(crate) fn exists(path: &Path) -> bool {
    // If the system denies the answer, opening the file reports the reason. A dangling link counts as existing, so that
    // opening it reports the link.
    path.symlink_metadata().map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
}

/// Errors if `path` is a dangling link.
pub(crate) fn check_link(path: &Path) -> Result<()> {
    match path.read_link() {
        Ok(target) if matches!(path.try_exists(), Ok(false)) => Err(dangling(path, &target)),
        _ => Ok(()),
    }
}

fn dangling(path: &Path, target: &Path) -> Error {
    Error::new(format!("the file is a link to `{}`, which does not exist", target.display()))
        .at_path(path)
        .hint("fetch the file itself, or fix the link: its target was moved or deleted")
}

fn not_regular(path: &Path) -> Error {
    Error::new("not a regular file, but a folder, pipe, socket or device")
        .at_path(path)
        .hint("put the file itself there, or a link to it")
}

/// Returns the error for a file or folder that cannot be opened or read.
fn unreadable(error: &io::Error, path: &Path) -> Error {
    Error::new(format!("cannot read it: {error}")).at_path(path)
}

/// Returns the error for an existing folder that cannot be read.
pub(crate) fn closed_folder(error: &io::Error, path: &Path) -> Error {
    unreadable(error, path).hint(remedy(error))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "allow this user to read it (`chmod u+r FILE`) and to enter its folders (`chmod u+x FOLDER`)"
        }
        _ => "check the disk or network share that stores it, then fetch the file again",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;
    use crate::testing::refused;
    use crate::{Folder, Safetensors};

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_however_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = Command::new("mkfifo").arg(path("pipe")).status();
        assert!(made.is_ok_and(|made| made.success()), "mkfifo is installed");
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
        refused(read(&path, 1 << 20), &["1 MiB", "file", "hint: "]);
        // A file of this length would not fit in memory.
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        refused(read(&path, 1 << 20), &["1 MiB"]);
    }

    #[test]
    fn a_missing_file_and_one_without_permission_have_hints_of_their_own() {
        let path = Path::new("none/file");
        refused(open(path, "look again"), &["in: none/file", "hint: look again"]);
        refused(read(path, 1), &["in: none/file", "hint: the download may be incomplete"]);
        // The tests may run as root, who may read everything, so the system is not involved.
        let denied = closed_folder(&io::ErrorKind::PermissionDenied.into(), path).to_string();
        assert!(denied.contains("chmod u+r") && !denied.contains("download"), "{denied}");
        let other = closed_folder(&io::Error::other("input/output error"), path).to_string();
        assert!(other.contains("disk"), "{other}");
    }
}
