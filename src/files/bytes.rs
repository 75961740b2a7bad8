//! The bytes of a file: mapped, or part of the program.

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result};

/// The bytes of a file: mapped, or part of the program.
pub enum Bytes {
    /// A mapped file.
    Mapped(memmap2::Mmap),
    /// Bytes that the program carries.
    Embedded(&'static [u8]),
}

impl Bytes {
    /// Maps a file.
    ///
    /// Errors when it cannot be opened or mapped.
    #[allow(unsafe_code)]
    pub fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::new(format!("cannot open the weights: {e}")).at_path(path))?;
        // SAFETY: the map is read-only and private to this value. If another process truncates the file while we run,
        // reading past its new end raises SIGBUS and ends the program; if it writes, we compute with what it wrote.
        // Neither breaks memory safety: we hand out plain numbers, for which every bit pattern is valid.
        let map = unsafe { memmap2::Mmap::map(&file) };
        map.map(Bytes::Mapped).map_err(|e| Error::new(format!("cannot map the weights: {e}")).at_path(path))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Embedded(bytes) => bytes,
        }
    }
}
