//! `trait Group`: collectives of devices that generate one image together.

use super::Memory;
use super::member::Member;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The rank of a device in a group that generates one image: each rank has a part of the tokens or pixels, and the
/// whole weights.
pub trait Group: Memory {
    /// Returns this device's member of its group, if it is in one.
    fn member(&self) -> Option<&Member>;
    /// Returns the rank of this device in its group, from 0.
    fn rank(&self) -> usize {
        self.member().map_or(0, Member::rank)
    }
    /// Returns the number of devices in the group. All of them call the same collectives in the same order.
    fn world(&self) -> usize {
        self.member().map_or(1, Member::world)
    }
    /// Sends each rank its parcel of `sent`, and returns the parcels from all ranks, in the order of ranks: the
    /// primitive of all collectives. A rank's parcel for itself is returned to it. `op` is the name of the collective.
    ///
    /// Sent tensors may be views, and parcels may be empty or of tensors without rows. The caller may drop them at
    /// once. Received tensors are read-only as long as they are held.
    ///
    /// Errors if another rank fails, is gone, times out, or is in another collective.
    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>>;
    /// Returns the values of all hosts, in the order of ranks. Its timeout is longer than that of collectives, because
    /// ranks may be loading weights first; `what` describes the purpose. Does not wait for the device.
    ///
    /// Errors as [`Group::exchange`].
    fn gather_host<T: Clone + Send + 'static>(&self, what: &'static str, value: T) -> Result<Vec<T>> {
        match self.member() {
            Some(member) => member.exchange_patiently(what, vec![value; member.world()]),
            None => Ok(vec![value]),
        }
    }
    /// As [`Group::gather_host`] with the timeout of collectives, if no rank is loading.
    ///
    /// Errors as [`Group::exchange`].
    fn gather_soon(&self, what: &'static str, value: u64) -> Result<Vec<u64>> {
        match self.member() {
            Some(member) => member.exchange(what, vec![value; member.world()]),
            None => Ok(vec![value]),
        }
    }
    /// Ends all pending and later collectives of all ranks with `cause`, which ended the work of this rank.
    fn abort_collectives(&self, cause: &Error) {
        self.member().iter().for_each(|member| member.abort(cause));
    }
    /// Undoes [`Group::abort_collectives`], and discards parcels that were sent and not received. No rank may be in a
    /// collective meanwhile.
    ///
    /// Errors if the group can't be used any more.
    fn restore_collectives(&self) -> Result<()>;
}
