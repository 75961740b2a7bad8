//! Cache of latents and of keys and values of input images, by their pixels.

use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use lru::LruCache;
use parking_lot::Mutex;

use crate::backend::Backend;
use crate::pipeline::residency::known::Known;
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::transformer::{KeyCache, Transformer};

/// Maximum number of images cached as latents. Latents of a megapixel take 1 MB.
const LATENTS: NonZeroUsize = NonZeroUsize::new(32).unwrap();
/// Maximum number of reference sets cached as keys and values. A megapixel takes 2 GB in the 9B model.
const REFERENCE_CACHES: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// References in their order, with the bits of their weights.
type WeightedImages = (Vec<Arc<Rgb>>, Vec<u32>);

/// The cached input images; the least recently used entries are evicted first.
pub(crate) struct ImageCache<B: Backend> {
    /// Packed latents [tokens, channels].
    latents: Mutex<LruCache<Arc<Rgb>, Known<B>>>,
    /// Keys and values by all references in their order, because each attends to the others, and by their weights.
    reference_caches: Mutex<LruCache<WeightedImages, Cached<B>>>,
}

/// Keys and values with a weak reference to the transformer that computed them.
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

    /// Returns a view of the latents of an image.
    pub(crate) fn latents(&self, image: &Arc<Rgb>) -> Option<Known<B>> {
        self.latents.lock().get(image).map(Known::view)
    }

    /// Caches the latents of an image, and returns a view of them.
    pub(crate) fn insert_latents(&self, image: &Arc<Rgb>, latents: Tensor<B>) -> Known<B> {
        let (cached, known) = Known::new(latents);
        self.latents.lock().put(Arc::clone(image), cached);
        known
    }

    /// Returns the keys and values that `transformer` computed for all references.
    pub(crate) fn reference_cache(
        &self,
        references: &[Arc<Rgb>],
        weights: &[f32],
        transformer: &Arc<Transformer<B>>,
    ) -> Option<Arc<KeyCache<B>>> {
        let mut caches = self.reference_caches.lock();
        let found = caches
            .get(&(references.to_vec(), bits(weights)))
            .filter(|found| found.transformer.as_ptr() == Arc::as_ptr(transformer))?;
        Some(Arc::clone(&found.cache))
    }

    /// Returns `true` if the next set of references replaces another one.
    pub(crate) fn is_full(&self) -> bool {
        self.reference_caches.lock().len() == REFERENCE_CACHES.get()
    }

    /// Drops the least recently used set of references.
    pub(crate) fn drop_oldest(&self) {
        let oldest = self.reference_caches.lock().pop_lru();
        drop(oldest);
    }

    pub(crate) fn insert_reference_cache(
        &self,
        (references, weights): (Vec<Arc<Rgb>>, &[f32]),
        transformer: &Arc<Transformer<B>>,
        cache: &Arc<KeyCache<B>>,
    ) {
        let cached = Cached { transformer: Arc::downgrade(transformer), cache: Arc::clone(cache) };
        self.reference_caches.lock().put((references, bits(weights)), cached);
    }

    pub(crate) fn clear_reference_caches(&self) {
        self.reference_caches.lock().clear();
    }

    pub(crate) fn clear(&self) {
        self.clear_reference_caches();
        self.latents.lock().clear();
    }
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| weight.to_bits()).collect()
}
