//! Waiting without the GIL, with an eye on Python's signal handlers.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use flux::{CancelFlag, Error, Result};
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// The interval at which a waiting thread runs Python's signal handlers.
pub const POLL: Duration = Duration::from_millis(20);

/// A flag that cancels work of other threads.
#[pyclass(frozen, module = "flux._flux")]
#[derive(Default)]
pub struct Flag(pub CancelFlag);

#[pymethods]
impl Flag {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Cancels the work.
    fn cancel(&self) {
        self.0.cancel();
    }
}

/// Runs work on another thread, and waits for it without the GIL. If a signal handler raises, such as that of Ctrl-C,
/// sets the flag and returns at once; the work then ends by itself.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    cancel: &CancelFlag,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let done = py.detach(|| {
        let (sender, receiver) = channel();
        let started = thread::Builder::new().name("python".to_string()).spawn(move || drop(sender.send(work())));
        if let Err(error) = started {
            return Ok(Err(Error::no_thread(&error)));
        }
        loop {
            match receiver.recv_timeout(POLL) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(Error::new("the work panicked"))),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(raised) = Python::attach(|py| py.check_signals()) {
                        cancel.cancel();
                        return Err(raised);
                    }
                }
            }
        }
    })?;
    done.or_raise(py)
}
