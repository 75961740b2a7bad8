//! The steps that the device has not finished, so that the host does not run ahead of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::error::Result;

/// The enqueued steps of a batch.
pub(crate) struct StepsInFlight<B: Backend> {
    backend: B,
    /// End event of each step.
    ends: Vec<Arc<B::Event>>,
    /// Number of steps that were seen to be done.
    done: usize,
    /// Time that the host waited for steps.
    waited: Duration,
}

impl<B: Backend> StepsInFlight<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self { backend, ends: Vec::new(), done: 0, waited: Duration::ZERO }
    }

    /// Adds an enqueued step.
    pub(crate) fn push(&mut self, end: Arc<B::Event>) {
        self.ends.push(end);
    }

    /// Returns the number of steps that are done; does not wait.
    pub(crate) fn done(&mut self) -> Result<usize> {
        while let Some(end) = self.ends.get(self.done) {
            if !self.backend.is_done(end)? {
                break;
            }
            self.done += 1;
        }
        Ok(self.done)
    }

    /// Waits until step `step`, which is already enqueued, is done.
    pub(crate) fn wait(&mut self, step: usize) -> Result<()> {
        let start = Instant::now();
        self.backend.wait(&self.ends[step])?;
        self.waited += start.elapsed();
        Ok(())
    }

    /// Returns the time that the host waited for steps.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}
