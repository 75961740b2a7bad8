//! Memory on the device: stream-ordered allocation under the budget. Captured work allocates from the
//! [`Arena`](super::memory::Arena), whose blocks count as used as long as the arena has them. Large activations may be
//! in pinned host memory instead; see [`HostBlocks`](super::memory::HostBlocks).

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::captures::outside_captures;
use super::device::{Device, Stream};
use super::driver::failed;
use super::element::Element;
use super::event::Event;
use super::memory::ArenaPlace;
use super::pools::{Pools, Use};
use crate::error::Result;
use crate::memory;

/// The driver's allocation alignment.
const SCALES_ALIGNMENT: usize = 256;

/// Returns the offset in bytes from `values` quantized values to their scales.
pub fn scales_offset(values: usize) -> usize {
    values.next_multiple_of(SCALES_ALIGNMENT)
}

/// The type of the values of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferKind {
    /// Activations and weights.
    Bf16,
    /// Activations and weights in fp16; see [`Element`].
    F16,
    /// Rope tables, statistics, scores.
    F32,
    /// Weights and activations of fp8 matrix multiplications, with a float32 scale for each row; see
    /// [`Buffer::quantized`].
    E4m3,
    /// Weights and activations of int8 matrix multiplications, with a float32 scale for each row, and each `group`
    /// columns rotated; see [`crate::files::int8`].
    Int8 { group: usize },
    /// 4-bit weights of int8 matrix multiplications, rows of bytes with a float32 scale for each; see
    /// [`crate::files::w4a8`].
    W4a8 { group: usize },
    /// Untyped bytes: workspaces and images.
    Byte,
}

impl BufferKind {
    /// Returns the bytes of one value.
    pub fn size(self) -> usize {
        match self {
            BufferKind::Bf16 | BufferKind::F16 => 2,
            BufferKind::F32 => 4,
            BufferKind::E4m3 | BufferKind::Int8 { .. } | BufferKind::W4a8 { .. } | BufferKind::Byte => 1,
        }
    }
}

impl BufferKind {
    /// Returns the type of activations that are multiplied with weights of this type.
    pub fn operand_kind(self) -> Self {
        match self {
            BufferKind::W4a8 { group } => BufferKind::Int8 { group },
            kind => kind,
        }
    }
}

impl Element {
    /// Returns the buffer type of this element.
    pub fn kind(self) -> BufferKind {
        match self {
            Self::Bf16 => BufferKind::Bf16,
            Self::F16 => BufferKind::F16,
        }
    }
}

/// Memory on the device. Dropping it frees it behind all work enqueued so far on the compute stream and on the stream
/// of its first use.
pub struct Buffer {
    address: sys::CUdeviceptr,
    stream: Stream,
    bytes: usize,
    kind: BufferKind,
    source: Source,
    scales: sys::CUdeviceptr,
    device: Arc<Device>,
}

/// The owner of the memory of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The driver.
    Driver,
    /// The arena, with the index of the block.
    Arena(usize),
    /// A block of host memory.
    Host,
}

impl Buffer {
    /// Allocates `len` uninitialized values, usable on the compute stream at once.
    pub fn new(device: &Arc<Device>, kind: BufferKind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        // Outside the match, which would hold the lock.
        let place = device.arena.lock().request(bytes)?;
        let (address, source) = match place {
            ArenaPlace::Elsewhere => (allocate(device, device.stream, Use::Work, bytes)?, Source::Driver),
            ArenaPlace::Block(block, address) => (address, Source::Arena(block)),
            ArenaPlace::New(whole) => {
                let address = allocate(device, device.stream, Use::Work, whole)?;
                (address, Source::Arena(device.arena.lock().add(address, whole)))
            }
        };
        Ok(Self::at(device, device.stream, address, bytes, kind, source))
    }

    /// Allocates `len` uninitialized values in host memory, which work on the compute stream may use.
    pub fn on_host(device: &Arc<Device>, kind: BufferKind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        // Outside the match, which would hold the lock.
        let reused = device.host_blocks.lock().request(bytes);
        let address = match reused {
            Some(address) => address,
            None => allocate_on_host(device, bytes)?,
        };
        Ok(Self::at(device, device.stream, address, bytes, kind, Source::Host))
    }

    /// Allocates memory for first use on `stream`. The compute stream has to wait for that use.
    pub fn on_stream(device: &Arc<Device>, stream: Stream, kind: BufferKind, len: usize) -> Result<Self> {
        Self::with_use(device, stream, Use::Work, kind, len)
    }

    /// As [`Buffer::on_stream`], for weights, which are long-lived.
    pub fn for_weights(device: &Arc<Device>, stream: Stream, kind: BufferKind, len: usize) -> Result<Self> {
        Self::with_use(device, stream, Use::Weights, kind, len)
    }

