//! Files of tensors that are written one tensor after the other, in any order: all that is known beforehand is names,
//! formats and shapes. No more than a tensor is in memory.

mod gguf;
mod safetensors;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use self::gguf::{Value, gguf};
pub use self::safetensors::{Entry, safetensors};
use super::atomic::{self, AtomicFile};
use super::overwrite::create_folder;
use crate::error::{Error, Field, Result};

/// A place for a file of tensors, found to be writable.
#[derive(Debug, Clone)]
pub struct TensorTarget {
    path: PathBuf,
    /// Whether a file that is there stays as it is.
    keeps: bool,
}

impl TensorTarget {
    /// Checks what can go wrong with `path` before any work is done. With `keeps` a file that is there is never
    /// overwritten.
    ///
    /// Errors when the path is a folder, a device, a pipe or a socket, is there although it `keeps`, or the folder does
    /// not exist or takes no file.
    pub fn new(path: &Path, keeps: bool) -> Result<Self> {
        // Through links, as every program that writes to an open file; a link to nothing stays as it is.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let target = Self { path, keeps };
        match fs::symlink_metadata(&target.path) {
            Ok(_) if keeps => Err(target.already_there()),
            Ok(found) if !found.is_file() => {
                Err(Error::usage(format!("`{}` is there, and not a file", target.path.display()))
                    .at_path(&target.path)
                    .hint("name a file that ends with .gguf or .safetensors"))
            }
            _ => atomic::check(&target.path).map_err(|e| target.cannot_write(&e)).map(|()| target),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn already_there(&self) -> Error {
        Error::new(format!("`{}` is there already", self.path.display()))
            .of(Field::NoClobber)
            .hint(format!("name another file, or leave out `{}` to overwrite it", Field::NoClobber))
    }

    fn cannot_write(&self, cause: &io::Error) -> Error {
        let hint: &str = match cause.kind() {
            io::ErrorKind::AlreadyExists => return self.already_there(),
            io::ErrorKind::NotFound => &create_folder(&self.path),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or name another folder",
            io::ErrorKind::FileTooLarge => "raise the limit on the size of files, as with `ulimit -f unlimited`",
            _ => "name a file and folder that you may write to",
        };
        Error::new(format!("cannot write the weights: {cause}")).at_path(&self.path).hint(hint)
    }
}

/// A file of tensors that is being written. It gets its name when it is complete, and is removed on drop otherwise.
pub struct TensorWriter {
    file: AtomicFile,
    target: TensorTarget,
    /// Where the bytes of each tensor that is still to be written lie.
    places: HashMap<String, Range<u64>>,
    bytes: u64,
}

impl TensorWriter {
    /// Writes the header of a file of so many bytes, whose tensors lie in `places`.
    fn new(target: &TensorTarget, header: &[u8], places: HashMap<String, Range<u64>>, bytes: u64) -> Result<Self> {
        let failed = |e: io::Error| target.cannot_write(&e);
        let mut file = AtomicFile::create(&target.path).map_err(failed)?;
        file.write_all(header).map_err(failed)?;
        // What is between tensors is zeros.
        file.set_len(bytes).map_err(failed)?;
        Ok(Self { file, target: target.clone(), places, bytes })
    }

    /// Writes the bytes of a tensor.
    ///
    /// Errors when they cannot be stored.
    ///
    /// Panics when there is no such tensor, it was written before, or it has another number of bytes.
    pub fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let place = self.places.remove(name).unwrap_or_else(|| panic!("no tensor `{name}` is to be written"));
        assert_eq!(place.end - place.start, bytes.len() as u64, "bytes of `{name}`");
        let written = self.file.seek(SeekFrom::Start(place.start)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|e| self.target.cannot_write(&e))
    }

    /// Gives the file its name, and returns its size.
    ///
    /// Errors when not all of it can be stored, or the target cannot be replaced.
    ///
    /// Panics when a tensor was not written.
    pub fn commit(self) -> Result<u64> {
        assert!(self.places.is_empty(), "not written: {:?}", self.places.keys());
        let Self { file, target, bytes, .. } = self;
        let done = if target.keeps { file.commit_new() } else { file.commit() };
        done.map_err(|e| target.cannot_write(&e)).map(|()| bytes)
    }
}
