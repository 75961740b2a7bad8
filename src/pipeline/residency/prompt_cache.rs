//! Caches the text features of the last prompts, so that the text encoder does not run again for them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::backend::Backend;
use crate::tensor::Tensor;
use crate::text_encoder::PromptTokens;

/// The most bytes of a device. The features of one prompt take 8 MB in the 4B model.
const MOST_BYTES: u64 = 512 << 20;
/// What a small device may have.
const LEAST_BYTES: u64 = 64 << 20;
/// Which part of a device's free memory it may have.
const PART: u64 = 64;

/// Text features by the tokens of their prompts. Where they take more bytes than they may, the least recently used ones
/// leave; the newest stay in any case.
pub(crate) struct FeatureCache<T> {
    entries: LruCache<Key, (T, u64)>,
    bytes: u64,
    budget: u64,
}

/// Token ids with the padding, and how many are none: all that features depend on.
type Key = (Vec<u32>, usize);

fn key(tokens: &PromptTokens) -> Key {
    (tokens.ids.clone(), tokens.real)
}

impl<T> FeatureCache<T> {
    pub(crate) fn new(budget: u64) -> Self {
        Self { entries: LruCache::unbounded(), bytes: 0, budget }
    }

    pub(crate) fn get(&mut self, tokens: &PromptTokens) -> Option<&T> {
        self.entries.get(&key(tokens)).map(|(features, _)| features)
    }

    /// Caches features that take so many bytes.
    pub(crate) fn insert(&mut self, tokens: &PromptTokens, features: T, bytes: u64) {
        self.bytes += bytes;
        if let Some((_, (_, replaced))) = self.entries.push(key(tokens), (features, bytes)) {
            self.bytes -= replaced;
        }
        self.keep(self.budget);
    }

    /// Drops what is more than so many bytes, except the newest.
    fn keep(&mut self, bytes: u64) {
        while self.bytes > bytes
            && self.entries.len() > 1
            && let Some((_, (_, dropped))) = self.entries.pop_lru()
        {
            self.bytes -= dropped;
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

/// The features of the prompts that were used last, [tokens, features] each, on a device.
pub(crate) struct PromptCache<B: Backend>(Mutex<FeatureCache<Tensor<B>>>);

impl<B: Backend> PromptCache<B> {
    /// Of a device with so many free bytes.
    pub(crate) fn new(available: u64) -> Self {
        Self(Mutex::new(FeatureCache::new((available / PART).clamp(LEAST_BYTES, MOST_BYTES))))
    }

    /// The features of a prompt, to read.
    pub(crate) fn get(&self, tokens: &PromptTokens) -> Option<Tensor<B>> {
        self.features().get(tokens).map(|features| features.row_view(0..features.rows()))
    }

    /// Caches the features of a prompt, of so many bytes a value.
    pub(crate) fn insert(&self, tokens: &PromptTokens, features: Tensor<B>, value_bytes: u64) {
        let bytes = (features.rows() * features.cols()) as u64 * value_bytes;
        self.features().insert(tokens, features, bytes);
    }

    /// Drops what only a device with memory to spare keeps.
    pub(crate) fn shrink(&self) {
        self.features().keep(LEAST_BYTES);
    }

    pub(crate) fn clear(&self) {
        self.features().clear();
    }

    fn features(&self) -> MutexGuard<'_, FeatureCache<Tensor<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Memory;
    use crate::backend::cpu::{Cpu, Precision};

    fn tokens(id: u32) -> PromptTokens {
        PromptTokens {
            ids: vec![id, 0],
            real: 1,
            truncated: 0,
            cut_at: 0,
            padding: crate::text_encoder::Padding::Counted,
        }
    }

    #[test]
    fn the_least_recently_used_ones_leave_where_they_take_too_many_bytes() {
        let mut cache = FeatureCache::new(100);
        for id in 0..4 {
            cache.insert(&tokens(id), id, 25);
        }
        assert_eq!(cache.get(&tokens(0)), Some(&0));
        cache.insert(&tokens(4), 4, 30);
        let found: Vec<_> = (0..5).filter(|id| cache.get(&tokens(*id)).is_some()).collect();
        assert_eq!((found, cache.bytes), (vec![0, 3, 4], 80), "1 and then 2 were used least recently");
        cache.insert(&tokens(4), 4, 10);
        assert_eq!(cache.bytes, 60, "what is replaced does not count");
        cache.insert(&tokens(5), 5, 1000);
        assert_eq!((cache.entries.len(), cache.get(&tokens(5))), (1, Some(&5)), "the newest stays");
    }

    #[test]
    fn features_are_those_of_all_tokens() {
        let cpu = Cpu::new(Precision::F32);
        let cache = PromptCache::new(0);
        cache.insert(&tokens(1), cpu.upload(&[1.0], 1, 1).unwrap(), 4);
        assert_eq!(cpu.download(&cache.get(&tokens(1)).unwrap()).unwrap(), [1.0]);
        let longer = PromptTokens { ids: vec![1, 0, 0], ..tokens(1) };
        let without_padding = PromptTokens { real: 2, ..tokens(1) };
        assert!(cache.get(&longer).is_none() && cache.get(&without_padding).is_none());
        assert!(
            cache.get(&PromptTokens { truncated: 3, cut_at: 7, ..tokens(1) }).is_some(),
            "what was cut is not read"
        );
        cache.clear();
        assert!(cache.get(&tokens(1)).is_none());
    }

    #[test]
    fn a_device_has_a_part_of_its_memory_for_them() {
        let budget = |available| PromptCache::<Cpu>::new(available).features().budget >> 20;
        assert_eq!([0, 10 << 30, 80 << 30].map(budget), [64, 160, 512]);
    }
}
