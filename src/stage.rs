//! How far a session is, and whether it was cancelled.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Quantises weights, for the quantised cache, a file or this run; its parts are elements.
    Quantise,
    /// Loads weights to the device, where they are absent; its parts are elements.
    Load,
    /// Runs the text encoder; its parts are layers.
    Text,
    /// Runs the VAE's encoder over the images that are given; its parts are stages.
    Encode,
    /// Runs the transformer; its parts are steps.
    Denoise,
    /// Runs the VAE; its parts are stages.
    Decode,
}

/// `done` of `total` parts of a stage are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Parts that are done.
    pub done: u64,
    /// How many parts the stage has.
    pub total: u64,
}

/// Ends the sessions that were given this flag. Clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag {
    flag: Arc<AtomicBool>,
    /// Once it is set, this one is too.
    parent: Option<Arc<CancelFlag>>,
}

impl CancelFlag {
    /// Ends every session with this flag when it next checks the flag: before each step and each image, before it loads
    /// a component and while it waits for one that another thread loads, and between the layers of the text encoder and
    /// the stages of the decoder where the host runs them one by one. Quantising ends between two matrices.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// A flag that is set by itself, or with this one.
    pub fn child(&self) -> Self {
        Self { flag: Arc::default(), parent: Some(Arc::new(self.clone())) }
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || self.parent.as_deref().is_some_and(Self::is_set)
    }

    /// Errors as [`Kind::Cancelled`](crate::error::ErrorKind::Cancelled) once it is set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::cancelled()) } else { Ok(()) }
    }
}

/// A flag that the caller sets in its own way, such as by a signal handler.
impl From<Arc<AtomicBool>> for CancelFlag {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self { flag, parent: None }
    }
}

/// The caller of a session, which receives its progress and may cancel it.
pub(crate) struct Caller<'a> {
    report: RefCell<&'a mut dyn FnMut(Progress)>,
    cancel: CancelFlag,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(report: &'a mut dyn FnMut(Progress), cancel: &CancelFlag) -> Self {
        Self { report: RefCell::new(report), cancel: cancel.clone() }
    }

    pub(crate) fn report(&self, stage: Stage, done: u64, total: u64) {
        (self.report.borrow_mut())(Progress { stage, done, total });
    }

    /// Errors when the session was cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        self.cancel.check()
    }
}
