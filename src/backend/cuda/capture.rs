//! Who may enqueue work on the compute stream, and capturing it.
//!
//! A thread that enqueues holds a [`Submission`], from its check that nobody captures to the end of the driver's call.
//! One that captures holds it throughout, so that what it captures is its own work alone: a launch of another thread is
//! enqueued before or behind it. Waiting for the device needs no submission.

use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};
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
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}
