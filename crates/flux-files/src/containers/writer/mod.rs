//! Writing of tensor files, one tensor at a time and in any order: only names, formats and shapes are known beforehand.
//! At most one tensor is in memory.

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
use crate::io::atomic::{self, AtomicFile};
use crate::io::overwrite::{already_there, cannot_write};
use flux_base::error::{Error, Result};

/// The path of a tensor file, checked to be writable.
#[derive(Debug, Clone)]
pub struct TensorTarget {
    path: PathBuf,
    /// `true` if an existing file must stay as it is.
    keeps: bool,
}

impl TensorTarget {
    /// Checks `path` before any work is done. With `keeps`, an existing file is never overwritten.
    ///
    /// Errors if the path is a folder, a device, a pipe or a socket, if it exists and `keeps` is set, or if the folder
    /// does not exist or is not writable.
    pub fn new(path: &Path, keeps: bool) -> Result<Self> {
        // Links are followed, as by every program that writes to an open file; a dangling link stays as it is.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let target = Self { path, keeps };
        match fs::symlink_metadata(&target.path) {
            Ok(_) if keeps => Err(already_there(&target.path)),
            Ok(found) if !found.is_file() => {
                Err(Error::usage(format!("`{}` exists and is not a file", target.path.display()))
                    .at_path(&target.path)
                    .hint("name a file that ends with .gguf or .safetensors"))
            }
            _ => atomic::check(&target.path).map_err(|e| target.cannot_write(&e)).map(|()| target),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn cannot_write(&self, cause: &io::Error) -> Error {
        cannot_write("weights", &self.path, cause)
    }
}

/// A tensor file that is being written. It gets its final name when it is complete, and is removed on drop otherwise.
pub struct TensorWriter {
    file: AtomicFile,
    target: TensorTarget,
    /// The byte range of each tensor that is still to be written.
    places: HashMap<String, Range<u64>>,
    bytes: u64,
}

impl TensorWriter {
    /// Creates a file of `bytes` bytes and writes its header; the tensors belong at `places`.
    fn new(target: &TensorTarget, header: &[u8], places: HashMap<String, Range<u64>>, bytes: u64) -> Result<Self> {
        let failed = |e: io::Error| target.cannot_write(&e);
        let mut file = AtomicFile::create(&target.path).map_err(failed)?;
        file.write_all(header).map_err(failed)?;
        // The gaps between tensors are zeros.
        file.set_len(bytes).map_err(failed)?;
        Ok(Self { file, target: target.clone(), places, bytes })
    }

    /// Writes the bytes of a tensor.
    ///
    /// Errors if they cannot be stored.
    ///
    /// Panics if there is no such tensor, it has already been written, or it has another number of bytes.
    pub fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let place = self.places.remove(name).unwrap_or_else(|| panic!("tensor `{name}` is not in the header"));
        assert_eq!(place.end - place.start, bytes.len() as u64, "bytes of `{name}`");
        let written = self.file.seek(SeekFrom::Start(place.start)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|e| self.target.cannot_write(&e))
    }

    /// Gives the file its final name, and returns its size.
    ///
    /// Errors if the file cannot be stored completely, or the target cannot be replaced.
    ///
    /// Panics if a tensor has not been written.
    pub fn commit(self) -> Result<u64> {
        assert!(self.places.is_empty(), "not written: {:?}", self.places.keys());
        let Self { file, target, bytes, .. } = self;
        let done = if target.keeps { file.commit_new() } else { file.commit() };
        done.map_err(|e| target.cannot_write(&e)).map(|()| bytes)
    }
}
