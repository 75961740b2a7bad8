//! Device memory: stream-ordered allocation under a cap, with every byte counted. Work that is captured gets its memory
//! from the [`arena`](super::arena), whose blocks count as used as long as it has them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::arena::{Arena, Place};
use super::device::{Device, Event, Stream, failed};
use crate::error::{Error, Result};

const MIB: u64 = 1 << 20;
/// As far as the driver aligns an allocation.
const SCALES_ALIGNMENT: usize = 256;

/// What the values of a buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Activations and weights.
    Bf16,
    /// Rope tables, statistics, scores.
    F32,
    /// Weights and activations of fp8 products, with a float32 scale for each row; see [`Buffer::e4m3`].
    E4m3,
    /// Bytes without a type: workspaces and images.
    Byte,
}

impl Kind {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Kind::Bf16 => 2,
            Kind::F32 => 4,
            Kind::E4m3 | Kind::Byte => 1,
        }
    }
}

/// Bytes in use, the most that were, and how many may be.
pub struct Pool {
    used: AtomicU64,
    peak: AtomicU64,
    cap: u64,
    /// Whether the device has memory pools; all since Pascal have, some virtual GPUs do not.
    stream_ordered: bool,
    arena: Mutex<Arena>,
}

impl Pool {
    pub fn new(cap: u64, stream_ordered: bool) -> Self {
        Self { used: AtomicU64::new(0), peak: AtomicU64::new(0), cap, stream_ordered, arena: Mutex::default() }
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn available(&self) -> u64 {
        self.cap.saturating_sub(self.used())
    }

    pub fn arena(&self) -> MutexGuard<'_, Arena> {
        // Its methods leave it whole.
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `bytes` as used; false when the cap does not allow them.
    fn reserve(&self, bytes: u64) -> bool {
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.cap)
        });
        if let Ok(before) = reserved {
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        reserved.is_ok()
    }

    fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn full(&self, bytes: u64) -> Error {
        let mib = |bytes: u64| bytes.div_ceil(MIB);
        Error::new(format!(
            "out of GPU memory: {} MiB more are needed, {} MiB of {} MiB are in use",
            mib(bytes),
            mib(self.used()),
            mib(self.cap)
        ))
        .hint("ask for a smaller image or batch, or allow more memory with `--gpu-memory`")
    }
}

/// Memory on the device. Dropping it frees it behind all work enqueued so far on the compute stream, and on the stream
/// of its first use.
pub struct Buffer {
    address: sys::CUdeviceptr,
    stream: Stream,
    bytes: usize,
    kind: Kind,
    /// Its block, where the arena lent it.
    block: Option<usize>,
    scales: sys::CUdeviceptr,
    device: Arc<Device>,
}

impl Buffer {
    /// Memory for `len` values, not initialised, usable on the compute stream at once.
    pub fn new(device: &Arc<Device>, kind: Kind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        // Not inside the match, which would hold the lock.
        let place = device.pool().arena().request(bytes)?;
        let (address, block) = match place {
            Place::Elsewhere => (allocate(device, device.stream(), bytes)?, None),
            Place::Block(block, address) => (address, Some(block)),
            Place::New(whole) => {
                let address = allocate(device, device.stream(), whole)?;
                (address, Some(device.pool().arena().add(address, whole)))
            }
        };
        Ok(Self::at(device, device.stream(), address, bytes, kind, block))
    }

    /// Memory whose first use is on `stream`. The compute stream has to wait for that use.
    pub fn on_stream(device: &Arc<Device>, stream: Stream, kind: Kind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        let address = allocate(device, stream, bytes)?;
        Ok(Self::at(device, stream, address, bytes, kind, None))
    }

    fn at(
        device: &Arc<Device>,
        stream: Stream,
        address: sys::CUdeviceptr,
        bytes: usize,
        kind: Kind,
        block: Option<usize>,
    ) -> Self {
        let device = Arc::clone(device);
        Self { address, stream, bytes, kind, block, scales: 0, device }
    }

    /// Memory for `rows` rows of `stride` e4m3 values, and behind them the rows' scales; as [`Buffer::new`].
    pub fn e4m3(device: &Arc<Device>, rows: usize, stride: usize) -> Result<Self> {
        let values = (rows * stride).next_multiple_of(SCALES_ALIGNMENT);
        Self::new(device, Kind::E4m3, values + rows * Kind::F32.size()).map(|buffer| buffer.with_scales(values))
    }

