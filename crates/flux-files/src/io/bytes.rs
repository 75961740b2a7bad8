//! The bytes of a file, mapped, read or embedded in the program, or of computed values.
//!
//! Some file systems refuse shared mappings, such as FUSE with `direct_io`, 9p and vboxsf. Their files are mapped
//! privately, which makes no difference for a read-only map. If that is refused too, they are read into memory.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::io::{page_cache, regular};
use flux_base::error::{Error, Result};

/// The hint for a file that has changed since it was opened.
pub(crate) const CHANGED: &str = "do not change model files while images are generated; run again";

/// The bytes of a file, or of computed values.
pub enum Bytes {
    /// A mapped file.
    Mapped(Mapped),
    /// A file that its file system does not map, read into its own pages.
    Read(Arc<memmap2::Mmap>),
    /// Bytes that are embedded in the program.
    Embedded(&'static [u8]),
    /// Computed float32 values, in the byte order of this machine.
    Computed(Vec<f32>),
    /// Computed bytes, laid out as in a file.
    Owned(Vec<u8>),
    /// Computed bytes in their own pages, which a device may read in place.
    Pages(memmap2::Mmap),
}

/// A mapped file.
pub struct Mapped {
    map: memmap2::Mmap,
    /// The mapped file, for its current length.
    file: File,
}

impl Bytes {
    /// Maps a file, or reads it if its file system does not map it.
    ///
    /// Errors if the file cannot be opened, mapped or read, or is not a regular file.
    pub fn map(path: &Path) -> Result<Self> {
        Self::map_or(path, regular::NAME_ANOTHER)
    }

    /// Maps a file as [`Bytes::map`]. `if_missing` is the hint if there is no file.
    ///
    /// Errors as [`Bytes::map`].
    pub fn map_or(path: &Path, if_missing: &str) -> Result<Self> {
        let file = regular::open(path, if_missing)?;
        Self::from_file(file).map_err(|e| e.at_path(path))
    }

