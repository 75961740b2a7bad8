//! Mapped files, and pages of computed weights, that the copy engine reads in place.
//!
//! Pages that the driver knows go up at the speed of the bus, without a copy through pinned memory. Making them known
//! takes about as long as the copy, so a file is registered in chunks, by the threads that enqueue the copies, while the
//! engine copies chunks before. A chunk that the driver declines, or with which too much of this machine's memory would
//! be pinned, goes through staging buffers, and those behind it are tried again.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{result, sys};

use crate::backend::cuda::device::Device;
use crate::backend::cuda::driver::failed;
use crate::error::Result;
use crate::files::{Bytes, TensorView};

/// Bytes of a chunk: 1.2 ms of a PCIe 5 bus; a tensor that is not needed costs a chunk at most.
pub const CHUNK_BYTES: usize = 64 << 20;
/// The smallest page that a file is mapped in.
const PAGE_BYTES: usize = 4096;
/// Small files go up faster than they are registered.
const LEAST_BYTES: usize = 16 << 20;
/// Computed weights have pages for each tensor.
const LEAST_BYTES_OF_PAGES: usize = 1 << 20;

/// A part of a mapped file, and whether the driver knows it.
pub struct Chunk {
    range: Range<usize>,
    file: Arc<Bytes>,
    registered: OnceLock<bool>,
}

/// A mapped file in chunks of [`CHUNK_BYTES`].
pub struct MappedFile {
    file: Arc<Bytes>,
    chunks: Vec<Chunk>,
}

impl MappedFile {
    fn new(file: &Arc<Bytes>) -> Self {
        let len = file.as_slice().len();
        let chunk = |first| Chunk {
            range: first..(first + CHUNK_BYTES).min(len),
            file: Arc::clone(file),
            registered: OnceLock::new(),
        };
        Self { file: Arc::clone(file), chunks: (0..len).step_by(CHUNK_BYTES).map(chunk).collect() }
    }

    /// Whether `view` lies in this file.
    pub fn is_of(&self, view: &TensorView) -> bool {
        Arc::ptr_eq(&self.file, view.file())
    }

    /// The chunk of byte `at` of the file.
    pub fn chunk(&self, at: usize) -> &Chunk {
        &self.chunks[at / CHUNK_BYTES]
    }
}

/// How much of the host's memory is pinned, and how much may be.
struct Pinned {
    bytes: AtomicUsize,
    most: usize,
}

