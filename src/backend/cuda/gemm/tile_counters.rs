//! The counters by which kernels of cuBLASLt hand out their tiles.
//!
//! Such a kernel has a few bytes of workspace, which cuBLASLt clears in front of it. In a graph that is a node of its
//! own, which keeps the GPU waiting for 5 us. So each product that is captured has its own counter; the nodes that
//! clear them are taken out of the graph, and all counters are cleared together in front of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{result, sys};

use crate::backend::cuda::capture::Captured;
use crate::backend::cuda::device::Device;
use crate::backend::cuda::driver::failed;
use crate::error::Result;

/// Bytes from one counter to the next, which cuBLASLt takes as a workspace.
const COUNTER_BYTES: usize = 256;
/// A step of klein 9B has fewer products; those beyond keep their nodes.
const COUNTERS: usize = 512;
/// Bytes of all counters.
pub const BYTES: usize = COUNTERS * COUNTER_BYTES;

/// The counters of products that are captured, in the order of these.
pub struct TileCounters {
    address: u64,
    used: AtomicUsize,
}

impl TileCounters {
    /// Counters in [`BYTES`] of memory, which nothing else uses.
    pub fn at(address: u64) -> Self {
        Self { address, used: AtomicUsize::new(0) }
    }

    /// From here on the products of other work are captured.
    pub fn begin_capture(&self) {
        self.used.store(0, Ordering::Relaxed);
    }

    /// The workspace of the next product that is captured, whose algorithm needs `bytes`, and its size; none where that
    /// is no counter, or none is left.
    pub fn next(&self, bytes: usize) -> Option<(u64, usize)> {
        let fits = (1..=COUNTER_BYTES).contains(&bytes) && self.used.load(Ordering::Relaxed) < COUNTERS;
        let place = || self.address + (self.used.fetch_add(1, Ordering::Relaxed) * COUNTER_BYTES) as u64;
        fits.then(|| (place(), COUNTER_BYTES))
    }

    /// Takes the nodes out of `captured` that clear counters. What [`TileCounters::clear`] does with the result is to
    /// be done in front of every launch of it.
    ///
    /// Errors when the driver does.
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
        let _submission = device.submit(device.stream())?;
        // SAFETY: the counters are so many bytes; what uses them is on this stream.
        unsafe { result::memset_d8_async(self.address, 0, bytes, device.stream().raw()) }
            .map_err(|e| failed("cannot clear GPU memory", e))
    }
}

/// The counters of captured work: the first so many bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cleared {
    bytes: usize,
}

/// The place of a node that fills memory with zeros.
fn cleared_by(node: sys::CUgraphNode) -> Result<Option<u64>> {
    let cannot = |e| failed("cannot read a graph of GPU work", e);
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the node is one of a graph that lives; the driver writes its type.
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