    /// As [`Buffer::e4m3`] and [`Buffer::on_stream`].
    pub fn e4m3_on_stream(device: &Arc<Device>, stream: Stream, rows: usize, stride: usize) -> Result<Self> {
        let values = (rows * stride).next_multiple_of(SCALES_ALIGNMENT);
        Self::on_stream(device, stream, Kind::E4m3, values + rows * Kind::F32.size())
            .map(|buffer| buffer.with_scales(values))
    }

    fn with_scales(mut self, values: usize) -> Self {
        self.scales = self.address + values as u64;
        self
    }

    /// Device address of the first value; a multiple of 256.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the values are.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Device address of the first row's scale; none but that of e4m3 has any.
    pub fn scales(&self) -> sys::CUdeviceptr {
        self.scales
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.block {
            None => free(&self.device, self.stream, self.address, self.bytes),
            Some(block) => {
                let gone = self.device.pool().arena().release(block);
                gone.into_iter().for_each(|(address, bytes)| free(&self.device, self.stream, address, bytes));
            }
        }
    }
}

impl Device {
    /// Gives a share of the arena back, and the memory with the last.
    pub fn leave_arena(self: &Arc<Self>) {
        let gone = self.pool().arena().leave();
        gone.into_iter().for_each(|(address, bytes)| free(self, self.stream(), address, bytes));
    }
}

/// Bytes of `len` values. The driver refuses zero bytes; tensors without rows exist.
fn bytes_of(device: &Device, kind: Kind, len: usize) -> Result<usize> {
    len.checked_mul(kind.size()).map(|bytes| bytes.max(1)).ok_or_else(|| device.pool().full(u64::MAX))
}

/// Memory whose first use is on `stream`, counted.
fn allocate(device: &Device, stream: Stream, bytes: usize) -> Result<sys::CUdeviceptr> {
    if !device.pool().reserve(bytes as u64) {
        return Err(device.pool().full(bytes as u64));
    }
    let allocated = device.bind().and_then(|()| {
        // SAFETY: `stream` belongs to the context that `bind` made current. The memory is used by work on that stream,
        // or behind an event on it.
        let allocated = unsafe {
            if device.pool().stream_ordered {
                result::malloc_async(stream.raw(), bytes)
            } else {
                result::malloc_sync(bytes)
            }
        };
        allocated.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => device.pool().full(bytes as u64),
            _ => failed("cannot allocate GPU memory", e),
        })
    });
    let address = allocated.inspect_err(|_| device.pool().release(bytes as u64))?;
    device.counters().allocations.fetch_add(1, Ordering::Relaxed);
    Ok(address)
}

/// Frees what [`allocate`] returned for `stream`, behind all work enqueued so far on the compute stream and on that
/// one.
fn free(device: &Arc<Device>, stream: Stream, address: sys::CUdeviceptr, bytes: usize) {
    device.pool().release(bytes as u64);
    let compute = device.stream();
    if device.bind().is_err()
        || (stream != compute && Event::new(device, compute).and_then(|event| event.hold(stream)).is_err())
    {
        return; // memory that nobody reuses does less harm than memory that is reused too early
    }
    // SAFETY: `address` came from `allocate` and is freed once. Tensors that view it hold the buffer, so no work that
    // uses it is enqueued later; work enqueued before is ordered before the free (`free_sync` waits for it).
    let freed = unsafe {
        if device.pool().stream_ordered {
            result::free_async(address, stream.raw())
        } else {
            result::free_sync(address)
        }
    };
    // A failure here repeats an earlier one of the same context, which its caller has reported.
    let _ = freed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_never_passed() {
        let pool = Pool::new(10 * MIB, true);
        assert!(pool.reserve(6 * MIB));
        assert!(!pool.reserve(5 * MIB));
        assert!(pool.reserve(4 * MIB));
        pool.release(6 * MIB);
        assert_eq!((pool.used(), pool.peak(), pool.available()), (4 * MIB, 10 * MIB, 6 * MIB));
    }

    #[test]
    fn a_full_pool_says_what_is_needed_and_used() {
        let pool = Pool::new(8 * MIB, true);
        assert!(pool.reserve(5 * MIB));
        let message = pool.full(4 * MIB).to_string();
        assert!(message.contains("4 MiB more are needed, 5 MiB of 8 MiB"), "{message}");
        assert!(message.contains("--gpu-memory"), "{message}");
    }
}