    #[allow(unsafe_code)]
    fn from_file(file: File) -> Result<Self> {
        // SAFETY: the maps are read-only and private to this value. If another process truncates the file while we run,
        // reading past its new end raises SIGBUS and ends the program, which reports the reason if it handles the
        // signal; if another process writes to the file, we compute with what it wrote. Neither breaks memory safety:
        // we return plain numbers, for which every bit pattern is valid.
        let map = unsafe { memmap2::Mmap::map(&file) };
        // SAFETY: as above.
        let map = map.or_else(|_| unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) });
        match map {
            Ok(map) => Ok(Self::Mapped(Mapped { map, file })),
            Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                Err(Error::new(format!("cannot map the weights into memory: {error}"))
                    .hint("raise the address space limit (`ulimit -v`), or copy the model to a local disk"))
            }
            Err(error) => reads::pages(file).map(Self::Read).map_err(|why| {
                Error::new(format!("cannot map the file into memory ({error}) or read it: {why}"))
                    .hint("copy the model to a local disk, or use a machine with more memory")
            }),
        }
    }

    /// Creates `len` bytes in their own pages and passes them to `fill`, which finds zeros.
    ///
    /// Errors if there is no memory, or if `fill` does.
    pub fn filled<T>(
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<T, String>,
    ) -> std::result::Result<(Self, T), String> {
        let no_memory = |e: std::io::Error| format!("needs {len} bytes, more memory than this machine has: {e}");
        let mut pages = memmap2::MmapMut::map_anon(len).map_err(no_memory)?;
        let made = fill(&mut pages)?;
        Ok((Self::Pages(pages.make_read_only().map_err(no_memory)?), made))
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapped) => &mapped.map,
            Bytes::Read(pages) => pages,
            Bytes::Embedded(bytes) => bytes,
            Bytes::Computed(values) => bytemuck::cast_slice(values),
            Bytes::Owned(bytes) => bytes,
            Bytes::Pages(pages) => pages,
        }
    }

    /// Copies the bytes from `start` on into `out`. A mapped file is read directly: page faults of its map read a cold
    /// disk more slowly, and a warm cache too.
    ///
    /// Errors if the file cannot be read, or was cut off.
    ///
    /// # Panics
    /// If `out` extends past the end of the bytes.
    pub fn read_at(&self, start: usize, out: &mut [u8]) -> Result<()> {
        let bytes = &self.as_slice()[start..start + out.len()];
        if let Self::Mapped(Mapped { file, .. }) = self {
            return file
                .read_exact_at(out, start as u64)
                .map_err(|e| Error::new(format!("cannot read the weights: {e}")).hint(CHANGED));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// Returns `true` if reading the range waits for a disk. Systems that do not tell report `false`.
    pub fn is_cold(&self, range: Range<usize>) -> bool {
        match self {
            Self::Mapped(mapped) => page_cache::is_cold(&mapped.map[range]),
            _ => false,
        }
    }

    /// Asks the system to read the page of `at` of a mapped file, and does not wait for it. A cold disk reads several
    /// such pages at once.
    pub fn read_ahead(&self, at: usize) {
        if let Self::Mapped(Mapped { map, .. }) = self {
            // Without the advice, the first access reads the page.
            let _ = map.advise_range(memmap2::Advice::WillNeed, at, 1);
        }
    }

    /// Returns the current length of the file. It differs from the mapped length if the file was changed.
    ///
    /// Errors if the system does not report the length.
    pub fn length_now(&self) -> std::io::Result<u64> {
        match self {
            Bytes::Mapped(mapped) => Ok(mapped.file.metadata()?.len()),
            Bytes::Read(_) | Bytes::Embedded(_) | Bytes::Computed(_) | Bytes::Owned(_) | Bytes::Pages(_) => {
                Ok(self.as_slice().len() as u64)
            }
        }
    }

    /// Returns a note on how the file at `path` was read, if that costs memory.
    pub fn note(&self, path: &Path) -> Option<String> {
        let Self::Read(pages) = self else { return None };
        Some(format!(
            "`{}` was read into memory ({} MB) because its file system cannot map files: on a local disk it needs \
             less memory and opens faster",
            path.display(),
            pages.len().div_ceil(1_000_000)
        ))
    }

    /// Errors if the file's length has changed since it was opened. Reading bytes that were cut off would end the
    /// program.
    pub fn check_length(&self) -> Result<()> {
        let then = self.as_slice().len() as u64;
        let what = match self.length_now() {
            Ok(now) if now == then => return Ok(()),
            Ok(now) => format!("the file had {then} bytes when it was opened, but has {now} now"),
            Err(error) => format!("the file can no longer be read: {error}"),
        };
        Err(Error::new(what).hint(CHANGED))
    }
}

/// Sharing of files that were read into memory.
mod reads {
    use std::io::{self, Read};
    use std::os::unix::fs::MetadataExt;
    use std::sync::Weak;

    use super::*;

    /// The identity of an opened file: two `Bytes` of one file share its pages.
    type Key = (u64, u64, u64, i64, i64);
    static PAGES: Mutex<Vec<(Key, Weak<memmap2::Mmap>)>> = Mutex::new(Vec::new());

    /// Reads the file, or returns its pages if they are already in use.
    pub(super) fn pages(mut file: File) -> io::Result<Arc<memmap2::Mmap>> {
        let found = file.metadata()?;
        let mut known = PAGES.lock();
        known.retain(|(_, pages)| pages.strong_count() > 0);
        let key = (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
        let shared = known.iter().find(|(other, _)| *other == key).and_then(|(_, pages)| pages.upgrade());
        if let Some(pages) = shared {
            return Ok(pages);
        }
        let len = usize::try_from(found.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut pages = memmap2::MmapMut::map_anon(len)?;
        file.read_exact(&mut pages)?;
        let pages = Arc::new(pages.make_read_only()?);
        known.push((key, Arc::downgrade(&pages)));
        Ok(pages)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_cold_page_is_read_ahead() {
        const LEN: usize = 4 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; LEN]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice about an open file.
        let evicted = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let bytes = Bytes::map(&path).unwrap();
        let at = LEN / 2 + 5;
        let page = at..at + 1;
        if evicted != 0 || !bytes.is_cold(page.clone()) {
            println!("skipped: this file system keeps its files in memory");
            return;
        }
        bytes.read_ahead(at);
        let start = Instant::now();
        while bytes.is_cold(page.clone()) {
            assert!(start.elapsed() < Duration::from_secs(20), "the page is still cold");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
