//! Sums over all devices.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Combines the channel statistics of all ranks. self is this rank's band of the image; `own` are the statistics
    /// of self, if they are known. All ranks get the same bits, because each combines them in the order of ranks.
    ///
    /// self [pixels, channels]. `None` on one device: readers of statistics have those of self, or compute them.
    ///
    /// Errors if another rank fails or does not join.
    pub fn all_reduce_statistics(&self, own: Option<&B::ChannelStatistics>) -> Result<Option<B::ChannelStatistics>> {
        expect_activations("all_reduce_statistics", &[self])?;
        self.backend().all_reduce_statistics(self, own)
    }
}

/// Defines `all_reduce_statistics` on one device. Only a backend can combine statistics of several devices.
pub fn compose<B: Backend>(b: &B) -> Result<Option<B::ChannelStatistics>> {
    if b.world() == 1 {
        return Ok(None);
    }
    Err(Error::new(format!("{} cannot combine statistics", b.describe())).at("op `all_reduce_statistics`"))
}
