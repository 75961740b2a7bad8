//! `trait Group`: devices that make one image together.

use super::Memory;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A place in a group of devices that make one image together: each has a part of the tokens or pixels, and the whole
/// weights. The defaults are those of a device that is alone.
pub trait Group: Memory {
    /// Which device of its group this is, from 0.
    fn rank(&self) -> usize {
        0
    }
    /// Devices of its group, which make one image together: each has a part of the tokens or pixels, and the whole
    /// weights. All of them call the same collectives in the same order.
    fn world(&self) -> usize {
        1
    }
    /// Gives each rank its parcel of `sent`, and returns what each rank gave this one, in the order of ranks: what all
    /// collectives are made of. What a rank gives itself comes back. `op` names the collective.
    ///
    /// What is given may be views, and parcels may be empty or of tensors without rows. It may be dropped at once; what
    /// comes is for reading, as long as it is held.
    ///
    /// Errors when another rank fails, is gone, does not come in time, or is in another collective.
    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>> {
        if self.world() == 1 {
            return Ok(sent);
        }
        Err(Error::new(format!("{} passes nothing to other devices", self.describe())).at(format!("op `{op}`")))
    }
    /// What the host of each rank gives, in the order of ranks. It waits longer than collectives do, because ranks may
    /// be loading weights before it; `what` says what for. It does not wait for the device.
    ///
    /// Errors as [`Group::exchange`].
    fn gather_host<T: Clone + Send + 'static>(&self, _what: &'static str, value: T) -> Result<Vec<T>> {
        Ok(vec![value])
    }
    /// As [`Group::gather_host`], between ranks of which none loads anything: it waits no longer than collectives do.
    ///
    /// Errors as [`Group::exchange`].
    fn gather_soon(&self, _what: &'static str, value: u64) -> Result<Vec<u64>> {
        Ok(vec![value])
    }
    /// Ends the collectives of all ranks, those that wait and those to come, with `cause`, which ended the work of this
    /// rank.
    fn abort_collectives(&self, _cause: &Error) {}
    /// Undoes [`Group::abort_collectives`], and forgets what was given and not taken. No rank is in a collective
    /// meanwhile.
    ///
    /// Errors when the group is of no more use.
    fn restore_collectives(&self) -> Result<()> {
        Ok(())
    }
}
