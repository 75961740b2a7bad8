//! A cache of so many bytes.

use std::hash::Hash;

use lru::LruCache;

/// Values by their keys. Where they take more bytes than they may, the least recently used ones leave; the newest stays
/// in any case.
pub(crate) struct ByteCache<K, T> {
    entries: LruCache<K, (T, u64)>,
    bytes: u64,
    budget: u64,
}

impl<K: Hash + Eq, T> ByteCache<K, T> {
    pub(crate) fn new(budget: u64) -> Self {
        Self { entries: LruCache::unbounded(), bytes: 0, budget }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&T> {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// Caches a value that takes so many bytes.
    pub(crate) fn insert(&mut self, key: K, value: T, bytes: u64) {
        self.bytes += bytes;
        if let Some((_, (_, replaced))) = self.entries.push(key, (value, bytes)) {
            self.bytes -= replaced;
        }
        self.keep(self.budget);
    }

    /// Drops what is more than so many bytes, except the newest.
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
        cache.insert(4, 4, 10);
        assert_eq!(cache.bytes, 60, "what is replaced does not count");
        cache.insert(5, 5, 1000);
        assert_eq!((cache.entries.len(), cache.get(&5)), (1, Some(&5)), "the newest stays");
    }
}
