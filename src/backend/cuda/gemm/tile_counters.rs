//! The counters with which kernels of cuBLASLt schedule their tiles.
//!
//! Such a kernel has a few bytes of workspace, which cuBLASLt clears before the launch. In a graph the clear is a node
//! of its own, which keeps the GPU waiting for 5 us. So each captured matrix multiplication has its own counter; the
//! nodes that clear them are removed from the graph, and all counters are cleared together before it.

use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{result, sys};

use crate::backend::cuda::capture::Captured;
use crate::backend::cuda::device::Device;
use crate::backend::cuda::driver::failed;
use crate::error::Result;

/// Bytes of one counter, which cuBLASLt uses as a workspace.
const COUNTER_BYTES: usize = 256;
/// A step of klein 9B has fewer matrix multiplications; further ones keep their nodes.
const COUNTERS: usize = 512;
/// Bytes of all counters.
pub const BYTES: usize = COUNTERS * COUNTER_BYTES;

/// The counters of captured matrix multiplications, in order.
pub struct TileCounters {
    address: u64,
    used: AtomicUsize,
}

impl TileCounters {
    /// Creates counters in [`BYTES`] of memory, which nothing else uses.
    pub fn at(address: u64) -> Self {
        Self { address, used: AtomicUsize::new(0) }
    }

    /// Starts to assign counters for a new capture.
    pub fn begin_capture(&self) {
        self.used.store(0, Ordering::Relaxed);
    }

    /// Returns the address and size of the workspace of the next captured matrix multiplication, with an algorithm that
    /// needs `bytes`; `None` if that is not a counter, or none is left.
    pub fn next(&self, bytes: usize) -> Option<(u64, usize)> {
        let fits = (1..=COUNTER_BYTES).contains(&bytes) && self.used.load(Ordering::Relaxed) < COUNTERS;
        let place = || self.address + (self.used.fetch_add(1, Ordering::Relaxed) * COUNTER_BYTES) as u64;
        fits.then(|| (place(), COUNTER_BYTES))
    }

    /// Removes the nodes from `captured` that clear counters. Pass the result to [`TileCounters::clear`] before every
    /// launch of it.
    ///
    /// Errors as the driver does.
    pub fn take_over(&self, captured: &Captured) -> Result<Cleared> {
        let end = self.address + BYTES as u64;
        for node in captured.nodes()? {
            if cleared_by(node)?.is_some_and(|place| (self.address..end).contains(&place)) {
                captured.bypass(node)?;
            }
        }
        Ok(Cleared { bytes: self.used.load(Ordering::Relaxed) * COUNTER_BYTES })
    }

    /// Clears the counters of captured work, by work on the compute stream.
    pub fn clear(&self, device: &Device, Cleared { bytes }: Cleared) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _submission = device.submit(device.stream)?;
        // SAFETY: the counters have this size; their users are on this stream.
        unsafe { result::memset_d8_async(self.address, 0, bytes, device.stream.raw()) }
            .map_err(|e| failed("cannot clear GPU memory", e))
    }
}

/// The counters of captured work: the first bytes of all counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cleared {
    bytes: usize,
}

/// Returns the address of a node that fills memory with zeros.
fn cleared_by(node: sys::CUgraphNode) -> Result<Option<u64>> {
    let cannot = |e| failed("cannot read a CUDA graph", e);
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the node belongs to a graph that lives; the driver writes its type.
    unsafe { sys::cuGraphNodeGetType(node, &mut kind) }.result().map_err(cannot)?;
    if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET {
        return Ok(None);
    }
    let mut filled = sys::CUDA_MEMSET_NODE_PARAMS { dst: 0, pitch: 0, value: 0, elementSize: 0, width: 0, height: 0 };
    // SAFETY: as above, a node of this type.
    unsafe { sys::cuGraphMemsetNodeGetParams(node, &mut filled) }.result().map_err(cannot)?;
    let is_counter = filled.value == 0 && filled.height <= 1;
    let bytes = filled.width * filled.elementSize as usize;
    Ok((is_counter && bytes <= COUNTER_BYTES).then_some(filled.dst))
}
