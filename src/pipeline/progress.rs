//! How far a session is, and whether anybody still wants it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// What a session is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Weights to a file that holds them in e4m3; counts elements.
    Quantise,
    /// Weights to the device, once for each model; counts elements.
    Load,
    /// Text encoder; counts layers.
    Text,
    /// Transformer; counts steps.
    Denoise,
    /// VAE; counts stages.
    Decode,
}

/// `done` of `total` parts of a stage are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What the parts are of.
    pub stage: Stage,
    /// Parts that are done.
    pub done: u64,
    /// All parts.
    pub total: u64,
}

/// Ends the sessions that were given it. Clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Has every session with this flag end as soon as it looks at it: between steps, between layers of the text
    /// encoder and stages of the decoder where the host runs them one by one, and between weights that are loaded.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Errors as [`Kind::Cancelled`](crate::error::Kind::Cancelled) once it is set.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Error::cancelled()) } else { Ok(()) }
    }
}

/// A flag that something else sets, such as a signal handler.
impl From<Arc<AtomicBool>> for CancelFlag {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

/// Whoever runs a session: hears of its progress and may end it.
pub(super) struct Caller<'a> {
    report: RefCell<&'a mut dyn FnMut(Progress)>,
    cancel: CancelFlag,
}

impl<'a> Caller<'a> {
    pub(super) fn new(report: &'a mut dyn FnMut(Progress), cancel: &CancelFlag) -> Self {
        Self { report: RefCell::new(report), cancel: cancel.clone() }
    }

    pub(super) fn report(&self, stage: Stage, done: u64, total: u64) {
        (self.report.borrow_mut())(Progress { stage, done, total });
    }

    /// Errors when the session was cancelled.
    pub(super) fn check(&self) -> Result<()> {
        self.cancel.check()
    }
}
