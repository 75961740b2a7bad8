//! CUDA events: points in the order of work on a stream.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::device::{Device, Stream};
use super::driver::failed;
use crate::error::Result;

/// A point in the order of work on a stream.
pub struct Event {
    event: sys::CUevent,
    device: Arc<Device>,
}

// SAFETY: events may be used from any thread of the context, which `make_current` ensures.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks an event itself.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event after all work on `stream` so far.
    pub fn new(device: &Arc<Device>, stream: Stream) -> Result<Self> {
        device.make_current()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(|e| failed("cannot create a CUDA event", e))?;
        let event = Self { event, device: Arc::clone(device) };
        event.record(stream)?;
        Ok(event)
    }

    /// Records the event again, after all work on `stream` so far.
    pub fn record(&self, stream: Stream) -> Result<()> {
        let _submission = self.device.submit(stream)?;
        // SAFETY: the event lives until `drop`, the stream as long as the device.
        unsafe { result::event::record(self.event, stream.raw()) }.map_err(|e| failed("cannot record a CUDA event", e))
    }

    /// Returns `true` if the work is done; does not wait.
    pub fn is_done(&self) -> Result<bool> {
        self.device.make_current()?;
        // SAFETY: the event lives until `drop`.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(failed("GPU work failed", e)),
        }
    }

    /// Blocks the host until the work is done. Callers that wait on behalf of a user count it.
    pub fn wait(&self) -> Result<()> {
        self.device.make_current()?;
        // SAFETY: the event lives until `drop`.
        unsafe { result::event::synchronize(self.event) }.map_err(|e| failed("GPU work failed", e))
    }

    /// Makes `stream` wait for the event; the host does not wait.
    pub fn make_wait(&self, stream: Stream) -> Result<()> {
        let _submission = self.device.submit(stream)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives until `drop`, after which the driver keeps the state that a wait needs; the stream
        // lives as long as the device.
        unsafe { result::stream::wait_event(stream.raw(), self.event, flags) }
            .map_err(|e| failed("cannot wait for a CUDA event", e))
    }

    /// Returns the time from `self` to `later`; both are done.
    pub fn elapsed(&self, later: &Event) -> Result<Duration> {
        self.device.make_current()?;
        // SAFETY: both events were created with timing and recorded.
        let time_ms = unsafe { result::event::elapsed(self.event, later.event) }
            .map_err(|e| failed("cannot time GPU work", e))?;
        Ok(Duration::from_secs_f64(f64::from(time_ms.max(0.0)) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: the event is destroyed once; the driver keeps it until work that refers to it is done.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

impl Device {
    /// Makes the compute stream wait for all work on the upload stream so far; the host does not wait.
    pub fn join_uploads(self: &Arc<Self>) -> Result<()> {
        Event::new(self, self.upload_stream)?.make_wait(self.stream)
    }
}
