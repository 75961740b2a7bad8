//! Who may enqueue work on the compute stream, and capturing it.
//!
//! A thread that enqueues holds a [`Submission`], from its check that nobody captures to the end of the driver's call.
//! One that captures holds it throughout, so that what it captures is its own work alone: a launch of another thread is
//! enqueued before or behind it. Waiting for the device needs no submission.

use std::ptr;
use std::sync::atomic::Ordering;

use cudarc::driver::{DriverError, result, sys};
use parking_lot::ReentrantMutexGuard;

use super::captures::{Capturing, outside_captures, unless_capturing, while_capturing};
use super::device::{Device, Stream};
use super::driver::failed;
use crate::error::{Error, Result};

/// While it lives, no other thread enqueues work on the compute stream. A thread may have several.
#[must_use]
pub struct Submission<'a> {
    /// None for streams on which nothing is captured.
    _order: Option<ReentrantMutexGuard<'a, ()>>,
}

impl Device {
    /// Makes the context current on this thread, for calls that enqueue work on `stream` while the result lives. Waits
    /// while another thread captures.
    ///
    /// It is taken before every other lock of this backend that another thread may need while it captures.
    pub fn submit(&self, stream: Stream) -> Result<Submission<'_>> {
        let order = (stream == self.stream()).then(|| self.submission.lock());
        self.make_current()?;
        Ok(Submission { _order: order })
    }

    /// From here on the compute stream captures the work of this thread instead of doing it.
    pub fn begin_capture(&self) -> Result<Capture<'_>> {
        let submission = self.submit(self.stream())?;
        let captures = while_capturing();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the device. Nobody else enqueues on it while `submission` lives.
        unsafe { result::stream::begin_capture(self.stream().raw(), mode) }
            .map_err(|e| failed("cannot capture GPU work", e))?;
        self.capturing.store(true, Ordering::Relaxed);
        Ok(Capture { device: Some(self), _captures: captures, _submission: submission })
    }

    /// Runs `work`, which no capture of this process would survive, while nobody captures; does nothing where this
    /// thread does. The caller has no submission: others may need one before they are done with what they capture.
    pub fn between_captures(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        loop {
            {
                let _submission = self.submit(self.stream())?;
                if self.is_capturing() {
                    return Ok(());
                }
                if let Some(_none) = unless_capturing() {
                    return work();
                }
            }
            // Not with the submission: a rank that captures may wait for what this device is to capture.
            drop(outside_captures());
        }
    }

    /// Whether the compute stream captures work instead of doing it: of a thread that has a submission, its own.
    pub fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed)
    }
}

/// The compute stream captures. It stops when this is dropped, also by a panic.
pub struct Capture<'a> {
    device: Option<&'a Device>,
    _captures: Capturing<'static>,
    _submission: Submission<'a>,
}

impl Capture<'_> {
    /// What was captured.
    pub fn end(mut self) -> Result<Captured> {
        self.stop().unwrap_or_else(|| Err(Error::new("nothing was captured")))
    }

    fn stop(&mut self) -> Option<Result<Captured>> {
        let device = self.device.take()?;
        // SAFETY: the stream lives as long as the device; it leaves capturing also where that was disturbed.
        let graph = unsafe { result::stream::end_capture(device.stream().raw()) };
        device.capturing.store(false, Ordering::Relaxed);
        Some(graph.map(Captured).map_err(|e| failed("cannot capture GPU work", e)))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// What the driver captured, until it is made executable.
pub struct Captured(sys::CUgraph);

impl Captured {
    /// The driver's handle.
    pub fn raw(&self) -> sys::CUgraph {
        self.0
    }

    /// The nodes of the graph.
    pub fn nodes(&self) -> Result<Vec<sys::CUgraphNode>> {
        // SAFETY: the graph lives; the driver writes as many nodes as the list has room for.
        let nodes = all_of(|nodes, count| unsafe { sys::cuGraphGetNodes(self.raw(), nodes, count) })?;
        Ok(nodes.unwrap_or_default())
    }

    /// Takes a node out: what waited for it waits for what it waited for. Leaves it in where an edge is of a kind that
    /// has no name here.
    pub fn bypass(&self, node: sys::CUgraphNode) -> Result<()> {
        // SAFETY: the node lives. Without a list for them the driver tells of edges that have data.
        let before =
            all_of(|nodes, count| unsafe { sys::cuGraphNodeGetDependencies_v2(node, nodes, ptr::null_mut(), count) })?;
        // SAFETY: as above.
        let behind = all_of(|nodes, count| unsafe {
            sys::cuGraphNodeGetDependentNodes_v2(node, nodes, ptr::null_mut(), count)
        })?;
        let (Some(before), Some(behind)) = (before, behind) else { return Ok(()) };
        let cannot = |e| failed("cannot change a graph of GPU work", e);
        // SAFETY: the node lives, and is used no more.
        unsafe { sys::cuGraphDestroyNode(node) }.result().map_err(cannot)?;
        for from in &before {
            for to in &behind {
                // SAFETY: both nodes are of this graph; there is one edge, without data.
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

/// A list of nodes that `fill` writes; none where there is more to say of them than nodes.
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
        Err(e) => Err(failed("cannot read a graph of GPU work", e)),
    }
}
