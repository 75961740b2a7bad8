//! A place for an image: what can go wrong with it is found before the image is made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{ImageFormat, Rgb, encode};
use crate::error::{Error, Field, Result, shell_word};
use crate::files::{atomic, overwrite};
use crate::metadata::Metadata;

/// A place to write one image to, found to be writable.
#[derive(Debug, Clone)]
pub struct Target {
    path: PathBuf,
    format: ImageFormat,
    /// Whether a file that is there stays as it is.
    keeps: bool,
}

impl Target {
    /// Checks what can go wrong with `path` before any work is done for it: what is there, the extension, the folder,
    /// its rights.
    ///
    /// Errors when the path is a folder, a device, a pipe, a socket, or a link to one of these or to nothing; when the
    /// extension names no format; when the file refuses to be written; or when there is none and the folder does not
    /// exist or refuses a new file.
    pub fn new(path: &Path) -> Result<Self> {
        let given = path;
        let path = followed(given)?;
        check_kind(&path)?;
        let format = ImageFormat::of(given)?;
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()) {
            return Err(no_folder(folder));
        }
        overwrite::check(&path).map_err(|e| cannot_write(&path, &e))?;
        Ok(Self { path, format, keeps: false })
    }

    /// The same place, where a file that is there is never overwritten, not even one that appears later.
    ///
    /// Errors when there is one.
    pub fn without_overwriting(self) -> Result<Self> {
        if fs::symlink_metadata(&self.path).is_ok() {
            return Err(already_there(&self.path));
        }
        Ok(Self { keeps: true, ..self })
    }

    /// The format of the file.
    pub fn format(&self) -> ImageFormat {
        self.format
    }

    /// The file that [`Target::write`] makes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Encodes and writes the file. A new file gets its name when it is complete, so a reader sees the whole file or
    /// none. A file that is there keeps its mode, owner and links, see [`overwrite`].
    ///
    /// Errors when the image cannot be encoded or the file not be written.
    pub fn write(&self, image: &Rgb, metadata: &Metadata) -> Result<()> {
        self.write_bytes(&encode(image, self.format, metadata).map_err(|e| e.at_path(&self.path))?)
    }

    /// Writes the bytes of a file, as [`Target::write`] does.
    ///
    /// Errors when the file cannot be written.
    pub fn write_bytes(&self, encoded: &[u8]) -> Result<()> {
        let written =
            if self.keeps { atomic::write_new(&self.path, encoded) } else { overwrite::write(&self.path, encoded) };
        written.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => already_there(&self.path),
            _ => cannot_write(&self.path, &e),
        })
    }
}

/// Where a link leads to, as every program that writes to an open file follows it; any other path as it is.
fn followed(path: &Path) -> Result<PathBuf> {
    if !path.is_symlink() {
        return Ok(path.to_path_buf());
    }
    fs::canonicalize(path).map_err(|e| {
        let leads_to = fs::read_link(path).unwrap_or_default();
        Error::new(format!("`{}` is a link to `{}`: {e}", path.display(), leads_to.display()))
            .of(Field::Output)
            .hint(format!("remove the link, or name another file with `{}`", Field::Output))
    })
}

/// Errors when something other than a file is at `path`, which an image must not replace.
fn check_kind(path: &Path) -> Result<()> {
    let kind = match fs::metadata(path) {
        Ok(found) if found.is_file() => return Ok(()),
        Ok(found) if found.is_dir() => "a folder",
        Ok(found) => special(found.file_type()),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(cannot_write(path, &e)),
    };
    let error = Error::usage(format!("`{}` is {kind}, not a file", path.display())).of(Field::Output);
    Err(error.hint("name a file that ends with .png, .jpg, .jpeg or .webp"))
}

/// What a file that is neither regular nor a folder is.
#[cfg(unix)]
fn special(kind: fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn special(_kind: fs::FileType) -> &'static str {
    "a device"
}

fn no_folder(folder: &Path) -> Error {
    if folder.exists() {
        return Error::new(format!("`{}` is a file, not a folder", folder.display()))
            .of(Field::Output)
            .hint(format!("name another folder with `{}`", Field::Output));
    }
    Error::new(format!("no such folder: `{}`", folder.display()))
        .of(Field::Output)
        .hint(format!("create it with `mkdir -p {}`", shell_word(folder)))
}

fn already_there(path: &Path) -> Error {
    Error::new(format!("`{}` is there already", path.display())).of(Field::NoClobber).hint(format!(
        "name another file with `{}`, or leave out `{}` to overwrite it",
        Field::Output,
        Field::NoClobber
    ))
}

fn cannot_write(path: &Path, cause: &io::Error) -> Error {
    let hint = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free some space, or name another folder with `{}`", Field::Output)
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("name a file and folder that you may write to with `{}`", Field::Output)
        }
        io::ErrorKind::FileTooLarge => {
            "raise the limit on the size of files, as with `ulimit -f unlimited`, or make a smaller image".to_string()
        }
        io::ErrorKind::InvalidFilename => format!("choose a shorter name with `{}`", Field::Output),
        _ => format!("is the disk or network share in order? name another folder with `{}` otherwise", Field::Output),
    };
    Error::new(format!("cannot write the image: {cause}")).at_path(path).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::read;

    fn gray() -> Rgb {
        Rgb { width: 16, height: 8, bytes: vec![128; 16 * 8 * 3] }
    }

    #[test]
    fn an_image_replaces_an_older_one_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.png");
        fs::write(&path, "old").unwrap();
        Target::new(&path).unwrap().write(&gray(), &Metadata::default()).unwrap();
        assert_eq!(read(&path).unwrap().width, 16);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_appears_later_is_not_overwritten_either() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.png");
        let target = Target::new(&path).unwrap().without_overwriting().unwrap();
        fs::write(&path, "another").unwrap();
        let error = target.write(&gray(), &Metadata::default()).unwrap_err().to_string();
        assert!(error.contains("is there already") && error.contains("`no_clobber`"), "{error}");
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), fs::read_dir(folder.path()).unwrap().count()),
            (&b"another"[..], 1)
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_and_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (real, link) = (folder.path().join("real.png"), folder.path().join("link.png"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        Target::new(&link).unwrap().write(&gray(), &Metadata::default()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&real).unwrap().width, 16);
    }

    #[test]
    fn a_missing_folder_a_folder_and_an_unknown_extension_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let refused = |name: &str| Target::new(&folder.path().join(name)).unwrap_err().to_string();
        assert!(refused("none/out.png").contains("no such folder"));
        assert!(refused("out.gif").contains(".png, .jpg, .jpeg or .webp"));
        assert!(refused("png").contains("cannot tell the image format"));
        fs::create_dir(folder.path().join("dir.png")).unwrap();
        assert!(refused("dir.png").contains("is a folder"));
        assert!(refused(&format!("{}.png", "x".repeat(300))).contains("shorter"));
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(refused("file/out.png").contains("is a file, not a folder"));
    }
}
