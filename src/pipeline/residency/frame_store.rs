//! What the steps of a frame made of its tokens, for frames behind it that differ in few of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::Backend;
use crate::pipeline::request::frame::FrameRequest;
use crate::tensor::Tensor;
use crate::transformer::KeyCache;

/// A frame of which all tokens were computed.
pub(crate) struct StoredFrame<B: Backend> {
    pub(crate) of: FrameRequest,
    pub(crate) made: FrameKeys<B>,
    /// RGB bytes of its image.
    pub(crate) image: Vec<u8>,
    /// Frames that were compared with it.
    compared: AtomicUsize,
}

/// What became of the tokens of a frame.
pub(crate) struct FrameKeys<B: Backend> {
    /// Keys and values of all of them, of each step.
    pub(crate) steps: Vec<KeyCache<B>>,
    /// The final latents [tokens, channels].
    pub(crate) latents: Tensor<B>,
}

impl<B: Backend> StoredFrame<B> {
    /// How many frames were compared with it, the next one counted.
    pub(crate) fn compared_next(&self) -> usize {
        self.compared.load(Ordering::Relaxed) + 1
    }

    /// How many frames were compared with it, this one counted.
    pub(crate) fn compared(&self) -> usize {
        self.compared.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The last frame of which all tokens were computed.
pub(crate) struct FrameStore<B: Backend>(Mutex<Option<Arc<StoredFrame<B>>>>);

impl<B: Backend> FrameStore<B> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The frame, where the same was asked of it.
    pub(crate) fn get(&self, of: &FrameRequest) -> Option<Arc<StoredFrame<B>>> {
        self.frame().as_ref().filter(|stored| stored.of.is_like(of)).map(Arc::clone)
    }

    pub(crate) fn put(&self, of: FrameRequest, made: FrameKeys<B>, image: Vec<u8>) {
        let stored = StoredFrame { of, made, image, compared: AtomicUsize::new(0) };
        let before = self.frame().replace(Arc::new(stored));
        drop(before);
    }

    pub(crate) fn clear(&self) {
        let before = self.frame().take();
        drop(before);
    }

    fn frame(&self) -> MutexGuard<'_, Option<Arc<StoredFrame<B>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
