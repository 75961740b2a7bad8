//! What a session finds of earlier ones: texts and references as they meet the image.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::residency::early_cache::{EarlyCache, EarlyInput, EarlyKey};
use crate::tensor::Tensor;

/// Early results of one schedule.
pub(super) struct EarlyResults<B: Backend> {
    /// None where several devices make an image together: what one of them lacks, all would have to make.
    pub cache: Option<Arc<EarlyCache<B>>>,
    pub adapters: SetKey,
    /// The bits of the time that each step leads to; none where the model does not read it.
    pub next_times: Vec<u32>,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Bytes that may be cached without the steps lacking them.
    pub spare: u64,
    /// How often results were made here.
    pub made: usize,
}

impl<B: Backend> EarlyResults<B> {
    /// What `input` became for these steps, cached or as `make` makes it now.
    ///
    /// Errors as `make`.
    pub(super) fn of(
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