    fn with_use(device: &Arc<Device>, stream: Stream, purpose: Use, kind: BufferKind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        let address = allocate(device, stream, purpose, bytes)?;
        Ok(Self::at(device, stream, address, bytes, kind, Source::Driver))
    }

    fn at(
        device: &Arc<Device>,
        stream: Stream,
        address: sys::CUdeviceptr,
        bytes: usize,
        kind: BufferKind,
        source: Source,
    ) -> Self {
        Self { address, stream, bytes, kind, source, scales: 0, device: Arc::clone(device) }
    }

    /// Allocates `rows` rows of `stride` quantized values, followed by the rows' scales; as [`Buffer::new`].
    pub fn quantized(device: &Arc<Device>, kind: BufferKind, rows: usize, stride: usize) -> Result<Self> {
        let values = scales_offset(rows * stride);
        Self::new(device, kind, values + rows * BufferKind::F32.size()).map(|buffer| buffer.with_scales(values))
    }

    /// Allocates as [`Buffer::quantized`] and [`Buffer::for_weights`].
    pub fn quantized_weight(
        device: &Arc<Device>,
        stream: Stream,
        kind: BufferKind,
        rows: usize,
        stride: usize,
    ) -> Result<Self> {
        let values = scales_offset(rows * stride);
        Self::for_weights(device, stream, kind, values + rows * BufferKind::F32.size())
            .map(|buffer| buffer.with_scales(values))
    }

    /// Allocates memory for a copy of the weight in `other`, which may be on another GPU; as [`Buffer::for_weights`].
    pub fn for_copy(device: &Arc<Device>, stream: Stream, other: &Self) -> Result<Self> {
        let buffer = Self::for_weights(device, stream, other.kind, other.bytes / other.kind.size())?;
        let scales = other.scales.checked_sub(other.address);
        Ok(match scales {
            Some(scales) => buffer.with_scales(scales as usize),
            None => buffer,
        })
    }

    fn with_scales(mut self, values: usize) -> Self {
        self.scales = self.address + values as u64;
        self
    }

    /// Returns the device address of the first value; a multiple of 256.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    /// Returns `true` if the memory is the host's.
    pub fn is_on_host(&self) -> bool {
        self.source == Source::Host
    }

    /// Returns the GPU of the memory.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the type of the values.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    /// Returns the device address of the first row's scale; only quantized rows have scales.
    pub fn scales(&self) -> sys::CUdeviceptr {
        self.scales
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.source {
            Source::Driver => free(&self.device, self.stream, self.address, self.bytes),
            Source::Arena(block) => {
                let gone = self.device.arena.lock().release(block);
                gone.into_iter().for_each(|(address, bytes)| free(&self.device, self.stream, address, bytes));
            }
            Source::Host => {
                let gone = self.device.host_blocks.lock().release(self.address);
                // A failure here repeats an earlier one.
                let _ = free_on_host(&self.device, gone);
            }
        }
    }
}

impl Device {
    /// Releases a share of the arena, and with the last share the arena's memory.
    pub fn leave_arena(self: &Arc<Self>) {
        let gone = self.arena.lock().leave();
        gone.into_iter().for_each(|(address, bytes)| free(self, self.stream, address, bytes));
    }
}

/// Returns the bytes of `len` values, at least 1: the driver refuses zero bytes, and tensors without rows exist.
fn bytes_of(device: &Device, kind: BufferKind, len: usize) -> Result<usize> {
    len.checked_mul(kind.size()).map(|bytes| bytes.max(1)).ok_or_else(|| device.budget.full(u64::MAX))
}

/// Allocates counted memory for first use on `stream`.
fn allocate(device: &Device, stream: Stream, purpose: Use, bytes: usize) -> Result<sys::CUdeviceptr> {
    if !device.budget.reserve(bytes as u64) {
        return Err(device.budget.full(bytes as u64));
    }
    let address = device.allocate(stream, purpose, bytes).inspect_err(|_| device.budget.release(bytes as u64))?;
    device.counters.allocations.add(1);
    Ok(address)
}

/// Frees memory that [`allocate`] returned for `stream`, behind all work enqueued so far on the compute stream and on
/// `stream`.
fn free(device: &Arc<Device>, stream: Stream, address: sys::CUdeviceptr, bytes: usize) {
    device.budget.release(bytes as u64);
    let compute = device.stream;
    let Ok(_submission) = device.submit(compute) else { return };
    if stream != compute && Event::new(device, compute).and_then(|event| event.make_wait(stream)).is_err() {
        return; // a leak does less harm than memory that is reused too early
    }
    // SAFETY: `address` came from `allocate` and is freed once. Tensors that view it hold the buffer, so no work that
    // uses it is enqueued later; work enqueued before is ordered before the free (`free_sync` waits for it).
    let freed = unsafe {
        if device.pools.as_ref().is_some() {
            result::free_async(address, stream.raw())
        } else {
            result::free_sync(address)
        }
    };
    // A failure here repeats an earlier one of the same context, which its caller has reported.
    let _ = freed;
}

