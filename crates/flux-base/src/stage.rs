//! The progress of a session, and its cancellation.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// A stage of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Quantizes weights, for the quantized cache, a file or this run; its parts are elements.
    Quantize,
    /// Loads missing weights to the device; its parts are elements.
    Load,
    /// Runs the text encoder; its parts are layers.
    Text,
    /// Runs the VAE's encoder on the input images; its parts are stages.
    Encode,
    /// Runs the transformer; its parts are steps.
    Denoise,
    /// Runs the VAE's decoder; its parts are stages.
    Decode,
    /// Enlarges an image; its parts are blocks of the upscaler.
    Upscale,
}

impl Stage {
    /// Returns the name of the stage, in progress and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quantize => "quantize",
            Self::Load => "load",
            Self::Text => "text",
            Self::Encode => "encode",
            Self::Denoise => "denoise",
            Self::Decode => "decode",
            Self::Upscale => "upscale",
        }
    }
}

/// The progress of a stage: `done` of `total` parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// The number of completed parts.
    pub done: u64,
    /// The number of all parts.
    pub total: u64,
}

/// A flag that ends the sessions that it was passed to. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag {
    flag: Arc<AtomicBool>,
    /// A flag that also sets this one.
    parent: Option<Arc<CancelFlag>>,
}

impl CancelFlag {
    /// Ends every session with this flag at its next check: before each step and each image, before it loads a
    /// component and while it waits for one that another thread loads, and between the layers of the text encoder and
    /// the stages of the decoder if the host runs them one by one. Quantization ends between two matrices.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Returns a flag that is set on its own, or together with this one.
    pub fn child(&self) -> Self {
        Self { flag: Arc::default(), parent: Some(Arc::new(self.clone())) }
    }

    /// Returns `true` once the flag is set.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || self.parent.as_deref().is_some_and(Self::is_set)
    }

    /// Errors as [`Kind::Cancelled`](crate::error::ErrorKind::Cancelled) once the flag is set.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::cancelled()) } else { Ok(()) }
    }
}

/// A flag that the caller sets in its own way, such as in a signal handler.
impl From<Arc<AtomicBool>> for CancelFlag {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self { flag, parent: None }
    }
}

/// The caller of a session, which receives its progress and may cancel it.
pub struct Caller<'a> {
    report: RefCell<&'a mut dyn FnMut(Progress)>,
    cancel: CancelFlag,
}

impl<'a> Caller<'a> {
    /// Creates a caller from its callback and its flag.
    pub fn new(report: &'a mut dyn FnMut(Progress), cancel: &CancelFlag) -> Self {
        Self { report: RefCell::new(report), cancel: cancel.clone() }
    }

    /// Reports `done` of `total` parts of a stage.
    pub fn report(&self, stage: Stage, done: u64, total: u64) {
        (self.report.borrow_mut())(Progress { stage, done, total });
    }

    /// Errors if the session is cancelled.
    pub fn check(&self) -> Result<()> {
        self.cancel.check()
    }
}

/// Receives notes and progress while a model is opened.
pub trait Observer {
    /// Something that every user should know.
    fn note(&mut self, text: &str);
    /// Something for the curious.
    fn detail(&mut self, text: &str);
    /// Receives the progress of a stage.
    fn progress(&mut self, progress: Progress);
    /// The last reported stage is over.
    fn finish(&mut self);
}

/// An observer that ignores everything.
pub struct Unobserved;

impl Observer for Unobserved {
    fn note(&mut self, _text: &str) {}
    fn detail(&mut self, _text: &str) {}
    fn progress(&mut self, _progress: Progress) {}
    fn finish(&mut self) {}
}
