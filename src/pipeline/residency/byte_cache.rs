//! An LRU cache with a limit in bytes.

use std::hash::Hash;

use lru::LruCache;

/// Values by key. If they exceed the limit, the least recently used values are evicted; the newest value always
/// stays.
pub(crate) struct ByteCache<K, T> {
    entries: LruCache<K, (T, u64)>,
    bytes: u64,
    budget: u64,
    hits: u64,
    misses: u64,
}

/// Usage of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes of the cached values.
    pub bytes: u64,
    /// Maximum bytes; a single larger value is still cached.
    pub limit: u64,
    /// Number of lookups that found a value.
    pub hits: u64,
    /// Number of lookups that found no value.
    pub misses: u64,
}

impl<K: Hash + Eq, T> ByteCache<K, T> {
    pub(crate) fn new(budget: u64) -> Self {
        Self { entries: LruCache::unbounded(), bytes: 0, budget, hits: 0, misses: 0 }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&T> {
        let found = self.entries.get(key).map(|(value, _)| value);
        let count = if found.is_some() { &mut self.hits } else { &mut self.misses };
        *count += 1;
        found
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats { bytes: self.bytes, limit: self.budget, hits: self.hits, misses: self.misses }
    }

    /// Caches a value that takes `bytes` bytes.
    pub(crate) fn insert(&mut self, key: K, value: T, bytes: u64) {
        self.bytes += bytes;
        if let Some((_, (_, replaced))) = self.entries.push(key, (value, bytes)) {
            self.bytes -= replaced;
        }
        self.keep(self.budget);
    }

    /// Evicts values until at most `bytes` bytes are left, except the newest value.
    pub(crate) fn keep(&mut self, bytes: u64) {
        while self.bytes > bytes
            && self.entries.len() > 1
            && let Some((_, (_, dropped))) = self.entries.pop_lru()
        {
            self.bytes -= dropped;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    #[cfg(test)]
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_ones_leave_where_they_take_too_many_bytes() {
        let mut cache = ByteCache::new(100);
        for id in 0..4 {
            cache.insert(id, id, 25);
        }
        assert_eq!(cache.get(&0), Some(&0));
        cache.insert(4, 4, 30);
        let found: Vec<_> = (0..5).filter(|id| cache.get(id).is_some()).collect();
        assert_eq!((found, cache.bytes), (vec![0, 3, 4], 80), "1 and then 2 were used least recently");
        assert_eq!(cache.stats(), CacheStats { bytes: 80, limit: 100, hits: 4, misses: 2 });
        cache.insert(4, 4, 10);
        assert_eq!(cache.bytes, 60, "replaced entries do not count");
        cache.insert(5, 5, 1000);
        assert_eq!((cache.entries.len(), cache.get(&5)), (1, Some(&5)), "the newest is kept");
    }
}
