//! The driver's pools of a GPU's memory.
//!
//! A pool returns memory in whole chunks, so one small tensor in a chunk of freed large ones keeps the chunk from other
//! uses. Memory with different lifetimes has different pools.

use cudarc::driver::{result, sys};

use super::driver::failed;
use crate::error::Result;

/// Tensors of fewer bytes may outlive the work that allocated them: latents, text features, tables.
const SMALL_BYTES: usize = 16 << 20;

/// The purpose of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Weights, which are long-lived.
    Weights,
    /// All other memory.
    Work,
}

/// Pools that keep freed memory for the next allocation; by default every wait returns it to the system. None is the
/// driver's default pool, so that other users in this process don't count.
pub struct Pools {
    weights: sys::CUmemoryPool,
    large: sys::CUmemoryPool,
    small: sys::CUmemoryPool,
}

impl Pools {
    /// Errors if the driver can't create one. The pools live until [`Pools::destroy`].
    pub fn new(device: sys::CUdevice) -> Result<Self> {
        Ok(Self { weights: new_pool(device)?, large: new_pool(device)?, small: new_pool(device)? })
    }

    fn all(&self) -> [sys::CUmemoryPool; 3] {
        [self.weights, self.large, self.small]
    }

    /// Returns the pool for an allocation of `bytes` bytes.
    pub fn pool_for(&self, purpose: Use, bytes: usize) -> sys::CUmemoryPool {
        match purpose {
            _ if bytes < SMALL_BYTES => self.small,
            Use::Weights => self.weights,
            Use::Work => self.large,
        }
    }

    /// Returns the bytes that the driver holds for the pools, in use or not.
    pub fn bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for pool in self.all() {
            let mut bytes = 0u64;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            // SAFETY: the pool lives as long as the device; the attribute's value is a u64.
            unsafe { result::mem_pool::get_attribute(pool, attribute, std::ptr::from_mut(&mut bytes).cast()) }
                .map_err(|e| failed("cannot query GPU memory", e))?;
            sum += bytes;
        }
        Ok(sum)
    }

    /// Gives kernels of the GPU `peer` access to the pools' memory.
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

    /// Returns unused memory of the pools to the system.
    pub fn trim(&self) -> Result<()> {
        self.all().into_iter().try_for_each(|pool| {
            // SAFETY: the pool lives as long as the device.
            unsafe { result::mem_pool::trim_to(pool, 0) }.map_err(|e| failed("cannot release GPU memory", e))
        })
    }

    /// # Safety
    /// The pools are not used any more.
    pub unsafe fn destroy(&self) {
        for pool in self.all() {
            // SAFETY: as the caller promises. Errors have been reported to callers before.
            let _ = unsafe { result::mem_pool::destroy(pool) };
        }
    }
}

/// Creates a pool that keeps freed memory until it is trimmed.
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
    // SAFETY: the properties are complete, for a device that the driver listed.
    let pool = unsafe { result::mem_pool::create(&props) }.map_err(failed)?;
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool was created above, and the attribute's value is a u64.
    unsafe { result::mem_pool::set_attribute(pool, attribute, std::ptr::from_mut(&mut threshold).cast()) }
        .map_err(failed)?;
    Ok(pool)
}
