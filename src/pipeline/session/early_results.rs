//! Early results of a session: texts and references after the early blocks, cached across sessions.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::residency::early_cache::{EarlyCache, EarlyInput, EarlyKey};
use crate::tensor::Tensor;

/// The early results of one schedule.
pub(super) struct EarlyResults<B: Backend> {
    /// The cache; `None` if several devices generate an image together, because a miss on one device would be a miss
    /// on all.
    pub cache: Option<Arc<EarlyCache<B>>>,
    pub adapters: SetKey,
    /// Bits of the next time of each step; empty if the model does not read it.
    pub next_times: Vec<u32>,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Bytes that may be cached without taking memory from the steps.
    pub spare: u64,
    /// Number of computed results.
    pub made: usize,
}

impl<B: Backend> EarlyResults<B> {
    /// Returns the results of `input` for these steps, from the cache or computed by `make`.
    ///
    /// Errors as `make`.
    pub(super) fn get_or_compute(
        &mut self,
        input: Option<EarlyInput>,
        steps: Range<usize>,
        make: impl FnOnce() -> Result<Vec<Tensor<B>>>,
    ) -> Result<Vec<Tensor<B>>> {
        let next_times = self.next_times.get(steps).unwrap_or_default().to_vec();
        let key = input.map(|input| EarlyKey { adapters: self.adapters.clone(), input, next_times });
        let Some((cache, key)) = self.cache.as_ref().zip(key) else {
            self.made += 1;
            return make();
        };
        if let Some(found) = cache.get(&key) {
            return Ok(found);
        }
        self.made += 1;
        let made = make()?;
        let values: usize = made.iter().map(|tensor| tensor.rows() * tensor.cols()).sum();
        let bytes = values as u64 * self.value_bytes;
        if bytes <= self.spare {
            self.spare -= bytes;
            cache.insert(key, &made, bytes);
        }
        Ok(made)
    }
}
