//! Places for images, checked before the images are made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Encoding, ImageFormat, Rgb, encode, encode_jpeg};
use crate::metadata::Metadata;
use flux_base::error::{Error, Field, Result, shell_word};
use flux_files::{atomic, overwrite};

/// A place to write one image to, checked to be writable.
#[derive(Debug, Clone)]
pub struct Target {
    path: PathBuf,
    format: ImageFormat,
    quality: Option<u8>,
    mode: Mode,
}

/// The treatment of an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Overwrite the file, under all of its names.
    Overwrite,
    /// Write a new file in its place. Its other names (hard links) keep the old bytes.
    Replace,
    /// Keep the file.
    Keep,
}

impl Target {
    /// Checks before any work is done that `path` can be written: the existing file, the extension, the folder, the
    /// permissions.
    ///
    /// Errors if the path is a folder, a device, a pipe, a socket, or a link to one of these or to nothing; if the
    /// extension has no format; if the file is not writable; or if there is no file and the folder does not exist or
    /// is not writable.
    pub fn new(path: &Path) -> Result<Self> {
        Self::with_encoding(path, Encoding::default())
    }

    /// [`Target::new`] for a file in this encoding.
    ///
    /// Errors as [`Target::new`], and as [`Encoding::format`].
    pub fn with_encoding(path: &Path, encoding: Encoding) -> Result<Self> {
        let given = path;
        let path = followed(given)?;
        check_kind(&path)?;
        let format = encoding.format(Some(given))?;
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()) {
            return Err(no_folder(folder));
        }
        overwrite::check(&path).map_err(|e| cannot_write(&path, &e))?;
        Ok(Self { path, format, quality: encoding.quality, mode: Mode::Overwrite })
    }

    /// Never overwrites an existing file, not even one that appears later.
    ///
    /// Errors if a file exists.
    pub fn without_overwriting(self) -> Result<Self> {
        if fs::symlink_metadata(&self.path).is_ok() {
            return Err(already_there(&self.path));
        }
        Ok(Self { mode: Mode::Keep, ..self })
    }

    /// Replaces an existing file by a new one: other names of the old file keep its bytes.
    pub fn replacing(self) -> Self {
        Self { mode: Mode::Replace, ..self }
    }

    /// Returns the format of the file.
    pub fn format(&self) -> ImageFormat {
        self.format
    }

    /// Returns the requested quality of a JPEG.
    pub fn quality(&self) -> Option<u8> {
        self.quality
    }

    /// Returns the path that [`Target::write`] writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Encodes and writes the file. A new file gets its name when it is complete, so readers see either the whole file
    /// or none. An existing file keeps its mode, owner and links, see [`overwrite`].
    ///
    /// Errors if the image cannot be encoded or the file cannot be written.
    pub fn write(&self, image: &Rgb, metadata: &Metadata) -> Result<()> {
        let encoded = match self.quality {
            Some(quality) => encode_jpeg(image, quality, metadata),
            None => encode(image, self.format, metadata),
        };
        self.write_bytes(&encoded.map_err(|e| e.at_path(&self.path))?)
    }

    /// Writes the bytes of a file, as [`Target::write`] does.
    ///
    /// Errors if the file cannot be written.
    pub fn write_bytes(&self, encoded: &[u8]) -> Result<()> {
        let written = match self.mode {
            Mode::Overwrite => overwrite::write(&self.path, encoded),
            Mode::Replace => overwrite::replace_name(&self.path, encoded),
            Mode::Keep => atomic::write_new(&self.path, encoded),
        };
        written.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => already_there(&self.path),
            _ => cannot_write(&self.path, &e),
        })
    }
}

/// Returns the target of a link, as programs that write to an open file follow it; other paths unchanged.
fn followed(path: &Path) -> Result<PathBuf> {
    if !path.is_symlink() {
        return Ok(path.to_path_buf());
    }
    fs::canonicalize(path).map_err(|e| {
        let leads_to = fs::read_link(path).unwrap_or_default();
        Error::new(format!("`{}` is a link to `{}`: {e}", path.display(), leads_to.display()))
            .for_field(Field::Output)
            .hint(format!("remove the link, or name another file with `{}`", Field::Output))
    })
}

/// Errors if `path` is not a file, which an image must not replace.
fn check_kind(path: &Path) -> Result<()> {
    let kind = match fs::metadata(path) {
        Ok(found) if found.is_file() => return Ok(()),
        Ok(found) if found.is_dir() => "a folder",
        Ok(found) => special(found.file_type()),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(cannot_write(path, &e)),
    };
    let error = Error::usage(format!("`{}` is {kind}, not a file", path.display())).for_field(Field::Output);
    Err(error.hint("name a file that ends with .png, .jpg, .jpeg or .webp"))
}

/// Returns the kind of a file that is neither regular nor a folder.
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

fn no_folder(folder: &Path) -> Error {
    if folder.exists() {
        return Error::new(format!("`{}` is a file, not a folder", folder.display()))
            .for_field(Field::Output)
            .hint(format!("name another folder with `{}`", Field::Output));
    }
    Error::new(format!("no such folder: `{}`", folder.display()))
        .for_field(Field::Output)
        .hint(format!("create it with `mkdir -p {}`", shell_word(folder)))
}

fn already_there(path: &Path) -> Error {
    Error::new(format!("`{}` already exists", path.display())).for_field(Field::NoClobber).hint(format!(
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
            format!("name a writable file and folder with `{}`", Field::Output)
        }
        io::ErrorKind::FileTooLarge => {
            "raise the file size limit, for example with `ulimit -f unlimited`, or generate a smaller image".to_string()
        }
        io::ErrorKind::InvalidFilename => format!("choose a shorter name with `{}`", Field::Output),
        _ => format!("check the disk or network share, or name another folder with `{}`", Field::Output),
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
        assert!(error.contains("already exists") && error.contains("`no_clobber`"), "{error}");
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), fs::read_dir(folder.path()).unwrap().count()),
            (&b"another"[..], 1)
        );
    }

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
        assert!(refused("png").contains("cannot determine the image format"));
        fs::create_dir(folder.path().join("dir.png")).unwrap();
        assert!(refused("dir.png").contains("dir.png` is a folder"));
        assert!(refused(&format!("{}.png", "x".repeat(300))).contains("shorter"));
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(refused("file/out.png").contains("not a folder"));
    }
}
