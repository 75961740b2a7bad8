//! Access of a GPU to the memory of another one.

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

/// How much goes each way to see whether a link carries what is sent.
const CHECKED_BYTES: usize = 64 << 10;

/// What a GPU can do with the memory of another one.
#[derive(Debug, PartialEq, Eq)]
pub enum Reach {
    /// Read and write it.
    Open,
    /// Nothing: no link is there.
    Closed,
    /// Nothing, for what the driver says: some machines link each GPU to a few others only.
    Refused(String),
    /// The driver says that there is a link, over which values come as others.
    Broken,
}

impl Device {
    /// Lets kernels of this GPU read and write all memory of `peer`; nothing to do where both are one GPU. Values are
    /// sent both ways first: where an IOMMU is in the way, the driver does not know that they do not come.
    ///
    /// Errors when memory runs out, and when nothing comes within some seconds: the GPU is of no use then.
    pub fn reach(self: &Arc<Self>, peer: &Arc<Self>) -> Result<Reach> {
        if self.is_same_gpu(peer) {
            return Ok(Reach::Open);
        }
        let (own, other) = (self.handle(), peer.handle());
        if !can_reach(own, other)? {
            return Ok(Reach::Closed);
        }
        self.make_current()?;
        // SAFETY: this device's context is current, and the other one is retained until its device is dropped.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context(), 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            e => {
                let what = format!("GPU {own} cannot reach the memory of GPU {other}");
                return Ok(Reach::Refused(failed(&what, result::DriverError(e)).what().to_string()));
            }
        }
        // Memory of pools is not part of what the context shares.
        if let Some(Err(error)) = peer.pools().map(|pools| pools.share_with(own)) {
            return Ok(Reach::Refused(error.what().to_string()));
        }
        let carries = self.reads_what_is_in(peer)?;
        Ok(if carries { Reach::Open } else { Reach::Broken })
    }

    /// Whether this GPU reads what `peer` has in its memory, and that one finds what this one writes there.
    fn reads_what_is_in(self: &Arc<Self>, peer: &Arc<Self>) -> Result<bool> {
        let memory = |device: &Arc<Self>| {
            Buffer::on_stream(device, device.download_stream(), BufferKind::Byte, CHECKED_BYTES)
                .and_then(|buffer| device.finish_check("has no memory in time").map(|()| buffer))
        };
        let (ours, theirs) = (memory(self)?, memory(peer)?);
        let crosses = |from: &Buffer, to: &Buffer| -> Result<bool> {
            let sent: Vec<u8> = (0..CHECKED_BYTES).map(|i| (i * 167 + i / 251) as u8).collect();
            from.put(&sent)?;
            to.put(&sent.iter().map(|byte| !byte).collect::<Vec<_>>())?;
            self.make_current()?;
            let stream = self.download_stream();
            // SAFETY: both buffers are as long, and no other work uses them. They are freed behind this, or not at all.
            unsafe { result::memcpy_dtod_async(to.address(), from.address(), CHECKED_BYTES, stream.raw()) }
                .map_err(|e| failed("cannot copy between GPUs", e))?;
            self.finish_check(&format!("gets nothing over its link to GPU {}", peer.handle()))?;
            Ok(to.get()? == sent)
        };
        let carries = crosses(&theirs, &ours).and_then(|read| Ok(read && crosses(&ours, &theirs)?));
        if carries.is_err() {
            // A copy may still be under way, which the other GPU's streams know nothing of.
            mem::forget((ours, theirs));
        }
        carries
    }

    /// Waits for what was enqueued to check a link.
    fn finish_check(self: &Arc<Self>, what: &str) -> Result<()> {
        let (done, start) = (Event::new(self, self.download_stream())?, Instant::now());
        while !done.is_done()? {
            // It takes microseconds, where nothing is wrong and the GPU has nothing else to do.
            if start.elapsed() > LIMIT {
                return Err(Error::new(format!("{} {what}", self.numbered_name())).hint(
                    "leave this GPU out, or turn the machine's IOMMU off; `nvidia-smi topo -p2p r` shows links",
                ));
            }
            thread::sleep(Duration::from_micros(20));
        }
        Ok(())
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

/// What to say of a link that is [`Reach::Broken`].
pub fn broken_link(device: &Device, peer: &Device) -> String {
    let (device, peer) = (device.numbered_name(), peer.numbered_name());
    format!(
        "what {device} and {peer} write into each other's memory comes as something else, perhaps because of an IOMMU"
    )
}

impl Buffer {
    /// Writes bytes that the host has. Waits.
    fn put(&self, bytes: &[u8]) -> Result<()> {
        let device = self.device();
        device.make_current()?;
        // SAFETY: the buffer is as long as `bytes`, which stays until the copy is done.
        unsafe { result::memcpy_htod_async(self.address(), bytes, device.download_stream().raw()) }
            .map_err(|e| failed("cannot copy to the GPU", e))?;
        device.finish_check("takes no values")
    }

    /// Its bytes. Waits.
    fn get(&self) -> Result<Vec<u8>> {
        let device = self.device();
        device.make_current()?;
        let mut bytes = vec![0; self.bytes()];
        // SAFETY: `bytes` is as long as the buffer, and waited for below.
        unsafe { result::memcpy_dtoh_async(&mut bytes, self.address(), device.download_stream().raw()) }
            .map_err(|e| failed("cannot copy from the GPU", e))?;
        let done = device.finish_check("gives no values");
        if done.is_err() {
            // The copy may still write there.
            mem::forget(mem::take(&mut bytes));
        }
        done.map(|()| bytes)
    }
}
