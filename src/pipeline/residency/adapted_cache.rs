//! Cache of the most recently used transformers with adapters.

use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use lru::LruCache;
use parking_lot::Mutex;

use crate::backend::Backend;
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::residency::placement::Placement;
use crate::transformer::Transformer;

/// Maximum number of cached transformers with adapters.
const MAX_SETS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// A transformer with adapters.
pub(crate) struct Adapted<B: Backend> {
    pub(crate) transformer: Arc<Transformer<B>>,
    /// The transformer without adapters, which shares weights with this one.
    pub(crate) base: Weak<Transformer<B>>,
    /// Placement of the low-rank changes.
    pub(crate) placement: Placement,
    /// The placement as text, with the reason.
    pub(crate) remark: String,
}

/// The most recently used transformers with adapters.
pub(crate) struct AdaptedCache<B: Backend>(Mutex<LruCache<SetKey, Arc<Adapted<B>>>>);

impl<B: Backend> AdaptedCache<B> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_SETS)))
    }

    /// Returns the transformer of a set, if it was created from `base`.
    pub(crate) fn get(&self, key: &SetKey, base: &Arc<Transformer<B>>) -> Option<Arc<Adapted<B>>> {
        let found = self.0.lock().get(key).cloned();
        found.filter(|adapted| adapted.base.as_ptr() == Arc::as_ptr(base))
    }

    /// Drops all transformers. A session that uses one keeps it alive.
    pub(crate) fn clear(&self) {
        while let Some(dropped) = self.pop() {
            drop(dropped);
        }
    }

    /// Removes and returns the least recently used transformer. The lock is released before it is dropped, which may
    /// wait.
    pub(crate) fn pop(&self) -> Option<(SetKey, Arc<Adapted<B>>)> {
        self.0.lock().pop_lru()
    }

    /// Removes and returns the least recently used transformer if the cache is full.
    pub(crate) fn pop_if_full(&self) -> Option<(SetKey, Arc<Adapted<B>>)> {
        let mut sets = self.0.lock();
        if sets.len() < MAX_SETS.get() { None } else { sets.pop_lru() }
    }

    /// Adds a transformer. Returns the one that it evicts or replaces.
    pub(crate) fn push(&self, key: &SetKey, adapted: &Arc<Adapted<B>>) -> Option<(SetKey, Arc<Adapted<B>>)> {
        self.0.lock().push(key.clone(), Arc::clone(adapted))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
