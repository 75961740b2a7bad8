//! Memory on the device: stream-ordered allocation under the budget. Captured work gets its memory from the
//! [`Arena`](super::memory::Arena), whose blocks count as used as long as it has them.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::device::{Device, Stream};
use super::driver::failed;
use super::element::Element;
use super::event::Event;
use super::memory::ArenaPlace;
use super::pools::{Pools, Use};
use crate::error::Result;

/// As far as the driver aligns an allocation.
const SCALES_ALIGNMENT: usize = 256;

/// Bytes from the first of so many quantised values to the first scale.
pub fn scales_offset(values: usize) -> usize {
    values.next_multiple_of(SCALES_ALIGNMENT)
}

/// What the values of a buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferKind {
    /// Activations and weights.
    Bf16,
    /// The same in fp16; see [`Element`].
    F16,
    /// Rope tables, statistics, scores.
    F32,
    /// Weights and activations of fp8 products, with a float32 scale for each row; see [`Buffer::quantised`].
    E4m3,
    /// The same of int8 products, each `group` columns of whose rows were rotated; see [`crate::files::int8`].
    Int8 { group: usize },
    /// Weights of int8 products in 4 bits, rows of bytes with a float32 scale for each; see [`crate::files::w4a8`].
    W4a8 { group: usize },
    /// Bytes without a type: workspaces and images.
    Byte,
}

impl BufferKind {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            BufferKind::Bf16 | BufferKind::F16 => 2,
            BufferKind::F32 => 4,
            BufferKind::E4m3 | BufferKind::Int8 { .. } | BufferKind::W4a8 { .. } | BufferKind::Byte => 1,
        }
    }
}

impl BufferKind {
    /// What activations are that products with weights of this kind read.
    pub fn of_operands(self) -> Self {
        match self {
            BufferKind::W4a8 { group } => BufferKind::Int8 { group },
            kind => kind,
        }
    }
}

impl Element {
    /// What buffers of it hold.
    pub fn kind(self) -> BufferKind {
        match self {
            Self::Bf16 => BufferKind::Bf16,
            Self::F16 => BufferKind::F16,
        }
    }
}

/// Memory on the device. Dropping it frees it behind all work enqueued so far on the compute stream, and on the stream
/// of its first use.
pub struct Buffer {
    address: sys::CUdeviceptr,
    stream: Stream,
    bytes: usize,
    kind: BufferKind,
    /// Its block, where the arena lent it.
    block: Option<usize>,
    scales: sys::CUdeviceptr,
    device: Arc<Device>,
}

impl Buffer {
    /// Memory for `len` values, not initialised, usable on the compute stream at once.
    pub fn new(device: &Arc<Device>, kind: BufferKind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        // Not inside the match, which would hold the lock.
        let place = device.arena().request(bytes)?;
        let (address, block) = match place {
            ArenaPlace::Elsewhere => (allocate(device, device.stream(), Use::Work, bytes)?, None),
            ArenaPlace::Block(block, address) => (address, Some(block)),
            ArenaPlace::New(whole) => {
                let address = allocate(device, device.stream(), Use::Work, whole)?;
                (address, Some(device.arena().add(address, whole)))
            }
        };
        Ok(Self::at(device, device.stream(), address, bytes, kind, block))
    }

    /// Memory whose first use is on `stream`. The compute stream has to wait for that use.
    pub fn on_stream(device: &Arc<Device>, stream: Stream, kind: BufferKind, len: usize) -> Result<Self> {
        Self::with_use(device, stream, Use::Work, kind, len)
    }

    /// As [`Buffer::on_stream`], for weights, which stay.
    pub fn of_weights(device: &Arc<Device>, stream: Stream, kind: BufferKind, len: usize) -> Result<Self> {
        Self::with_use(device, stream, Use::Weights, kind, len)
    }

    fn with_use(device: &Arc<Device>, stream: Stream, purpose: Use, kind: BufferKind, len: usize) -> Result<Self> {
        let bytes = bytes_of(device, kind, len)?;
        let address = allocate(device, stream, purpose, bytes)?;
        Ok(Self::at(device, stream, address, bytes, kind, None))
    }

    fn at(
        device: &Arc<Device>,
        stream: Stream,
        address: sys::CUdeviceptr,
        bytes: usize,
        kind: BufferKind,
        block: Option<usize>,
    ) -> Self {
        Self { address, stream, bytes, kind, block, scales: 0, device: Arc::clone(device) }
    }

    /// Memory for `rows` rows of `stride` quantised values, and behind them the rows' scales; as [`Buffer::new`].
    pub fn quantised(device: &Arc<Device>, kind: BufferKind, rows: usize, stride: usize) -> Result<Self> {
        let values = scales_offset(rows * stride);
        Self::new(device, kind, values + rows * BufferKind::F32.size()).map(|buffer| buffer.with_scales(values))
    }

    /// As [`Buffer::quantised`] and [`Buffer::of_weights`].
    pub fn quantised_weight(
        device: &Arc<Device>,
        stream: Stream,
        kind: BufferKind,
        rows: usize,
        stride: usize,
    ) -> Result<Self> {
        let values = scales_offset(rows * stride);
        Self::of_weights(device, stream, kind, values + rows * BufferKind::F32.size())
            .map(|buffer| buffer.with_scales(values))
    }

