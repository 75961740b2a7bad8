//! Cache of early results: texts and references after the early blocks, which process them before they join the image
//! tokens.

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::residency::byte_cache::ByteCache;
use crate::tensor::Tensor;

/// Maximum bytes on a device. A text of 320 tokens takes 2 MB per step in the published model, references of a
/// megapixel 25 MB.
const MAX_BYTES: u64 = 2 << 30;
/// Divisor of a device's free memory that gives the limit.
const PART: u64 = 32;

/// Everything that early results depend on besides the weights.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct EarlyKey {
    pub(crate) adapters: SetKey,
    pub(crate) input: EarlyInput,
    /// Bits of the next times of the steps whose results were computed together, because other groupings accumulate
    /// in another order; empty if the results apply to all steps.
    pub(crate) next_times: Vec<u32>,
}

/// The input of early blocks, by the numbers of [`Known`](super::known::Known).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum EarlyInput {
    Text(u64),
    /// All references in their order, because each attends to the others.
    References(Vec<u64>),
}

/// The most recently used results, [tokens, dim] for each step of a key.
pub(crate) struct EarlyCache<B: Backend>(Mutex<ByteCache<EarlyKey, Vec<Tensor<B>>>>);

impl<B: Backend> EarlyCache<B> {
    /// Creates the cache of a device with `available` free bytes.
    pub(crate) fn new(available: u64) -> Self {
        Self(Mutex::new(ByteCache::new((available / PART).min(MAX_BYTES))))
    }

    /// Returns views of the results of a key.
    pub(crate) fn get(&self, key: &EarlyKey) -> Option<Vec<Tensor<B>>> {
        self.0.lock().get(key).map(|results| views(results))
    }

    /// Caches results that take `bytes` bytes.
    pub(crate) fn insert(&self, key: EarlyKey, results: &[Tensor<B>], bytes: u64) {
        self.0.lock().insert(key, views(results), bytes);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

fn views<B: Backend>(tensors: &[Tensor<B>]) -> Vec<Tensor<B>> {
    tensors.iter().map(|tensor| tensor.row_view(0..tensor.rows())).collect()
}
