//! The bytes of a file: mapped, or part of the program; or of values that were computed.

use std::fs::File;
use std::path::Path;

use super::regular;
use crate::error::{Error, Result};

/// What to do about a file that is another one than when it was opened.
pub(super) const CHANGED: &str = "leave a model's files as they are while images are made; run again";

/// The bytes of a file: mapped, or part of the program.
pub enum Bytes {
    /// A mapped file.
    Mapped(Mapped),
    /// Bytes that the program carries.
    Embedded(&'static [u8]),
    /// Float32 values that were computed, as a file on this machine would have them.
    Computed(Vec<f32>),
    /// Bytes that were computed, as a file would have them.
    Owned(Vec<u8>),
    /// The same, in pages of their own, which a device may read in place.
    Pages(memmap2::Mmap),
}

/// A mapped file.
pub struct Mapped {
    map: memmap2::Mmap,
    /// The same file, to ask for its length.
    file: File,
}

impl Bytes {
    /// Maps a file.
    ///
    /// Errors when it cannot be opened or mapped, or is no regular file.
    pub fn map(path: &Path) -> Result<Self> {
        Self::map_or(path, regular::NAME_ANOTHER)
    }

    /// [`Bytes::map`]; `if_missing` is what to do where there is no file.
    ///
    /// Errors as it does.
    pub fn map_or(path: &Path, if_missing: &str) -> Result<Self> {
        let file = regular::open(path, if_missing)?;
        Self::of_file(file).map_err(|e| e.at_path(path))
    }

    #[allow(unsafe_code)]
    fn of_file(file: File) -> Result<Self> {
        // SAFETY: the map is read-only and private to this value. If another process truncates the file while we run,
        // reading past its new end raises SIGBUS and ends the program, which tells the reason where it handles the
        // signal; if it writes, we compute with what it wrote. Neither breaks memory safety: we hand out plain numbers,
        // for which every bit pattern is valid.
        let map = unsafe { memmap2::Mmap::map(&file) };
        map.map(|map| Bytes::Mapped(Mapped { map, file })).map_err(Self::cannot_map)
    }

    fn cannot_map(error: std::io::Error) -> Error {
        Error::new(format!("cannot map the weights into memory: {error}"))
            .hint("is address space limited (`ulimit -v`)? otherwise copy the model to a local disk")
    }

    /// `len` bytes that `fill` writes, in pages of their own. `fill` finds zeros.
    ///
    /// Errors when there is no memory, and as `fill` does.
    pub fn filled<T>(
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<T, String>,
    ) -> std::result::Result<(Self, T), String> {
        let no_memory = |e: std::io::Error| format!("takes {len} bytes, which this machine has no memory for: {e}");
        let mut pages = memmap2::MmapMut::map_anon(len).map_err(no_memory)?;
        let made = fill(&mut pages)?;
        Ok((Self::Pages(pages.make_read_only().map_err(no_memory)?), made))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapped) => &mapped.map,
            Bytes::Embedded(bytes) => bytes,
            Bytes::Computed(values) => bytemuck::cast_slice(values),
            Bytes::Owned(bytes) => bytes,
            Bytes::Pages(pages) => pages,
        }
    }

    /// How long the file is now, which is another length where it was changed since it was mapped.
    ///
    /// Errors when the system does not tell.
    pub fn length_now(&self) -> std::io::Result<u64> {
        match self {
            Bytes::Mapped(mapped) => Ok(mapped.file.metadata()?.len()),
            Bytes::Embedded(_) | Bytes::Computed(_) | Bytes::Owned(_) | Bytes::Pages(_) => {
                Ok(self.as_slice().len() as u64)
            }
        }
    }

    /// Errors when the file is not as long as when it was opened. Reading what was cut off would end the program.
    pub fn check_length(&self) -> Result<()> {
        let then = self.as_slice().len() as u64;
        let what = match self.length_now() {
            Ok(now) if now == then => return Ok(()),
            Ok(now) => format!("the file had {then} bytes when it was opened, and has {now} now"),
            Err(error) => format!("the file cannot be read any more: {error}"),
        };
        Err(Error::new(what).hint(CHANGED))
    }
}
