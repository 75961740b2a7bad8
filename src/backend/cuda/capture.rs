//! Exclusive access to the compute stream, and graph capture.
//!
//! A thread that enqueues holds a [`Submission`], from its check that no thread captures to the end of the driver's
//! call. A capturing thread holds one throughout, so that it captures only its own work: launches of other threads are
//! enqueued before or after it. Waiting for the device needs no submission.

use std::ptr;
use std::sync::atomic::Ordering;

use cudarc::driver::{DriverError, result, sys};
use parking_lot::ReentrantMutexGuard;

use super::captures::{Capturing, outside_captures, unless_capturing, while_capturing};
use super::device::{Device, Stream};
use super::driver::failed;
use crate::error::{Error, Result};

/// Exclusive right to enqueue on the compute stream while it lives. A thread may hold several.
#[must_use]
pub struct Submission<'a> {
    /// `None` for streams that are never captured.
    _order: Option<ReentrantMutexGuard<'a, ()>>,
}

impl Device {
    /// Makes the context current on this thread, for calls that enqueue work on `stream` while the result lives. Waits
    /// while another thread captures.
    ///
    /// Take it before any other lock of this backend that another thread may need while it captures.
    pub fn submit(&self, stream: Stream) -> Result<Submission<'_>> {
        let order = (stream == self.stream).then(|| self.submission.lock());
        self.make_current()?;
        Ok(Submission { _order: order })
    }

    /// Starts a capture: until it ends, the compute stream records this thread's work instead of running it.
    pub fn begin_capture(&self) -> Result<Capture<'_>> {
        let submission = self.submit(self.stream)?;
        let captures = while_capturing();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the device. No other thread enqueues on it while `submission` lives.
        unsafe { result::stream::begin_capture(self.stream.raw(), mode) }
            .map_err(|e| failed("cannot capture GPU work", e))?;
        self.capturing.store(true, Ordering::Relaxed);
        Ok(Capture { device: Some(self), _captures: captures, _submission: submission })
    }

    /// Runs `work`, which would break any capture of this process, while there is none; does nothing if this thread
    /// captures. The caller must hold no submission: other threads may need one to finish their captures.
    pub fn between_captures(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        loop {
            {
                let _submission = self.submit(self.stream)?;
                if self.is_capturing() {
                    return Ok(());
                }
                if let Some(_none) = unless_capturing() {
                    return work();
                }
            }
            // Wait without the submission: a capturing rank may wait for work that this device has to capture.
            drop(outside_captures());
        }
    }

    /// Returns `true` if the compute stream captures. For a thread that holds a submission, the capture is its own.
    pub fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed)
    }
}

/// A capture of the compute stream. It ends when dropped, also by a panic.
pub struct Capture<'a> {
    device: Option<&'a Device>,
    _captures: Capturing<'static>,
    _submission: Submission<'a>,
}

impl Capture<'_> {
    /// Ends the capture and returns the captured graph.
    pub fn end(mut self) -> Result<Captured> {
        self.stop().unwrap_or_else(|| Err(Error::new("nothing was captured")))
    }

    fn stop(&mut self) -> Option<Result<Captured>> {
        let device = self.device.take()?;
        // SAFETY: the stream lives as long as the device; it stops capturing even if the capture was broken.
        let graph = unsafe { result::stream::end_capture(device.stream.raw()) };
        device.capturing.store(false, Ordering::Relaxed);
        Some(graph.map(Captured).map_err(|e| failed("cannot capture GPU work", e)))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// A captured graph that isn't executable yet.
pub struct Captured(sys::CUgraph);

impl Captured {
    /// Returns the driver's handle.
    pub fn raw(&self) -> sys::CUgraph {
        self.0
    }

    /// Returns the nodes of the graph.
    pub fn nodes(&self) -> Result<Vec<sys::CUgraphNode>> {
        // SAFETY: the graph lives; the driver writes as many nodes as the list has room for.
        let nodes = all_of(|nodes, count| unsafe { sys::cuGraphGetNodes(self.raw(), nodes, count) })?;
        Ok(nodes.unwrap_or_default())
    }

    /// Removes a node and connects its dependents to its dependencies. Keeps the node if one of its edges carries data,
    /// because this code can't copy such an edge.
    pub fn bypass(&self, node: sys::CUgraphNode) -> Result<()> {
        // SAFETY: the node lives. Without a list for edge data, the driver reports edges that have data.
        let before =
            all_of(|nodes, count| unsafe { sys::cuGraphNodeGetDependencies_v2(node, nodes, ptr::null_mut(), count) })?;
        // SAFETY: as above.
        let behind = all_of(|nodes, count| unsafe {
            sys::cuGraphNodeGetDependentNodes_v2(node, nodes, ptr::null_mut(), count)
        })?;
        let (Some(before), Some(behind)) = (before, behind) else { return Ok(()) };
        let cannot = |e| failed("cannot change a CUDA graph", e);
        // SAFETY: the node lives, and isn't used after this.
        unsafe { sys::cuGraphDestroyNode(node) }.result().map_err(cannot)?;
        for from in &before {
            for to in &behind {
                // SAFETY: both nodes belong to this graph; there is one edge, without data.
                unsafe { sys::cuGraphAddDependencies_v2(self.raw(), from, to, ptr::null(), 1) }
                    .result()
                    .map_err(cannot)?;
            }
        }
        Ok(())
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

/// Returns the list of nodes that `fill` writes; `None` if the driver has more to report than nodes.
fn all_of(fill: impl Fn(*mut sys::CUgraphNode, *mut usize) -> sys::CUresult) -> Result<Option<Vec<sys::CUgraphNode>>> {
    let mut count = 0;
    let mut done = fill(ptr::null_mut(), &mut count).result();
    let mut nodes = vec![ptr::null_mut(); count];
    if done.is_ok() && count > 0 {
        done = fill(nodes.as_mut_ptr(), &mut count).result();
    }
    match done {
        Ok(()) => Ok(Some(nodes)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_LOSSY_QUERY)) => Ok(None),
        Err(e) => Err(failed("cannot read a CUDA graph", e)),
    }
}