/// Allocates a block of pinned host memory, in place of those that are free.
fn allocate_on_host(device: &Arc<Device>, bytes: usize) -> Result<u64> {
    let free = device.host_blocks.lock().take_free();
    free_on_host(device, free)?;
    let _reservation = memory::reserve(bytes)?;
    device.make_current()?;
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: the size is not zero. `free_on_host` frees it.
    let host = unsafe { result::malloc_host(bytes, flags) }.map_err(|e| failed("cannot pin host memory", e))?;
    // Host and device share one address space in every 64-bit program.
    let address = host as u64;
    device.host_blocks.lock().add(address, bytes);
    Ok(address)
}

/// Frees blocks of pinned host memory, once the work enqueued so far is done. If that work failed, they stay allocated,
/// because the device may still use them.
fn free_on_host(device: &Arc<Device>, addresses: Vec<u64>) -> Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    Event::new(device, device.stream)?.wait()?;
    let _outside = outside_captures();
    let free = |address: u64| {
        // SAFETY: allocated by `allocate_on_host` and freed once. No work uses it: tensors that view it hold the
        // buffer, and the work that was enqueued before is done.
        unsafe { result::free_host(address as *mut c_void) }.map_err(|e| failed("cannot free host memory", e))
    };
    addresses.into_iter().try_for_each(free)
}

impl Device {
    /// Allocates memory from the driver, usable on `stream`. The pools stay below the cap.
    fn allocate(&self, stream: Stream, purpose: Use, bytes: usize) -> Result<sys::CUdeviceptr> {
        let submission = self.submit(stream)?;
        let full = |e: DriverError| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => self.budget.full(bytes as u64),
            _ => failed("cannot allocate GPU memory", e),
        };
        let Some(pools) = self.pools.as_ref() else {
            // SAFETY: `submit` made the context current.
            return unsafe { result::malloc_sync(bytes) }.map_err(full);
        };
        let pool = pools.pool_for(purpose, bytes);
        // SAFETY: `stream` belongs to the context that `submit` made current, the pool to its device. The memory is
        // used by work on that stream, or behind an event on it.
        let allocate = || unsafe { result::mem_pool::alloc_async(pool, bytes, stream.raw()) };
        match allocate() {
            Ok(address) if pools.bytes()? <= self.budget.cap_of_pool() => return Ok(address),
            Ok(address) => {
                // SAFETY: allocated above on this stream, and not used yet.
                unsafe { result::free_async(address, stream.raw()) }.map_err(full)?;
            }
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {}
            Err(e) => return Err(full(e)),
        }
        // The freed memory is fragmented, or waits for enqueued work: trim the pools once, then try again.
        drop(submission);
        self.trim(pools)?;
        let submission = self.submit(stream)?;
        let address = allocate().map_err(full)?;
        if pools.bytes()? > self.budget.cap_of_pool() {
            // SAFETY: as above.
            unsafe { result::free_async(address, stream.raw()) }.map_err(full)?;
            drop(submission);
            self.trim(pools)?;
            return Err(self.budget.full(bytes as u64));
        }
        Ok(address)
    }

    /// Returns the bytes that the driver holds for tensors and graphs, in use or not.
    pub fn reserved_bytes(&self) -> Result<u64> {
        let of_pool = self.pools.as_ref().map_or(Ok(self.budget.used() - self.budget.outside()), Pools::bytes)?;
        Ok(of_pool + self.budget.outside())
    }

    /// Returns the bytes of GPU memory that are free or in the pools: memory taken outside the pools lowers it.
    pub fn free_or_pooled_bytes(&self) -> Result<u64> {
        let (free, _) = result::mem_get_info().map_err(|e| failed("cannot query GPU memory", e))?;
        Ok(free as u64 + self.pools.as_ref().map_or(Ok(0), Pools::bytes)?)
    }

    /// Waits for all work, and returns unused memory of the pools to the system.
    fn trim(&self, pools: &Pools) -> Result<()> {
        self.between_captures(|| {
            for stream in [self.stream, self.upload_stream, self.block_stream] {
                // SAFETY: the streams live as long as the device.
                unsafe { result::stream::synchronize(stream.raw()) }.map_err(|e| failed("GPU work failed", e))?;
            }
            pools.trim()
        })
    }
}
