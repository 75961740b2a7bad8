//! Peer access: access of a GPU to the memory of another one.

use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::buffer::{Buffer, BufferKind};
use super::device::Device;
use super::driver::{can_reach, failed};
use super::event::Event;
use crate::backend::member::LIMIT;
use crate::error::{Error, Result};

/// Bytes sent each way to check that a link carries data.
const CHECKED_BYTES: usize = 64 << 10;

/// The access of a GPU to the memory of another one.
#[derive(Debug, PartialEq, Eq)]
pub enum Reach {
    /// Read and write access.
    Open,
    /// No access, because there is no link.
    Closed,
    /// No access, with the driver's reason: some machines link each GPU to a few others only.
    Refused(String),
    /// The driver reports a link, but it corrupts values.
    Broken,
}

impl Device {
    /// Enables access of this GPU's kernels to all memory of `peer`; does nothing if both are one GPU. It sends values
    /// both ways first: the driver doesn't notice an IOMMU that blocks them.
    ///
    /// Errors if memory runs out, or if nothing arrives within some seconds: the GPU is unusable then.
    pub fn reach(self: &Arc<Self>, peer: &Arc<Self>) -> Result<Reach> {
        if self.is_same_gpu(peer) {
            return Ok(Reach::Open);
        }
        let (own, other) = (self.handle, peer.handle);
        if !can_reach(own, other)? {
            return Ok(Reach::Closed);
        }
        self.make_current()?;
        // SAFETY: this device's context is current, and the other one is retained until its device is dropped.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            e => {
                let what = format!("GPU {own} cannot access the memory of GPU {other}");
                return Ok(Reach::Refused(failed(&what, result::DriverError(e)).what().to_string()));
            }
        }
        // The access rights of a context don't include memory of pools.
        if let Some(Err(error)) = peer.pools.as_ref().map(|pools| pools.share_with(own)) {
            return Ok(Reach::Refused(error.what().to_string()));
        }
        let carries = self.reads_what_is_in(peer)?;
        Ok(if carries { Reach::Open } else { Reach::Broken })
    }

    /// Returns `true` if this GPU reads values in the memory of `peer`, and `peer` finds the values that this one
    /// writes there.
    fn reads_what_is_in(self: &Arc<Self>, peer: &Arc<Self>) -> Result<bool> {
        let memory = |device: &Arc<Self>| {
            Buffer::on_stream(device, device.download_stream, BufferKind::Byte, CHECKED_BYTES)
                .and_then(|buffer| device.finish_check("did not allocate memory in time").map(|()| buffer))
        };
        let (ours, theirs) = (memory(self)?, memory(peer)?);
        let crosses = |from: &Buffer, to: &Buffer| -> Result<bool> {
            let sent: Vec<u8> = (0..CHECKED_BYTES).map(|i| (i * 167 + i / 251) as u8).collect();
            from.put(&sent)?;
            to.put(&sent.iter().map(|byte| !byte).collect::<Vec<_>>())?;
            self.make_current()?;
            let stream = self.download_stream;
            // SAFETY: both buffers have this length, and no other work uses them. They are freed behind this copy, or
            // not at all.
            unsafe { result::memcpy_dtod_async(to.address(), from.address(), CHECKED_BYTES, stream.raw()) }
                .map_err(|e| failed("cannot copy between GPUs", e))?;
            self.finish_check(&format!("received nothing over its link to GPU {}", peer.handle))?;
            Ok(to.get()? == sent)
        };
        let carries = crosses(&theirs, &ours).and_then(|read| Ok(read && crosses(&ours, &theirs)?));
        if carries.is_err() {
            // A copy may still be running that the other GPU's streams don't wait for.
            mem::forget((ours, theirs));
        }
        carries
    }

    /// Waits for the work that checks a link.
    fn finish_check(self: &Arc<Self>, what: &str) -> Result<()> {
        let (done, start) = (Event::new(self, self.download_stream)?, Instant::now());
        while !done.is_done()? {
            // It takes microseconds on a working link of an idle GPU.
            if start.elapsed() > LIMIT {
                return Err(Error::new(format!("{} {what}", self.numbered_name())).hint(
                    "leave this GPU out, or turn the machine's IOMMU off; `nvidia-smi topo -p2p r` shows links",
                ));
            }
            thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    /// Returns the GPU's name for messages about several GPUs.
    pub fn numbered_name(&self) -> String {
        format!("GPU {} ({})", self.handle, self.name())
    }

    /// Returns `true` if `other` is another handle to the same GPU.
    pub fn is_same_gpu(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

/// Returns the message for a link that is [`Reach::Broken`].
pub fn broken_link(device: &Device, peer: &Device) -> String {
    let (device, peer) = (device.numbered_name(), peer.numbered_name());
    format!(
        "data that {device} and {peer} write into each other's memory arrives corrupted, perhaps because of an IOMMU"
    )
}

impl Buffer {
    /// Writes host bytes. Waits.
    fn put(&self, bytes: &[u8]) -> Result<()> {
        let device = self.device();
        device.make_current()?;
        // SAFETY: the buffer is as long as `bytes`, which stays until the copy is done.
        unsafe { result::memcpy_htod_async(self.address(), bytes, device.download_stream.raw()) }
            .map_err(|e| failed("cannot copy to the GPU", e))?;
        device.finish_check("did not receive any values")
    }

    /// Returns its bytes. Waits.
    fn get(&self) -> Result<Vec<u8>> {
        let device = self.device();
        device.make_current()?;
        let mut bytes = vec![0; self.bytes()];
        // SAFETY: `bytes` has the buffer's length, and is waited for below.
        unsafe { result::memcpy_dtoh_async(&mut bytes, self.address(), device.download_stream.raw()) }
            .map_err(|e| failed("cannot copy from the GPU", e))?;
        let done = device.finish_check("did not return any values");
        if done.is_err() {
            // The copy may still write there.
            mem::forget(mem::take(&mut bytes));
        }
        done.map(|()| bytes)
    }
}
