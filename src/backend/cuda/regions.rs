//! Mapped files that the copy engine reads in place.
//!
//! Pages that the driver knows go up at the speed of the bus, without a copy through pinned memory. Making them known
//! takes about as long as the copy, so a file is registered in regions, by the threads that enqueue the copies, while
//! the engine copies regions before. A driver that declines, or a machine whose memory the pinned pages would fill,
//! leaves the way through slots.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{result, sys};

use super::device::{Device, failed};
use crate::error::Result;
use crate::files::{Bytes, TensorView};

/// Bytes of a region: 1.2 ms of a PCIe 5 bus; a tensor that is not needed costs a region at most.
pub const REGION_BYTES: usize = 64 << 20;
/// The smallest page that a file is mapped in.
const PAGE_BYTES: usize = 4096;
/// Small files go up faster than they are registered.
const LEAST_BYTES: usize = 16 << 20;

/// A part of a mapped file, and whether the driver knows it.
pub struct Region {
    range: Range<usize>,
    file: Arc<Bytes>,
    registered: OnceLock<bool>,
}

/// A mapped file in regions of [`REGION_BYTES`].
pub struct FileRegions {
    file: Arc<Bytes>,
    regions: Vec<Region>,
}

impl FileRegions {
    fn new(file: &Arc<Bytes>) -> Self {
        let len = file.as_slice().len();
        let region = |first| Region {
            range: first..(first + REGION_BYTES).min(len),
            file: Arc::clone(file),
            registered: OnceLock::new(),
        };
        Self { file: Arc::clone(file), regions: (0..len).step_by(REGION_BYTES).map(region).collect() }
    }

    /// Whether `view` lies in this file.
    pub fn is_of(&self, view: &TensorView) -> bool {
        Arc::ptr_eq(&self.file, view.file())
    }

    /// The region of byte `at` of the file.
    pub fn region(&self, at: usize) -> &Region {
        &self.regions[at / REGION_BYTES]
    }
}

/// All that is registered.
pub struct Regions {
    files: Mutex<Vec<Arc<FileRegions>>>,
    pinned: AtomicUsize,
    most_pinned: usize,
    refusal: OnceLock<String>,
    device: Arc<Device>,
}

impl Regions {
    pub fn new(device: &Arc<Device>) -> Self {
        let refusal = OnceLock::new();
        if !device.registers_read_only() {
            let _ = refusal.set("this GPU reads no read-only memory of the host".to_string());
        }
        Self {
            files: Mutex::default(),
            pinned: AtomicUsize::new(0),
            most_pinned: memory_bytes() / 2,
            refusal,
            device: Arc::clone(device),
        }
    }

    /// The mapped files among those of `views`, each once.
    pub fn of_files<'a>(&self, views: impl Iterator<Item = &'a TensorView>) -> Vec<Arc<FileRegions>> {
        let mut known = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used: Vec<Arc<FileRegions>> = Vec::new();
        for view in views {
            let worth = matches!(**view.file(), Bytes::Mapped(_)) && view.file().as_slice().len() >= LEAST_BYTES;
            if !worth || used.iter().any(|file| file.is_of(view)) {
                continue;
            }
            let file = known.iter().find(|file| file.is_of(view)).map(Arc::clone);
            used.push(file.unwrap_or_else(|| {
                known.push(Arc::new(FileRegions::new(view.file())));
                Arc::clone(&known[known.len() - 1])
            }));
        }
        used
    }

    /// Makes the region known to the driver, unless it is. False where it cannot be.
    pub fn register(&self, region: &Region) -> Result<bool> {
        self.device.bind()?;
        Ok(*region.registered.get_or_init(|| {
            let bytes = region.range.len();
            if self.refusal.get().is_some() {
                return false;
            }
            if self.pinned.fetch_add(bytes, Ordering::Relaxed) + bytes > self.most_pinned {
                self.pinned.fetch_sub(bytes, Ordering::Relaxed);
                let _ = self.refusal.set("it would pin more than half of this machine's memory".to_string());
                return false;
            }
            let first = region.address();
            // SAFETY: the pages are mapped as long as `region` holds the file, which is longer than they are
            // registered: `clear` comes before a region is dropped. A map is made of whole pages, so the last may be
            // registered whole. The device only reads.
            let done = unsafe {
                sys::cuMemHostRegister_v2(
                    first.cast(),
                    bytes.next_multiple_of(PAGE_BYTES),
                    sys::CU_MEMHOSTREGISTER_READ_ONLY,
                )
            };
            if let Err(error) = done.result() {
                self.pinned.fetch_sub(bytes, Ordering::Relaxed);
                let _ = self.refusal.set(failed("the driver declined", error).what().to_string());
                return false;
            }
            true
        }))
    }

    /// How weights go up, in words.
    pub fn remark(&self) -> Option<String> {
        let refusal = self.refusal.get()?;
        Some(format!("weights go up through pinned memory, which is slower than from the mapped files: {refusal}"))
    }

    /// Gives back what is registered, unless some of it may still be read.
    pub fn settle(&self) -> Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that enqueues copies holds its files.
        if files.is_empty()
            || files.iter().any(|file| Arc::strong_count(file) > 1)
            || !self.device.is_idle(self.device.upload_stream())?
        {
            return Ok(());
        }
        self.clear(&mut files);
        Ok(())
    }

    fn clear(&self, files: &mut Vec<Arc<FileRegions>>) {
        for region in files.iter().flat_map(|file| &file.regions) {
            if region.registered.get() == Some(&true) {
                // SAFETY: registered above from this address, once; no copy reads it any more. A failure repeats an
                // earlier one of the same context, which its caller has reported.
                let _ = unsafe { sys::cuMemHostUnregister(region.address().cast()) };
            }
        }
        files.clear();
        self.pinned.store(0, Ordering::Relaxed);
    }
}

impl Region {
    fn address(&self) -> *mut u8 {
        self.file.as_slice()[self.range.start..].as_ptr().cast_mut()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the stream lives as long as the device. An error here is one that callers have seen; nothing runs
            // any more then.
            let _ = unsafe { result::stream::synchronize(self.device.upload_stream().raw()) };
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
    fn every_byte_of_a_file_is_in_one_region() {
        let len = 2 * REGION_BYTES + 5;
        let file = Arc::new(Bytes::Embedded(vec![0; len].leak()));
        let regions = FileRegions::new(&file);
        assert_eq!(regions.regions.len(), 3);
        for at in [0, 1, REGION_BYTES - 1, REGION_BYTES, 2 * REGION_BYTES, len - 1] {
            assert!(regions.region(at).range.contains(&at), "{at}");
        }
        assert_eq!(regions.regions[2].range, 2 * REGION_BYTES..len);
    }
}
