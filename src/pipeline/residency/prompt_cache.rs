//! Caches the text features of the last prompts, so that the text encoder does not run again for them.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::backend::Backend;
use crate::tensor::Tensor;

/// How many prompts are cached. The features of one take 8 MB in the 4B model.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// The features of the prompts that were used last, by the text and the number of tokens.
pub(crate) struct PromptCache<B: Backend>(Mutex<LruCache<(String, usize), Tensor<B>>>);

impl<B: Backend> PromptCache<B> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LruCache::new(CAPACITY)))
    }

    /// The features [tokens, features] of a prompt, to read.
    pub(crate) fn get(&self, prompt: &str, tokens: usize) -> Option<Tensor<B>> {
        self.prompts().get(&(prompt.to_string(), tokens)).map(|features| features.row_view(0..features.rows()))
    }

    /// Caches the features of a prompt, in place of the least recently used ones.
    pub(crate) fn insert(&self, prompt: &str, features: Tensor<B>) {
        self.prompts().put((prompt.to_string(), features.rows()), features);
    }

    pub(crate) fn clear(&self) {
        self.prompts().clear();
    }

    fn prompts(&self) -> MutexGuard<'_, LruCache<(String, usize), Tensor<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Memory;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn the_least_recently_used_prompt_is_replaced() {
        let cpu = Cpu::new(Precision::F32);
        let cache = PromptCache::new();
        for i in 0..CAPACITY.get() {
            cache.insert(&i.to_string(), cpu.upload(&[i as f32], 1, 1).unwrap());
        }
        assert_eq!(cpu.download(&cache.get("0", 1).unwrap()).unwrap(), [0.0]);
        cache.insert("new", cpu.upload(&[9.0], 1, 1).unwrap());
        assert!(cache.get("0", 1).is_some() && cache.get("new", 1).is_some() && cache.get("1", 1).is_none());
        assert!(cache.get("0", 2).is_none(), "in another number of tokens its features are others");
        cache.clear();
        assert!(cache.get("0", 1).is_none());
    }
}
