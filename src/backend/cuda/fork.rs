//! Work beside the compute stream's, on multiprocessors that are idle there.

use std::sync::Arc;

use cudarc::driver::result;

use super::device::{Device, Stream};
use super::event::Event;
use crate::error::Result;

impl Device {
    /// A point in the order of the compute stream, behind which work may begin on the side stream.
    ///
    /// Errors when the driver does.
    pub fn fork_point(self: &Arc<Self>) -> Result<Event> {
        Event::new(self, self.stream())
    }

    /// Enqueues `work` on the side stream, which it is given: behind `point`, and beside what was enqueued on the
    /// compute stream since, whose blocks come first. What follows on the compute stream waits for it; the host does
    /// not. Both are captured together.
    ///
    /// Memory is made and freed in the order of the compute stream: what `work` uses is made in front of the point, and
    /// lives until this returns.
    pub fn beside(self: &Arc<Self>, point: &Event, work: impl FnOnce(Stream) -> Result<()>) -> Result<()> {
        let side = self.side_stream();
        // Another thread's work on the side stream would be captured with this.
        let _submission = self.submit(self.stream())?;
        point.make_wait(side)?;
        let enqueued = work(side);
        let joined = Event::new(self, side).and_then(|end| end.make_wait(self.stream()));
        if joined.is_err() {
            // Memory of the work is freed next. While capturing this fails, and nothing runs.
            // SAFETY: the stream lives as long as the device.
            let _ = unsafe { result::stream::synchronize(side.raw()) };
        }
        enqueued.and(joined)
    }
}
