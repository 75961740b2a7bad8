//! Cache of the text features of recent prompts, so that the text encoder does not run again for them.

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::pipeline::residency::byte_cache::{ByteCache, CacheStats};
use crate::pipeline::residency::known::Known;
use crate::tensor::Tensor;
use crate::text_encoder::PromptTokens;

/// Maximum bytes on a device. The features of one prompt take 8 MB in the 4B model.
const MAX_BYTES: u64 = 512 << 20;
/// Minimum limit, for small devices.
const MIN_BYTES: u64 = 64 << 20;
/// Divisor of a device's free memory that gives the limit.
const PART: u64 = 64;

/// Text features by the tokens of their prompts.
pub(crate) type FeatureCache<T> = ByteCache<PromptKey, T>;

/// Everything that the features of a prompt depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PromptKey {
    /// Tokens, including padding.
    ids: Vec<u32>,
    /// Number of tokens that are not padding.
    real: usize,
}

impl PromptKey {
    pub(crate) fn new(tokens: &PromptTokens) -> Self {
        Self { ids: tokens.ids.clone(), real: tokens.real }
    }
}

/// The features of the most recently used prompts, [tokens, features] each, on a device.
pub(crate) struct PromptCache<B: Backend>(Mutex<FeatureCache<Known<B>>>);

impl<B: Backend> PromptCache<B> {
    /// Creates the cache of a device with `available` free bytes.
    pub(crate) fn new(available: u64) -> Self {
        Self(Mutex::new(FeatureCache::new((available / PART).clamp(MIN_BYTES, MAX_BYTES))))
    }

    /// Returns a view of the features of a prompt.
    pub(crate) fn get(&self, tokens: &PromptTokens) -> Option<Known<B>> {
        self.0.lock().get(&PromptKey::new(tokens)).map(Known::view)
    }

    /// Caches the features of a prompt, with `value_bytes` bytes per value, and returns a view of them.
    pub(crate) fn insert(&self, tokens: &PromptTokens, features: Tensor<B>, value_bytes: u64) -> Known<B> {
        let bytes = (features.rows() * features.cols()) as u64 * value_bytes;
        let (cached, known) = Known::new(features);
        self.0.lock().insert(PromptKey::new(tokens), cached, bytes);
        known
    }

    pub(crate) fn stats(&self) -> CacheStats {
        self.0.lock().stats()
    }

    /// Drops features beyond the minimum limit.
    pub(crate) fn shrink(&self) {
        self.0.lock().keep(MIN_BYTES);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
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
    fn features_are_those_of_all_tokens() {
        let cpu = Cpu::new(Precision::F32);
        let cache = PromptCache::new(0);
        cache.insert(&tokens(1), cpu.upload(&[1.0], 1, 1).unwrap(), 4);
        assert_eq!(cpu.download(&cache.get(&tokens(1)).unwrap().rows).unwrap(), [1.0]);
        let longer = PromptTokens { ids: vec![1, 0, 0], ..tokens(1) };
        let without_padding = PromptTokens { real: 2, ..tokens(1) };
        assert!(cache.get(&longer).is_none() && cache.get(&without_padding).is_none());
        assert!(
            cache.get(&PromptTokens { truncated: 3, cut_at: 7, ..tokens(1) }).is_some(),
            "the cut part is not read"
        );
        cache.clear();
        assert!(cache.get(&tokens(1)).is_none());
    }

    #[test]
    fn a_device_has_a_part_of_its_memory_for_them() {
        let budget = |available| PromptCache::<Cpu>::new(available).0.lock().budget() >> 20;
        assert_eq!([0, 10 << 30, 80 << 30].map(budget), [64, 160, 512]);
    }
}
