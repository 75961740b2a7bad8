//! The NVIDIA driver: presence, version, properties of GPUs, and error messages.

use std::fs::File;
use std::io;
use std::path::Path;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::{kernels, library};
use crate::error::{Error, Result};

/// The driver version of CUDA 13.0, as the driver counts: older drivers lack functions that the bindings call, and
/// can't load the code of this nvcc.
const OLDEST_DRIVER: i32 = 13000;
/// The oldest GPUs that CUDA 13 supports.
const OLDEST_CAPABILITY: (i32, i32) = (7, 5);

/// Converts a driver error to a message.
pub fn failed(what: &str, error: DriverError) -> Error {
    let name = error
        .error_name()
        .ok()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|| format!("{:?}", error.0));
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    Error::new(format!("{what}: {text} ({name})"))
}

/// Starts the driver, and returns its version as the driver counts: 13000 is CUDA 13.0.
///
/// Errors if the program has no kernels, or the machine has no driver that is new enough.
pub fn start_driver() -> Result<i32> {
    kernels::require_any()?;
    let version = start_any_driver()?;
    check_version(version)?;
    Ok(version)
}

/// As [`start_driver`], for a driver that may be too old and a program that may have no kernels.
///
/// Errors if there is no driver, or it does not start.
pub fn start_any_driver() -> Result<i32> {
    library::require_driver()?;
    result::init().map_err(|e| failed("cannot start CUDA", e).hint(why_not_started(Path::new("/dev"))))?;
    let mut version = 0;
    // SAFETY: the driver writes one int.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| failed("cannot query the driver", e))?;
    Ok(version)
}

/// Errors if the driver is too old.
pub fn check_version(version: i32) -> Result<()> {
    if version >= OLDEST_DRIVER {
        return Ok(());
    }
    let (major, minor) = (version / 1000, version % 1000 / 10);
    Err(Error::new(format!("the NVIDIA driver supports CUDA {major}.{minor}, expected at least 13.0"))
        .hint("install driver 580 or later"))
}

/// Returns the likely reason that an installed driver doesn't start: its files in `folder` are missing or not
/// accessible to this user.
fn why_not_started(folder: &Path) -> String {
    let names = ["nvidiactl", "nvidia0", "nvidia-uvm"];
    for path in names.map(|name| folder.join(name)) {
        match File::options().read(true).write(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return format!("get permission to open `{}`: `ls -l` shows its group", path.display());
            }
            _ => {}
        }
    }
    if names.iter().all(|name| !folder.join(name).exists()) {
        return "give this machine or container a GPU: `/dev/nvidia0` does not exist".to_string();
    }
    "check with `nvidia-smi` that the NVIDIA driver is loaded".to_string()
}

/// Returns the number of GPUs that the driver shows to this program.
///
/// Errors as [`start_driver`].
pub fn count_gpus() -> Result<usize> {
    start_driver()?;
    let count = result::device::get_count().map_err(|e| failed("cannot count GPUs", e))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns `true` if the first GPU can read the memory of the second over their link.
pub fn can_reach(from: sys::CUdevice, to: sys::CUdevice) -> Result<bool> {
    let mut can = 0;
    // SAFETY: both were returned by the driver, which writes one int.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, from, to) }
        .result()
        .map_err(|e| failed("cannot query how GPUs are linked", e))?;
    Ok(can != 0)
}

/// The properties of a GPU, as the driver reports them.
pub struct Properties {
    pub name: String,
    /// Compute capability, (9, 0) for Hopper.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// `true` if it can copy from read-only host memory, such as mapped files.
    pub registers_read_only: bool,
    /// `true` if it has stream-ordered memory. All GPUs since Pascal have it, except some virtual ones.
    pub has_memory_pools: bool,
}

impl Properties {
    /// Returns the driver's handle of GPU `ordinal`, and its properties.
    ///
    /// Errors if the GPU is missing or too old.
    pub fn read(ordinal: usize) -> Result<(sys::CUdevice, Self)> {
        let (device, properties) = Self::ask(ordinal)?;
        properties.check_capability(ordinal)?;
        Ok((device, properties))
    }

    /// Errors if the GPU is too old.
    pub fn check_capability(&self, ordinal: usize) -> Result<()> {
        if self.capability >= OLDEST_CAPABILITY {
            return Ok(());
        }
        let (name, (major, minor)) = (&self.name, self.capability);
        let what = format!("GPU {ordinal} ({name}) has compute capability {major}.{minor}, expected at least 7.5");
        Err(Error::new(what).hint(library::use_the_cpu()))
    }

    /// As [`Properties::read`], for a GPU that may be too old.
    ///
    /// Errors if the GPU is missing.
    pub fn ask(ordinal: usize) -> Result<(sys::CUdevice, Self)> {
        let count = result::device::get_count().map_err(|e| failed("cannot count GPUs", e))?;
        let index = i32::try_from(ordinal).ok().filter(|index| *index < count);
        let index = index.ok_or_else(|| {
            Error::new(format!("no GPU {ordinal}: this machine has {count}")).hint("list them with `nvidia-smi -L`")
        })?;
        let device = result::device::get(index).map_err(|e| failed("cannot open the GPU", e))?;
        let name = result::device::get_name(device).map_err(|e| failed("cannot open the GPU", e))?;
        let attribute = |attribute| {
            // SAFETY: `device` was returned by `device::get`.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(|e| failed("cannot query the GPU", e))
        };
        use sys::CUdevice_attribute as Attribute;
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let properties = Self {
            name,
            capability,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as usize,
            registers_read_only: attribute(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)? != 0,
            has_memory_pools: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
        };
        Ok((device, properties))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_driver_tell_why_it_does_not_start() {
        let folder = tempfile::tempdir().unwrap();
        assert!(why_not_started(folder.path()).contains("/dev/nvidia0"));
        std::fs::write(folder.path().join("nvidiactl"), "").unwrap();
        assert!(why_not_started(folder.path()).contains("nvidia-smi"));
    }

    #[test]
    fn a_driver_that_is_too_old_is_told() {
        assert!(check_version(OLDEST_DRIVER).is_ok());
        assert!(check_version(12090).unwrap_err().to_string().contains("CUDA 12.9"));
    }
}
