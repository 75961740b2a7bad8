//! Access of a GPU to the memory of another one.

use cudarc::driver::sys;

use super::device::Device;
use super::driver::failed;
use crate::error::{Error, Result};

impl Device {
    /// Lets kernels of this GPU read and write all memory of `peer`; nothing to do where both are one GPU.
    ///
    /// Errors when nothing links them.
    pub fn reach(&self, peer: &Self) -> Result<()> {
        if self.is_same_gpu(peer) {
            return Ok(());
        }
        let (own, other) = (self.handle(), peer.handle());
        let mut can = 0;
        // SAFETY: both devices are open; the driver writes one int.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, other) }
            .result()
            .map_err(|e| failed("cannot ask how GPUs are linked", e))?;
        if can == 0 {
            let what = format!("GPU {own} ({}) cannot reach the memory of GPU {other} ({})", self.name(), peer.name());
            return Err(
                Error::new(what).hint("use GPUs that `nvidia-smi topo -p2p r` shows as OK, or one of them alone")
            );
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
        peer.pools().map_or(Ok(()), |pools| pools.share_with(own))
    }

    /// Whether `other` is another handle to the same GPU.
    pub fn is_same_gpu(&self, other: &Self) -> bool {
        self.handle() == other.handle()
    }
}
