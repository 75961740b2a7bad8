//! The driver's pools of a GPU's memory.
//!
//! A pool gives memory back in whole chunks, so a small tensor that stays in a chunk of large ones that went keeps all
//! of it from others. What comes and goes at different times has a pool of its own.

use cudarc::driver::{result, sys};

use super::driver::failed;
use crate::error::Result;

/// Tensors of fewer bytes may outlive the work that made them: latents, text features, tables.
const SMALL_BYTES: usize = 16 << 20;

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Weights, which stay.
    Weights,
    /// All else.
    Work,
}

/// Pools that keep what is freed for the next allocation; by default every wait gives it back to the system. None is
/// the driver's default pool, so that others in this process do not count.
pub struct Pools {
    weights: sys::CUmemoryPool,
    large: sys::CUmemoryPool,
    small: sys::CUmemoryPool,
}

impl Pools {
    /// Errors when the driver makes none. They live until [`Pools::destroy`].
    pub fn new(device: sys::CUdevice) -> Result<Self> {
        Ok(Self { weights: new_pool(device)?, large: new_pool(device)?, small: new_pool(device)? })
    }

    fn all(&self) -> [sys::CUmemoryPool; 3] {
        [self.weights, self.large, self.small]
    }

    /// The pool for so many bytes.
    pub fn of(&self, purpose: Use, bytes: usize) -> sys::CUmemoryPool {
        match purpose {
            _ if bytes < SMALL_BYTES => self.small,
            Use::Weights => self.weights,
            Use::Work => self.large,
        }
    }

    /// What the driver holds for them, in use or not.
    pub fn bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for pool in self.all() {
            let mut bytes = 0u64;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            // SAFETY: the pool lives as long as the device; the attribute's value is a u64.
            unsafe { result::mem_pool::get_attribute(pool, attribute, std::ptr::from_mut(&mut bytes).cast()) }
                .map_err(|e| failed("cannot ask for GPU memory", e))?;
            sum += bytes;
        }
        Ok(sum)
    }

    /// Lets kernels of the GPU `peer` read and write their memory.
    pub fn share_with(&self, peer: sys::CUdevice) -> Result<()> {
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: peer },
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        self.all().into_iter().try_for_each(|pool| {
            // SAFETY: the pool lives as long as the device; the driver reads one description.
            unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) }
                .result()
                .map_err(|e| failed(&format!("cannot share GPU memory with GPU {peer}"), e))
        })
    }

    /// Gives back to the system what they hold and nobody uses.
    pub fn trim(&self) -> Result<()> {
        self.all().into_iter().try_for_each(|pool| {
            // SAFETY: the pool lives as long as the device.
            unsafe { result::mem_pool::trim_to(pool, 0) }.map_err(|e| failed("cannot give GPU memory back", e))
        })
    }

    /// # Safety
    /// They are not used any more.
    pub unsafe fn destroy(&self) {
        for pool in self.all() {
            // SAFETY: what the caller promises. An error is one that callers have seen.
            let _ = unsafe { result::mem_pool::destroy(pool) };
        }
    }
}

/// A pool that gives nothing back by itself.
fn new_pool(device: sys::CUdevice) -> Result<sys::CUmemoryPool> {
    let failed = |e| failed("cannot set up GPU memory", e);
    let props = sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    // SAFETY: the properties are whole, and of a device that the driver named.
    let pool = unsafe { result::mem_pool::create(&props) }.map_err(failed)?;
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool was made above, and the attribute's value is a u64.
    unsafe { result::mem_pool::set_attribute(pool, attribute, std::ptr::from_mut(&mut threshold).cast()) }
        .map_err(failed)?;
    Ok(pool)
}
