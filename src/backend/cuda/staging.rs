//! Staging buffers: pinned host memory for transfers between host and device.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use parking_lot::{Mutex, MutexGuard};

use super::destination::Destination;
use super::device::{Device, Stream};
use super::driver::failed;
use super::event::Event;
use crate::error::{Error, Result};

/// Bytes of a staging buffer: 40 us of a PCIe 5 bus, far above the cost of starting a copy. Pinning it takes a
/// millisecond.
pub const STAGING_BYTES: usize = 2 << 20;

/// Pinned host memory, and an event after its last use.
pub struct StagingBuffer {
    host: *mut u8,
    last_use: Event,
}

// SAFETY: the memory belongs to the buffer alone.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    /// Allocates a buffer that is free after the work on `stream` so far.
    pub fn new(device: &Arc<Device>, stream: Stream) -> Result<Self> {
        device.make_current()?;
        // PORTABLE: readable from all contexts. Not write-combined: threads fill it with ordinary stores.
        // SAFETY: the size is not zero; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(STAGING_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .map_err(|e| failed("cannot pin host memory", e))?;
        Ok(Self { host: host.cast(), last_use: Event::new(device, stream)? })
    }

    /// Returns its memory, once the device is done with it.
    pub fn bytes(&mut self) -> Result<&mut [u8]> {
        self.last_use.wait()?;
        // SAFETY: `host` points to STAGING_BYTES bytes that live as long as this; the driver zeroes new pages, so they
        // are initialised; the last copy from or to them is done.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host, STAGING_BYTES) })
    }

    /// Copies its first `len` bytes to the device, by work on `stream`. [`StagingBuffer::bytes`] waits for it.
    ///
    /// Errors if `len` exceeds its size.
    ///
    /// # Safety
    /// `to` has room for `len` bytes in a buffer that lives until work on `stream` is done with it.
    pub unsafe fn copy_to(&self, device: &Device, len: usize, to: Destination, stream: Stream) -> Result<()> {
        check(len)?;
        let _submission = device.submit(stream)?;
        // SAFETY: `len` is at most STAGING_BYTES. No thread writes there before the event that is recorded below.
        let host = unsafe { std::slice::from_raw_parts(self.host, len) };
        // SAFETY: as above; the caller promises the rest.
        unsafe { to.copy(host, stream) }?;
        device.counters.copies.add(1);
        self.last_use.record(stream)
    }

    /// Copies `len` bytes from device address `from` to its beginning, by work on `stream`; otherwise as
    /// [`StagingBuffer::copy_to`].
    ///
    /// # Safety
    /// There are `len` bytes from `from` on in a buffer that lives until work on `stream` is done with it.
    pub unsafe fn copy_from(&mut self, device: &Device, len: usize, from: u64, stream: Stream) -> Result<()> {
        check(len)?;
        let _submission = device.submit(stream)?;
        // SAFETY: `len` is at most STAGING_BYTES. No thread reads there before the event that is recorded below.
        let host = unsafe { std::slice::from_raw_parts_mut(self.host, len) };
        // SAFETY: as above; the caller promises the rest.
        unsafe { result::memcpy_dtoh_async(host, from, stream.raw()) }
            .map_err(|e| failed("cannot copy from the GPU", e))?;
        device.counters.copies.add(1);
        self.last_use.record(stream)
    }

    /// Marks it as in use by work on `stream` so far.
    pub fn in_use_on(&self, stream: Stream) -> Result<()> {
        self.last_use.record(stream)
    }
}

fn check(len: usize) -> Result<()> {
    if len <= STAGING_BYTES {
        Ok(())
    } else {
        Err(Error::new(format!("a staging buffer holds {STAGING_BYTES} bytes, not {len}")))
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        if self.last_use.wait().is_ok() {
            // SAFETY: allocated by `malloc_host`, freed once, and no copy reads it any more.
            let _ = unsafe { result::free_host(self.host.cast()) };
        }
    }
}

/// Staging buffers for one purpose, the most recently used at the end.
pub struct StagingBuffers {
    buffers: Mutex<VecDeque<StagingBuffer>>,
    count: usize,
}

impl StagingBuffers {
    /// Creates none yet; pinning takes time.
    pub fn new(count: usize) -> Self {
        Self { buffers: Mutex::default(), count }
    }

    /// Returns all of them, allocated on first use.
    pub fn made(&self, device: &Arc<Device>) -> Result<MutexGuard<'_, VecDeque<StagingBuffer>>> {
        let mut buffers = self.buffers.lock();
        while buffers.len() < self.count {
            buffers.push_back(StagingBuffer::new(device, device.stream)?);
        }
        Ok(buffers)
    }
}
