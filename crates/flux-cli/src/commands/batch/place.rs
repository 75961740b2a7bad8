//! Safe output paths: a batch only reads and replaces regular files inside its folder.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use flux::files::open_unlinked;
use flux::{Error, Result, input};

/// Returns the path of the file `name` in a folder.
///
/// Errors if a symbolic link on the way leads out of the folder.
pub fn path(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let Ok(root) = folder.canonicalize() else { return Ok(path) };
    // Missing folders will be created below the last existing one.
    let last = path.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok());
    let is_inside = |last: &Path| last.canonicalize().is_ok_and(|last| last.starts_with(&root));
    match last {
        Some(last) if !is_inside(last) => {
            Err(Error::new(format!("`{name}` would be outside the folder: `{}` is a link", last.display()))
                .at_path(&path)
                .hint("remove the link, or name another folder"))
        }
        _ => Ok(path),
    }
}

/// Reads the file `name` in a folder. Returns `None` if there is none.
///
/// Errors if it is not a regular file, if it cannot be read, and as [`path`].
pub fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = path(folder, name)?;
    let file = match open_unlinked(&path, OpenOptions::new().read(true)) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(not_ours(name, &format!("exists and cannot be replaced: {e}")).at_path(&path)),
        Ok(file) => file,
    };
    input::read_stream(file).map(Some).map_err(|e| e.at_path(&path))
}

/// Creates missing parent folders of the file `name`.
///
/// Errors if a folder cannot be created, and as [`path`].
pub fn create_folders(folder: &Path, name: &str) -> Result<()> {
    let path = path(folder, name)?;
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(|e| Error::new(format!("cannot create the folder: {e}")).at_path(parent))
}

/// Returns the error for a file that must not be replaced.
pub fn not_ours(name: &str, what: &str) -> Error {
    Error::new(format!("`{name}` {what}")).hint("move it, or name another folder")
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_inside_the_folder_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [out, elsewhere] = ["out", "elsewhere"].map(|name| folder.path().join(name));
        fs::create_dir_all(out.join("below")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        for file in [elsewhere.join("a.png"), out.join("below/a.png")] {
            fs::write(file, "bytes").unwrap();
        }
        symlink(elsewhere.join("a.png"), out.join("link.png")).unwrap();
        symlink(&elsewhere, out.join("away")).unwrap();
        symlink("below", out.join("near")).unwrap();
        symlink("none", out.join("dangling")).unwrap();
        assert!(Command::new("mkfifo").arg(out.join("pipe.png")).status().unwrap().success());
        for name in ["below/a.png", "near/a.png"] {
            assert_eq!(read(&out, name).unwrap().unwrap(), b"bytes", "{name}");
        }
        for name in ["none.png", "none/a.png", "below/none/a.png", "below/a.png/x.png"] {
            assert!(read(&out, name).unwrap().is_none(), "{name}");
        }
        for name in ["link.png", "away/a.png", "away/none/a.png", "dangling/a.png", "pipe.png", "below"] {
            assert!(read(&out, name).is_err(), "{name}");
        }
        assert!(create_folders(&out, "away/new/a.png").is_err() && !elsewhere.join("new").exists());
        create_folders(&out, "below/new/a.png").unwrap();
        assert!(out.join("below/new").is_dir());
    }
}
