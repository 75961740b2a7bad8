//! The results of a frame's steps, for later frames that differ in few tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::pipeline::request::frame::FrameRequest;
use crate::tensor::Tensor;
use crate::transformer::KeyCache;

/// A frame with all tokens computed.
pub(crate) struct StoredFrame<B: Backend> {
    pub(crate) of: FrameRequest,
    pub(crate) made: FrameKeys<B>,
    /// RGB bytes of the result image.
    pub(crate) image: Vec<u8>,
    /// Number of frames that were compared with this one.
    compared: AtomicUsize,
}

/// The results of a frame's tokens.
pub(crate) struct FrameKeys<B: Backend> {
    /// Keys and values of all tokens, for each step.
    pub(crate) steps: Vec<KeyCache<B>>,
    /// The final latents [tokens, channels].
    pub(crate) latents: Tensor<B>,
}

impl<B: Backend> StoredFrame<B> {
    /// Returns the number of compared frames, including the next one.
    pub(crate) fn compared_next(&self) -> usize {
        self.compared.load(Ordering::Relaxed) + 1
    }

    /// Counts a comparison; returns the number of compared frames, including this one.
    pub(crate) fn compared(&self) -> usize {
        self.compared.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The last frame with all tokens computed.
pub(crate) struct FrameStore<B: Backend>(Mutex<Option<Arc<StoredFrame<B>>>>);

impl<B: Backend> FrameStore<B> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the frame if it has an equal request.
    pub(crate) fn get(&self, of: &FrameRequest) -> Option<Arc<StoredFrame<B>>> {
        self.0.lock().as_ref().filter(|stored| stored.of.is_like(of)).map(Arc::clone)
    }

    pub(crate) fn put(&self, of: FrameRequest, made: FrameKeys<B>, image: Vec<u8>) {
        let stored = StoredFrame { of, made, image, compared: AtomicUsize::new(0) };
        let before = self.0.lock().replace(Arc::new(stored));
        drop(before);
    }

    pub(crate) fn clear(&self) {
        let before = self.0.lock().take();
        drop(before);
    }
}
