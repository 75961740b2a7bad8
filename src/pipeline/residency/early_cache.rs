//! Caches what texts and references became before they met the image, so that their blocks do not run again for them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::Backend;
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::residency::byte_cache::ByteCache;
use crate::tensor::Tensor;

/// The most bytes of a device. A text of 320 tokens takes 2 MB a step in the published model, references of a megapixel
/// 25 MB.
const MOST_BYTES: u64 = 2 << 30;
/// Which part of a device's free memory it may have.
const PART: u64 = 32;

/// All that early results depend on beside the weights.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct EarlyKey {
    pub(crate) adapters: SetKey,
    pub(crate) input: EarlyInput,
    /// The bits of the times that steps lead to whose results were made at once, because other products sum in another
    /// order; none where the results are those of all steps.
    pub(crate) next_times: Vec<u32>,
}

/// What is by itself before it meets the image, by the numbers of [`Known`](super::known::Known).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum EarlyInput {
    Text(u64),
    /// All references in their order, because each is seen by the others.
    References(Vec<u64>),
}

/// The results [tokens, dim] that were used last, of each step of a key.
pub(crate) struct EarlyCache<B: Backend>(Mutex<ByteCache<EarlyKey, Vec<Tensor<B>>>>);

impl<B: Backend> EarlyCache<B> {
    /// Of a device with so many free bytes.
    pub(crate) fn new(available: u64) -> Self {
        Self(Mutex::new(ByteCache::new((available / PART).min(MOST_BYTES))))
    }

    /// The results of a key, to read.
    pub(crate) fn get(&self, key: &EarlyKey) -> Option<Vec<Tensor<B>>> {
        self.results().get(key).map(|results| views(results))
    }

    /// Caches results that take so many bytes.
    pub(crate) fn insert(&self, key: EarlyKey, results: &[Tensor<B>], bytes: u64) {
        self.results().insert(key, views(results), bytes);
    }

    pub(crate) fn clear(&self) {
        self.results().clear();
    }

    fn results(&self) -> MutexGuard<'_, ByteCache<EarlyKey, Vec<Tensor<B>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn views<B: Backend>(tensors: &[Tensor<B>]) -> Vec<Tensor<B>> {
    tensors.iter().map(|tensor| tensor.row_view(0..tensor.rows())).collect()
}
