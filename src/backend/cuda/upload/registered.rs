//! Registered host memory: mapped files, and pages of computed weights, that the copy engine reads in place.
//!
//! Registered pages are uploaded at the speed of the bus, without a copy through pinned memory. Registration takes
//! about as long as the copy, so a file is registered in chunks, by the threads that enqueue the copies, while the
//! engine copies earlier chunks. On hosts with the cores to fill staging buffers instead, a chunk is registered when it
//! is read for the second time. GPUs that load the same file share its registration: a chunk is pinned once, by the
//! first that needs it. A chunk that the driver declines, or that would pin too much of this machine's memory, goes
//! through staging buffers, and later chunks are tried again.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use cudarc::driver::{result, sys};
use parking_lot::Mutex;

use crate::backend::cuda::device::Device;
use crate::backend::cuda::driver::failed;
use crate::error::Result;
use crate::files::{Bytes, TensorView};

/// Bytes of a chunk: 1.2 ms of a PCIe 5 bus; an unused tensor costs a chunk at most.
pub const CHUNK_BYTES: usize = 64 << 20;
/// The smallest page size of a mapped file.
const PAGE_BYTES: usize = 4096;
/// Small files are uploaded faster than they are registered.
const MIN_BYTES: usize = 16 << 20;
/// The limit for computed weights, which have pages for each tensor.
const MIN_BYTES_OF_PAGES: usize = 1 << 20;
/// For all GPUs, which only read the pages.
const FLAGS: u32 = sys::CU_MEMHOSTREGISTER_READ_ONLY | sys::CU_MEMHOSTREGISTER_PORTABLE;

/// Files with chunks that a device holds. Locked while one is added, or released and unregistered, so that pages are
/// never registered twice.
static SHARED: Mutex<Vec<Weak<SharedFile>>> = Mutex::new(Vec::new());
/// Pinned pages of all files.
static PINNED: LazyLock<Pinned> =
    LazyLock::new(|| Pinned { bytes: AtomicUsize::new(0), max_bytes: memory_bytes() / 2 });

/// A part of a mapped file, and its registration.
pub struct Chunk {
    range: Range<usize>,
    file: Arc<Bytes>,
    /// The device that registered it, kept alive until it is unregistered, or the reason that it was declined.
    registered: OnceLock<std::result::Result<Arc<Device>, String>>,
}

/// A mapped file in chunks of [`CHUNK_BYTES`], shared by all devices.
struct SharedFile {
    file: Arc<Bytes>,
    chunks: Vec<Chunk>,
}

/// One device's handle to a mapped file.
pub struct MappedFile {
    shared: Arc<SharedFile>,
    /// Bytes of each chunk that this device has read, including repeated reads.
    read: Vec<AtomicUsize>,
}

impl SharedFile {
    fn new(file: &Arc<Bytes>) -> Self {
        let len = file.as_slice().len();
        let chunk = |first| Chunk {
            range: first..(first + CHUNK_BYTES).min(len),
            file: Arc::clone(file),
            registered: OnceLock::new(),
        };
        Self { file: Arc::clone(file), chunks: (0..len).step_by(CHUNK_BYTES).map(chunk).collect() }
    }
}

impl MappedFile {
    /// Returns a handle to the shared file.
    fn for_file(file: &Arc<Bytes>) -> Self {
        let mut shared = SHARED.lock();
        shared.retain(|other| other.strong_count() > 0);
        let known = shared.iter().filter_map(Weak::upgrade).find(|other| Arc::ptr_eq(&other.file, file));
        let shared = known.unwrap_or_else(|| {
            let made = Arc::new(SharedFile::new(file));
            shared.push(Arc::downgrade(&made));
            made
        });
        let read = shared.chunks.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { shared, read }
    }

    /// Returns `true` if `view` is in this file.
    pub fn is_of(&self, view: &TensorView) -> bool {
        Arc::ptr_eq(&self.shared.file, view.file())
    }

    /// Returns the chunk of byte `at` of the file.
    pub fn chunk(&self, at: usize) -> &Chunk {
        &self.shared.chunks[at / CHUNK_BYTES]
    }

    /// Returns `true` if this device has read at least as many bytes of the chunk of byte `at` as it has.
    pub fn was_read(&self, at: usize) -> bool {
        self.read[at / CHUNK_BYTES].load(Ordering::Relaxed) >= self.chunk(at).range.len()
    }

