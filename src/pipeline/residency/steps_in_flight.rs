//! Which steps the device has yet to do, so that the host does not run ahead of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::error::Result;

/// The steps of a batch that were enqueued.
pub(crate) struct StepsInFlight<B: Backend> {
    backend: B,
    /// The end of each.
    ends: Vec<Arc<B::Event>>,
    /// How many were seen to be done.
    done: usize,
    /// How long the host waited for them.
    waited: Duration,
}

impl<B: Backend> StepsInFlight<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self { backend, ends: Vec::new(), done: 0, waited: Duration::ZERO }
    }

    /// A step was enqueued.
    pub(crate) fn push(&mut self, end: Arc<B::Event>) {
        self.ends.push(end);
    }

    /// How many steps are done; does not wait.
    pub(crate) fn done(&mut self) -> Result<usize> {
        while let Some(end) = self.ends.get(self.done) {
            if !self.backend.is_done(end)? {
                break;
            }
            self.done += 1;
        }
        Ok(self.done)
    }

    /// Waits until step `step`, which was enqueued before, is done.
    pub(crate) fn wait(&mut self, step: usize) -> Result<()> {
        let start = Instant::now();
        self.backend.wait(&self.ends[step])?;
        self.waited += start.elapsed();
        Ok(())
    }

    /// How long the host waited for steps.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}
