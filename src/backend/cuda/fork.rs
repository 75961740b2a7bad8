//! A side stream for work on multiprocessors that the compute stream leaves idle.

use std::sync::Arc;

use cudarc::driver::result;

use super::device::{Device, Stream};
use super::event::Event;
use crate::error::Result;

impl Device {
    /// Returns a point in the order of the compute stream, after which side work may begin.
    ///
    /// Errors as the driver does.
    pub fn fork_point(self: &Arc<Self>) -> Result<Event> {
        Event::new(self, self.stream)
    }

    /// Enqueues `work` on the side stream, which is passed to it: after `point`, and concurrent with work enqueued on
    /// the compute stream since then, whose blocks come first. Later work on the compute stream waits for it; the host
    /// does not. A capture includes both streams.
    ///
    /// Memory is allocated and freed in the order of the compute stream: operands of `work` must be allocated before
    /// the point, and live until this returns.
    pub fn on_side_stream(self: &Arc<Self>, point: &Event, work: impl FnOnce(Stream) -> Result<()>) -> Result<()> {
        let side = self.side_stream;
        // Another thread's work on the side stream would become part of this capture.
        let _submission = self.submit(self.stream)?;
        point.make_wait(side)?;
        let enqueued = work(side);
        let joined = Event::new(self, side).and_then(|end| end.make_wait(self.stream));
        if joined.is_err() {
            // The memory of the work is freed next. During a capture this call fails, and nothing runs.
            // SAFETY: the stream lives as long as the device.
            let _ = unsafe { result::stream::synchronize(side.raw()) };
        }
        enqueued.and(joined)
    }
}
