//! `trait Group`: collectives of devices that generate one image together.

use super::Memory;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The rank of a device in a group that generates one image: each rank has a part of the tokens or pixels, and the
/// whole weights. The defaults are those of a single device.
pub trait Group: Memory {
    /// Returns the rank of this device in its group, from 0.
    fn rank(&self) -> usize {
        0
    }
    /// Returns the number of devices in the group. All of them call the same collectives in the same order.
    fn world(&self) -> usize {
        1
    }
    /// Sends each rank its parcel of `sent`, and returns the parcels from all ranks, in the order of ranks: the
    /// primitive of all collectives. A rank's parcel for itself is returned to it. `op` is the name of the collective.
    ///
    /// Sent tensors may be views, and parcels may be empty or of tensors without rows. The caller may drop them at
    /// once. Received tensors are read-only as long as they are held.
    ///
    /// Errors if another rank fails, is gone, times out, or is in another collective.
    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>> {
        if self.world() == 1 {
            return Ok(sent);
        }
        Err(Error::new(format!("{} cannot exchange data with other devices", self.describe())).at(format!("op `{op}`")))
    }
    /// Returns the values of all hosts, in the order of ranks. Its timeout is longer than that of collectives, because
    /// ranks may be loading weights first; `what` describes the purpose. Does not wait for the device.
    ///
    /// Errors as [`Group::exchange`].
    fn gather_host<T: Clone + Send + 'static>(&self, _what: &'static str, value: T) -> Result<Vec<T>> {
        Ok(vec![value])
    }
    /// As [`Group::gather_host`] with the timeout of collectives, if no rank is loading.
    ///
    /// Errors as [`Group::exchange`].
    fn gather_soon(&self, _what: &'static str, value: u64) -> Result<Vec<u64>> {
        Ok(vec![value])
    }
    /// Ends all pending and later collectives of all ranks with `cause`, which ended the work of this rank.
    fn abort_collectives(&self, _cause: &Error) {}
    /// Undoes [`Group::abort_collectives`], and discards parcels that were sent and not received. No rank may be in a
    /// collective meanwhile.
    ///
    /// Errors if the group can't be used any more.
    fn restore_collectives(&self) -> Result<()> {
        Ok(())
    }
}