impl Pinned {
    fn reserve(&self, bytes: usize) -> bool {
        let fits = |pinned: usize| pinned.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// All that is registered.
pub struct RegisteredFiles {
    files: Mutex<Vec<Arc<MappedFile>>>,
    pinned: Pinned,
    /// Why nothing can be registered.
    unsupported: OnceLock<String>,
    /// Why the first chunk that was declined was.
    declined: OnceLock<String>,
    device: Arc<Device>,
}

impl RegisteredFiles {
    pub fn new(device: &Arc<Device>) -> Self {
        let unsupported = OnceLock::new();
        if !device.registers_read_only() {
            let _ = unsupported.set("this GPU reads no read-only memory of the host".to_string());
        }
        Self {
            files: Mutex::default(),
            pinned: Pinned { bytes: AtomicUsize::new(0), most: memory_bytes() / 2 },
            unsupported,
            declined: OnceLock::new(),
            device: Arc::clone(device),
        }
    }

    /// The mapped files among those of `views`, each once.
    pub fn of_files<'a>(&self, views: impl Iterator<Item = &'a TensorView>) -> Vec<Arc<MappedFile>> {
        let mut known = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used: Vec<Arc<MappedFile>> = Vec::new();
        for view in views {
            let least = match **view.file() {
                Bytes::Mapped(_) => LEAST_BYTES,
                Bytes::Pages(_) => LEAST_BYTES_OF_PAGES,
                Bytes::Embedded(_) | Bytes::Computed(_) | Bytes::Owned(_) => usize::MAX,
            };
            if view.file().as_slice().len() < least || used.iter().any(|file| file.is_of(view)) {
                continue;
            }
            let file = known.iter().find(|file| file.is_of(view)).map(Arc::clone);
            used.push(file.unwrap_or_else(|| {
                known.push(Arc::new(MappedFile::new(view.file())));
                Arc::clone(&known[known.len() - 1])
            }));
        }
        used
    }

    /// Makes the chunk known to the driver, unless it is. False where it cannot be.
    pub fn register(&self, chunk: &Chunk) -> Result<bool> {
        self.device.make_current()?;
        Ok(*chunk.registered.get_or_init(|| self.unsupported.get().is_none() && self.try_to_register(chunk)))
    }

    fn try_to_register(&self, chunk: &Chunk) -> bool {
        let bytes = chunk.range.len();
        if !self.pinned.reserve(bytes) {
            let _ = self.declined.set("it would pin more than half of this machine's memory".to_string());
            return false;
        }
        let (first, bytes_of_pages) = (chunk.address(), bytes.next_multiple_of(PAGE_BYTES));
        // SAFETY: the pages are mapped as long as `chunk` holds them, which is longer than they are registered:
        // `clear` comes before a chunk is dropped. A map is made of whole pages, so the last may be registered whole.
        // The device only reads.
        let done =
            unsafe { sys::cuMemHostRegister_v2(first.cast(), bytes_of_pages, sys::CU_MEMHOSTREGISTER_READ_ONLY) };
        let Err(error) = done.result() else { return true };
        self.pinned.release(bytes);
        let unsupported = error.0 == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED;
        let why = if unsupported { &self.unsupported } else { &self.declined };
        let _ = why.set(failed("the driver declined", error).what().to_string());
        false
    }

    /// How weights go up, in words, where it is not the fastest way.
    pub fn remark(&self) -> Option<String> {
        let (what, why) = match (self.unsupported.get(), self.declined.get()) {
            (Some(why), _) => ("weights", why),
            (None, Some(why)) => ("some weights", why),
            (None, None) => return None,
        };
        Some(format!("{what} go up through staging buffers, which is slower than from the mapped files: {why}"))
    }

    /// Gives back what is registered of files that nobody holds, unless some of it may still be read.
    pub fn settle(&self) -> Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that enqueues copies holds its files, and so do blocks that are streamed.
        let is_held = |file: &Arc<MappedFile>| Arc::strong_count(file) > 1;
        if files.iter().all(is_held)
            || !self.device.is_idle(self.device.upload_stream())?
            || !self.device.is_idle(self.device.block_stream())?
        {
            return Ok(());
        }
        let (held, mut free) = files.drain(..).partition(is_held);
        *files = held;
        self.clear(&mut free);
        Ok(())
    }

    fn clear(&self, files: &mut Vec<Arc<MappedFile>>) {
        for chunk in files.iter().flat_map(|file| &file.chunks) {
            if chunk.is_registered() {
                // SAFETY: registered above from this address, once; no copy reads it any more. A failure repeats an
                // earlier one of the same context, which its caller has reported.
                let _ = unsafe { sys::cuMemHostUnregister(chunk.address().cast()) };
                self.pinned.release(chunk.range.len());
            }
        }
        files.clear();
    }
}

impl Chunk {
    /// Whether the driver knows its pages.
    pub fn is_registered(&self) -> bool {
        self.registered.get() == Some(&true)
    }

    fn address(&self) -> *mut u8 {
        self.file.as_slice()[self.range.start..].as_ptr().cast_mut()
    }
}

impl Drop for RegisteredFiles {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: the stream lives as long as the device. An error here is one that callers have seen; nothing runs
            // any more then.
            let _ = unsafe { result::stream::synchronize(self.device.upload_stream().raw()) };
            // SAFETY: as above.
            let _ = unsafe { result::stream::synchronize(self.device.block_stream().raw()) };
            let mut files = std::mem::take(self.files.get_mut().unwrap_or_else(PoisonError::into_inner));
            self.clear(&mut files);
        }
    }
}

/// Memory of this machine.
fn memory_bytes() -> usize {
    // SAFETY: two questions without precondition; -1 stands for an answer that is not known.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_file_is_in_one_chunk() {
        let len = 2 * CHUNK_BYTES + 5;
        let file = Arc::new(Bytes::Embedded(vec![0; len].leak()));
        let mapped = MappedFile::new(&file);
        assert_eq!(mapped.chunks.len(), 3);
        for at in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES, len - 1] {
            assert!(mapped.chunk(at).range.contains(&at), "{at}");
        }
        assert_eq!(mapped.chunks[2].range, 2 * CHUNK_BYTES..len);
    }

    #[test]
    fn what_does_not_fit_leaves_room_for_what_does() {
        let pinned = Pinned { bytes: AtomicUsize::new(0), most: 10 };
        assert!(pinned.reserve(6) && !pinned.reserve(5) && pinned.reserve(4) && !pinned.reserve(1));
        pinned.release(6);
        assert!(pinned.reserve(5) && !pinned.reserve(usize::MAX));
    }
}
