//! Detection of activations that are too large for fp16: kernels clamp them and set a flag, see cuda/common.cuh.

use cudarc::driver::sys;

use super::Cuda;
use super::driver::failed;
use super::element::Element;
use crate::error::Result;

/// The flag of a module of kernels: `saturated` in cuda/common.cuh.
const FLAG: &std::ffi::CStr = c"saturated";

impl Cuda {
    /// Returns a message if activations were clamped so far. Waits for the work so far.
    ///
    /// Errors if the GPU failed, or while this thread captures.
    pub(super) fn saturation(&self) -> Result<Option<String>> {
        if self.element() == Element::Bf16 {
            return Ok(None);
        }
        let mut files = Vec::new();
        for (file, module) in self.device().loaded_modules() {
            // SAFETY: every module of kernels for fp16 has the flag, of 4 bytes, which lives as long as the module.
            let [flag] = unsafe { self.download_values::<u32>(flag_of(module)?, 1, 1, 1) }?[..] else { continue };
            files.extend((flag != 0).then(|| format!("`{file}`")));
        }
        Ok((!files.is_empty()).then(|| {
            let files = files.join(", ");
            format!("values too large for fp16 were clamped in {files}, so images may differ from those of other GPUs")
        }))
    }
}

/// Returns the flag's address on the device.
fn flag_of(module: sys::CUmodule) -> Result<u64> {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the module is loaded until the device is dropped; the driver writes an address and a size.
    unsafe { sys::cuModuleGetGlobal_v2(&mut address, &mut bytes, module, FLAG.as_ptr()) }
        .result()
        .map_err(|e| failed("the kernels have no overflow flag", e))?;
    Ok(address)
}