    /// Counts the bytes of `view`, which is in this file, as read.
    pub fn mark_read(&self, view: &TensorView) {
        self.mark_range(view.start()..view.start() + view.bytes().len());
    }

    fn mark_range(&self, range: Range<usize>) {
        let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
        for (chunk, read) in chunks.clone().zip(&self.read[chunks]) {
            let of_chunk = &self.shared.chunks[chunk].range;
            let bytes = range.end.min(of_chunk.end).saturating_sub(range.start.max(of_chunk.start));
            read.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Pinned bytes of the host's memory, and their max.
struct Pinned {
    bytes: AtomicUsize,
    max_bytes: usize,
}

impl Pinned {
    fn reserve(&self, bytes: usize) -> bool {
        let fits = |pinned: usize| pinned.checked_add(bytes).filter(|sum| *sum <= self.max_bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The files with chunks that a device holds.
pub struct RegisteredFiles {
    files: Mutex<Vec<Arc<MappedFile>>>,
    /// The reason that nothing can be registered.
    unsupported: OnceLock<String>,
    /// The reason that the first declined chunk was declined.
    declined: OnceLock<String>,
    device: Arc<Device>,
}

impl RegisteredFiles {
    pub fn new(device: &Arc<Device>) -> Self {
        let unsupported = OnceLock::new();
        if !device.registers_read_only() {
            let _ = unsupported.set("this GPU cannot read read-only host memory".to_string());
        }
        Self { files: Mutex::default(), unsupported, declined: OnceLock::new(), device: Arc::clone(device) }
    }

    /// Returns the mapped files of `views`, each once.
    pub fn mapped_files<'a>(&self, views: impl Iterator<Item = &'a TensorView>) -> Vec<Arc<MappedFile>> {
        let mut known = self.files.lock();
        let mut used: Vec<Arc<MappedFile>> = Vec::new();
        for view in views {
            let least = match **view.file() {
                Bytes::Mapped(_) => MIN_BYTES,
                Bytes::Pages(_) | Bytes::Read(_) => MIN_BYTES_OF_PAGES,
                Bytes::Embedded(_) | Bytes::Computed(_) | Bytes::Owned(_) => usize::MAX,
            };
            if view.file().as_slice().len() < least || used.iter().any(|file| file.is_of(view)) {
                continue;
            }
            let file = known.iter().find(|file| file.is_of(view)).map(Arc::clone);
            used.push(file.unwrap_or_else(|| {
                known.push(Arc::new(MappedFile::for_file(view.file())));
                Arc::clone(&known[known.len() - 1])
            }));
        }
        used
    }

    /// Registers the chunk with the driver, unless it is registered. Returns `false` if it can't be.
    pub fn register(&self, chunk: &Chunk) -> Result<bool> {
        self.device.make_current()?;
        if self.unsupported.get().is_some() {
            return Ok(false);
        }
        let registered = chunk.registered.get_or_init(|| self.try_to_register(chunk));
        Ok(registered.as_ref().inspect_err(|why| drop(self.declined.set((*why).clone()))).is_ok())
    }

    fn try_to_register(&self, chunk: &Chunk) -> std::result::Result<Arc<Device>, String> {
        let bytes = chunk.range.len();
        if !PINNED.reserve(bytes) {
            return Err("it would pin more than half of this machine's memory".to_string());
        }
        let (first, bytes_of_pages) = (chunk.address(), bytes.next_multiple_of(PAGE_BYTES));
        // SAFETY: the pages are mapped as long as `chunk` holds them, which is longer than they are registered:
        // dropping the chunk unregisters them. A map consists of whole pages, so the last may be registered whole.
        // Devices only read.
        let done = unsafe { sys::cuMemHostRegister_v2(first.cast(), bytes_of_pages, FLAGS) };
        let Err(error) = done.result() else { return Ok(Arc::clone(&self.device)) };
        PINNED.release(bytes);
        let why = failed("the driver declined", error).what().to_string();
        if error.0 == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED {
            let _ = self.unsupported.set(why.clone());
        }
        Err(why)
    }

    /// Describes the way that weights are uploaded, if it is not the fastest.
    pub fn remark(&self) -> Option<String> {
        let (what, why) = match (self.unsupported.get(), self.declined.get()) {
            (Some(why), _) => ("weights", why),
            (None, Some(why)) => ("some weights", why),
            (None, None) => return None,
        };
        Some(format!("{what} are uploaded through staging buffers, which is slower than from the mapped files: {why}"))
    }

    /// Releases the files that nothing on this device holds, unless some of them may still be read. A file's
    /// registration ends when all devices have released it.
    pub fn settle(&self) -> Result<()> {
        let mut files = self.files.lock();
        // A thread that enqueues copies holds its files, and so do streamed blocks.
        let is_held = |file: &Arc<MappedFile>| Arc::strong_count(file) > 1;
        if files.iter().all(is_held)
            || !self.device.is_idle(self.device.upload_stream)?
            || !self.device.is_idle(self.device.block_stream)?
        {
            return Ok(());
        }
        let (held, free) = files.drain(..).partition(is_held);
        *files = held;
        give_back(free);
        Ok(())
    }
}

/// Drops files that no work on their device reads any more.
fn give_back(files: Vec<Arc<MappedFile>>) {
    let _shared = SHARED.lock();
    drop(files);
}

impl Chunk {
    /// Returns `true` if its pages are registered.
    pub fn is_registered(&self) -> bool {
        self.registered.get().is_some_and(std::result::Result::is_ok)
    }

    /// Returns `true` if a disk must read it.
    pub fn is_cold(&self) -> bool {
        self.file.is_cold(self.range.clone())
    }

    fn address(&self) -> *mut u8 {
        self.file.as_slice()[self.range.start..].as_ptr().cast_mut()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(Ok(device)) = self.registered.get() {
            // A failure repeats an earlier one of the same context, which was reported to its caller.
            let _ = device.make_current();
            // SAFETY: registered from this address by this device, once. All devices have released the file, so no copy
            // reads it any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.address().cast()) };
            PINNED.release(self.range.len());
        }
    }
}

impl Drop for RegisteredFiles {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: the stream lives as long as the device. Errors were reported to callers before; after one,
            // nothing runs any more.
            let _ = unsafe { result::stream::synchronize(self.device.upload_stream.raw()) };
            // SAFETY: as above.
            let _ = unsafe { result::stream::synchronize(self.device.block_stream.raw()) };
            give_back(std::mem::take(self.files.get_mut()));
        }
    }
}

/// Returns the size of this machine's memory.
fn memory_bytes() -> usize {
    // SAFETY: two queries without precondition; -1 means unknown.
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
        let mapped = MappedFile::for_file(&file);
        assert_eq!(mapped.shared.chunks.len(), 3);
        for at in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES, len - 1] {
            assert!(mapped.chunk(at).range.contains(&at), "{at}");
        }
        assert_eq!(mapped.shared.chunks[2].range, 2 * CHUNK_BYTES..len);
    }

    #[test]
    fn a_chunk_was_read_once_all_of_it_was() {
        let len = CHUNK_BYTES + 10;
        let mapped = MappedFile::for_file(&Arc::new(Bytes::Embedded(vec![0; len].leak())));
        let read = || [0, CHUNK_BYTES].map(|at| mapped.was_read(at));
        mapped.mark_range(0..CHUNK_BYTES - 1);
        assert_eq!(read(), [false, false]);
        mapped.mark_range(CHUNK_BYTES - 1..CHUNK_BYTES + 5);
        assert_eq!(read(), [true, false], "a range may continue in the next chunk");
        mapped.mark_range(CHUNK_BYTES..CHUNK_BYTES);
        assert_eq!(read(), [true, false], "nothing was read");
        mapped.mark_range(CHUNK_BYTES + 5..len);
        assert_eq!(read(), [true, true]);
    }

    #[test]
    fn devices_share_the_chunks_of_a_file() {
        let [file, other] = [5, 6].map(|len| Arc::new(Bytes::Embedded(vec![0; len].leak())));
        let chunk = |file: &MappedFile| std::ptr::from_ref(file.chunk(0));
        let first = MappedFile::for_file(&file);
        assert_eq!(chunk(&MappedFile::for_file(&file)), chunk(&first));
        assert_ne!(chunk(&MappedFile::for_file(&other)), chunk(&first));
        let gone = Arc::downgrade(&first.shared);
        give_back(vec![Arc::new(first)]);
        assert!(gone.upgrade().is_none());
    }

    #[test]
    fn what_does_not_fit_leaves_room_for_what_does() {
        let pinned = Pinned { bytes: AtomicUsize::new(0), max_bytes: 10 };
        assert!(pinned.reserve(6) && !pinned.reserve(5) && pinned.reserve(4) && !pinned.reserve(1));
        pinned.release(6);
        assert!(pinned.reserve(5) && !pinned.reserve(usize::MAX));
    }
}
