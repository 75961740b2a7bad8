//! Caches what was made of the images that others are made from, by their pixels.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lru::LruCache;

use crate::backend::Backend;
use crate::pipeline::residency::known::Known;
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Transformer};

/// How many images are cached as latents. Those of a megapixel take 1 MB.
const LATENTS: NonZeroUsize = NonZeroUsize::new(32).unwrap();
/// How many sets of references are cached as keys and values, of which a megapixel takes 2 GB in the 9B model.
const REFERENCE_CACHES: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// The least recently used entries leave first.
pub(crate) struct ImageCache<B: Backend> {
    /// Packed latents [tokens, channels].
    latents: Mutex<LruCache<Arc<Rgb>, Known<B>>>,
    /// By all references in their order, because each is seen by the others.
    reference_caches: Mutex<LruCache<Vec<Arc<Rgb>>, Cached<B>>>,
}

/// Keys and values, and the transformer that made them, which they do not keep.
struct Cached<B: Backend> {
    transformer: Weak<Transformer<B>>,
    cache: Arc<KeyCache<B>>,
}

impl<B: Backend> ImageCache<B> {
    pub(crate) fn new() -> Self {
        Self {
            latents: Mutex::new(LruCache::new(LATENTS)),
            reference_caches: Mutex::new(LruCache::new(REFERENCE_CACHES)),
        }
    }

    /// The latents of an image, to read.
    pub(crate) fn latents(&self, image: &Arc<Rgb>) -> Option<Known<B>> {
        lock(&self.latents).get(image).map(Known::view)
    }

    /// Caches the latents of an image, and returns them to read.
    pub(crate) fn insert_latents(&self, image: &Arc<Rgb>, latents: Tensor<B>) -> Known<B> {
        let (cached, known) = Known::new(latents);
        lock(&self.latents).put(Arc::clone(image), cached);
        known
    }

    /// What `transformer` made of all references.
    pub(crate) fn reference_cache(
        &self,
        references: &[Arc<Rgb>],
        transformer: &Arc<Transformer<B>>,
    ) -> Option<Arc<KeyCache<B>>> {
        let mut caches = lock(&self.reference_caches);
        let found = caches.get(references).filter(|found| found.transformer.as_ptr() == Arc::as_ptr(transformer))?;
        Some(Arc::clone(&found.cache))
    }

    /// Whether another set of references has to leave before one is added.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.reference_caches).len() == REFERENCE_CACHES.get()
    }

    /// Drops the set of references that was used least recently.
    pub(crate) fn drop_oldest(&self) {
        let oldest = lock(&self.reference_caches).pop_lru();
        drop(oldest);
    }

    pub(crate) fn insert_reference_cache(
        &self,
        references: Vec<Arc<Rgb>>,
        transformer: &Arc<Transformer<B>>,
        cache: &Arc<KeyCache<B>>,
    ) {
        let cached = Cached { transformer: Arc::downgrade(transformer), cache: Arc::clone(cache) };
        lock(&self.reference_caches).put(references, cached);
    }

    pub(crate) fn clear_reference_caches(&self) {
        lock(&self.reference_caches).clear();
    }

    pub(crate) fn clear(&self) {
        self.clear_reference_caches();
        lock(&self.latents).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
