//! Access of a GPU to the memory of another one.

use cudarc::driver::sys;

use super::device::Device;
use super::driver::{can_reach, failed};
use super::{Cuda, Link};
use crate::backend::Backend;
use crate::error::Result;

impl Device {
    /// Lets kernels of this GPU read and write all memory of `peer`; nothing to do where both are one GPU. False where
    /// nothing links them.
    pub fn reach(&self, peer: &Self) -> Result<bool> {
        if self.is_same_gpu(peer) {
            return Ok(true);
        }
        let (own, other) = (self.handle(), peer.handle());
        if !can_reach(own, other)? {
            return Ok(false);
        }
        self.make_current()?;
        // SAFETY: this device's context is current, and the other one is retained until its device is dropped.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context(), 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            e => {
                let what = format!("GPU {own} cannot reach the memory of GPU {other}");
                return Err(failed(&what, cudarc::driver::result::DriverError(e)));
            }
        }
        // Memory of pools is not part of what the context shares.
        peer.pools().map_or(Ok(()), |pools| pools.share_with(own))?;
        Ok(true)
    }

    /// The GPU as messages name it where there are several.
    pub fn numbered_name(&self) -> String {
        format!("GPU {} ({})", self.handle(), self.name())
    }

    /// Whether `other` is another handle to the same GPU.
    pub fn is_same_gpu(&self, other: &Self) -> bool {
        self.handle() == other.handle()
    }
}

impl Cuda {
    /// See [`crate::backend::Backend::copy_weights_from`].
    pub(super) fn copy_weights_from_op(&self, other: &Self) -> Result<bool> {
        let alike = |cuda: &Self| (cuda.element(), cuda.device().capability(), cuda.0.precision);
        let may = !self.is_same_device(other) && alike(self) == alike(other) && Link::wished()?.is_none();
        if !may {
            return Ok(false);
        }
        match self.device().reach(other.device()) {
            Ok(true) => {
                self.0.uploader.copy_from(&other.0.uploader, other.device().numbered_name());
                Ok(true)
            }
            Ok(false) => Ok(false),
            // Some machines link each GPU to a few others only.
            Err(error) => {
                self.0.uploader.cannot_copy(error.what());
                Ok(false)
            }
        }
    }
}