    /// Memory for a copy of the weight in `other`, which may be of another GPU; as [`Buffer::of_weights`].
    pub fn for_copy(device: &Arc<Device>, stream: Stream, other: &Self) -> Result<Self> {
        let buffer = Self::of_weights(device, stream, other.kind, other.bytes / other.kind.size())?;
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

    /// Device address of the first value; a multiple of 256.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    /// The GPU that has it.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the values are.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    /// Device address of the first row's scale; only quantised rows have any.
    pub fn scales(&self) -> sys::CUdeviceptr {
        self.scales
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.block {
            None => free(&self.device, self.stream, self.address, self.bytes),
            Some(block) => {
                let gone = self.device.arena().release(block);
                gone.into_iter().for_each(|(address, bytes)| free(&self.device, self.stream, address, bytes));
            }
        }
    }
}

impl Device {
    /// Gives a share of the arena back, and the memory with the last.
    pub fn leave_arena(self: &Arc<Self>) {
        let gone = self.arena().leave();
        gone.into_iter().for_each(|(address, bytes)| free(self, self.stream(), address, bytes));
    }
}

/// Bytes of `len` values. The driver refuses zero bytes; tensors without rows exist.
fn bytes_of(device: &Device, kind: BufferKind, len: usize) -> Result<usize> {
    len.checked_mul(kind.size()).map(|bytes| bytes.max(1)).ok_or_else(|| device.budget().full(u64::MAX))
}

/// Memory whose first use is on `stream`, counted.
fn allocate(device: &Device, stream: Stream, purpose: Use, bytes: usize) -> Result<sys::CUdeviceptr> {
    if !device.budget().reserve(bytes as u64) {
        return Err(device.budget().full(bytes as u64));
    }
    let address = device.allocate(stream, purpose, bytes).inspect_err(|_| device.budget().release(bytes as u64))?;
    device.counters().allocations.add(1);
    Ok(address)
}

/// Frees what [`allocate`] returned for `stream`, behind all work enqueued so far on the compute stream and on that
/// one.
fn free(device: &Arc<Device>, stream: Stream, address: sys::CUdeviceptr, bytes: usize) {
    device.budget().release(bytes as u64);
    let compute = device.stream();
    let Ok(_submission) = device.submit(compute) else { return };
    if stream != compute && Event::new(device, compute).and_then(|event| event.make_wait(stream)).is_err() {
        return; // memory that nobody reuses does less harm than memory that is reused too early
    }
    // SAFETY: `address` came from `allocate` and is freed once. Tensors that view it hold the buffer, so no work that
    // uses it is enqueued later; work enqueued before is ordered before the free (`free_sync` waits for it).
    let freed = unsafe {
        if device.pools().is_some() { result::free_async(address, stream.raw()) } else { result::free_sync(address) }
    };
    // A failure here repeats an earlier one of the same context, which its caller has reported.
    let _ = freed;
}

impl Device {
    /// Memory from the driver, usable on `stream`. What the driver holds for it stays under the cap.
    fn allocate(&self, stream: Stream, purpose: Use, bytes: usize) -> Result<sys::CUdeviceptr> {
        let submission = self.submit(stream)?;
        let full = |e: DriverError| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => self.budget().full(bytes as u64),
            _ => failed("cannot allocate GPU memory", e),
        };
        let Some(pools) = self.pools() else {
            // SAFETY: `submit` made the context current.
            return unsafe { result::malloc_sync(bytes) }.map_err(full);
        };
        let pool = pools.of(purpose, bytes);
        // SAFETY: `stream` belongs to the context that `submit` made current, the pool to its device. The memory is
        // used by work on that stream, or behind an event on it.
        let allocate = || unsafe { result::mem_pool::alloc_async(pool, bytes, stream.raw()) };
        match allocate() {
            Ok(address) if pools.bytes()? <= self.budget().cap_of_pool() => return Ok(address),
            Ok(address) => {
                // SAFETY: allocated above on this stream, and used by nobody.
                unsafe { result::free_async(address, stream.raw()) }.map_err(full)?;
            }
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {}
            Err(e) => return Err(full(e)),
        }
        // What was freed is fragments, or waits for work that is still enqueued: the pool gives back what it can, once.
        drop(submission);
        self.trim(pools)?;
        let submission = self.submit(stream)?;
        let address = allocate().map_err(full)?;
        if pools.bytes()? > self.budget().cap_of_pool() {
            // SAFETY: as above.
            unsafe { result::free_async(address, stream.raw()) }.map_err(full)?;
            drop(submission);
            self.trim(pools)?;
            return Err(self.budget().full(bytes as u64));
        }
        Ok(address)
    }

    /// What the driver holds for tensors and graphs, in use or not.
    pub fn reserved_bytes(&self) -> Result<u64> {
        let of_pool = self.pools().map_or(Ok(self.budget().used() - self.budget().outside()), Pools::bytes)?;
        Ok(of_pool + self.budget().outside())
    }

    /// What of the GPU's memory is free, or the pool's: what is taken beside the pool lessens it.
    pub fn free_or_pooled_bytes(&self) -> Result<u64> {
        let (free, _) = result::mem_get_info().map_err(|e| failed("cannot ask for GPU memory", e))?;
        Ok(free as u64 + self.pools().map_or(Ok(0), Pools::bytes)?)
    }

    /// Waits for all work, and gives back to the system what the pools hold and nobody uses.
    fn trim(&self, pools: &Pools) -> Result<()> {
        self.between_captures(|| {
            for stream in [self.stream(), self.upload_stream(), self.block_stream()] {
                // SAFETY: the streams live as long as the device.
                unsafe { result::stream::synchronize(stream.raw()) }.map_err(|e| failed("GPU work failed", e))?;
            }
            pools.trim()
        })
    }
}
