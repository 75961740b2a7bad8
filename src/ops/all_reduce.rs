//! Sums over all devices.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Channel statistics of the whole image of which self is the band of this rank; `own` are those of self, where
    /// they are known. All ranks get the same bits, because all combine those of all ranks in the order of ranks.
    ///
    /// self [pixels, channels]. None on one device: what reads statistics has those of self, or computes them.
    ///
    /// Errors when another rank fails or does not come.
    pub fn all_reduce_statistics(&self, own: Option<&B::ChannelStatistics>) -> Result<Option<B::ChannelStatistics>> {
        expect_activations("all_reduce_statistics", &[self])?;
        self.backend().all_reduce_statistics(self, own)
    }
}

/// What `all_reduce_statistics` means on one device. What the statistics of several are is up to their backend.
pub fn compose<B: Backend>(b: &B) -> Result<Option<B::ChannelStatistics>> {
    if b.world() == 1 {
        return Ok(None);
    }
    Err(Error::new(format!("{} does not combine statistics", b.describe())).at("op `all_reduce_statistics`"))
}
