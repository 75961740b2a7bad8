//! The last transformers that were made with adapters.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lru::LruCache;

use crate::backend::Backend;
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::residency::placement::Placement;
use crate::transformer::Transformer;

/// How many transformers with adapters are cached.
const MAX_SETS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// A transformer with adapters.
pub(crate) struct Adapted<B: Backend> {
    pub(crate) transformer: Arc<Transformer<B>>,
    /// The transformer without them, with which it shares weights.
    pub(crate) base: Weak<Transformer<B>>,
    /// Where the changes of low rank are.
    pub(crate) placement: Placement,
    /// The same in words, with the reason.
    pub(crate) remark: String,
}

/// The last transformers with adapters.
pub(crate) struct AdaptedCache<B: Backend>(Mutex<LruCache<SetKey, Arc<Adapted<B>>>>);

impl<B: Backend> AdaptedCache<B> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_SETS)))
    }

    fn sets(&self) -> MutexGuard<'_, LruCache<SetKey, Arc<Adapted<B>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transformer of a set that was made of `base`.
    pub(crate) fn get(&self, key: &SetKey, base: &Arc<Transformer<B>>) -> Option<Arc<Adapted<B>>> {
        let found = self.sets().get(key).cloned();
        found.filter(|adapted| adapted.base.as_ptr() == Arc::as_ptr(base))
    }

    /// Drops all of them. A session that uses one keeps it.
    pub(crate) fn clear(&self) {
        while let Some(dropped) = self.pop() {
            drop(dropped);
        }
    }

    /// The least recently used one, which is no longer cached. The lock is released, because dropping it may wait.
    pub(crate) fn pop(&self) -> Option<(SetKey, Arc<Adapted<B>>)> {
        self.sets().pop_lru()
    }

    /// The least recently used one, which is no longer cached, where one more would be too many.
    pub(crate) fn pop_if_full(&self) -> Option<(SetKey, Arc<Adapted<B>>)> {
        let mut sets = self.sets();
        if sets.len() < MAX_SETS.get() { None } else { sets.pop_lru() }
    }

    /// Adds one. Returns the least recently used, or the one that this replaces.
    pub(crate) fn push(&self, key: &SetKey, adapted: &Arc<Adapted<B>>) -> Option<(SetKey, Arc<Adapted<B>>)> {
        self.sets().push(key.clone(), Arc::clone(adapted))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sets().len()
    }
}
