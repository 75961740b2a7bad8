//! Work beside the compute stream's: it takes multiprocessors that are idle there, and no others.

use std::sync::Arc;

use super::capture::Submission;
use super::device::{Device, Stream};
use super::event::Event;
use crate::error::Result;

/// The side stream works beside the compute stream, behind what was enqueued there before this was made, until
/// [`Fork::join`]. Both are captured together.
///
/// Memory is made and freed in the order of the compute stream: what the side stream uses is made before the fork, and
/// lives until it is joined.
#[must_use]
pub struct Fork<'a> {
    device: &'a Arc<Device>,
    joined: bool,
    /// Another thread's fork would be captured with this one.
    _submission: Submission<'a>,
}

impl Device {
    /// Errors when the driver does.
    pub fn fork(self: &Arc<Self>) -> Result<Fork<'_>> {
        let submission = self.submit(self.stream())?;
        let fork = Fork { device: self, joined: false, _submission: submission };
        Event::new(self, self.stream())?.make_wait(fork.stream())?;
        Ok(fork)
    }
}

impl Fork<'_> {
    /// The side stream.
    pub fn stream(&self) -> Stream {
        self.device.side_stream()
    }

    /// Lets the compute stream wait for all work on the side stream; the host does not wait.
    pub fn join(mut self) -> Result<()> {
        self.order()
    }

    fn order(&mut self) -> Result<()> {
        self.joined = true;
        Event::new(self.device, self.stream())?.make_wait(self.device.stream())
    }
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        if !self.joined {
            // What made the work fail says more.
            let _ = self.order();
        }
    }
}
