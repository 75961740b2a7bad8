//! The NVIDIA driver: whether it is there and new enough, what it says of a GPU, and its errors in words.

use std::fs::File;
use std::io;
use std::path::Path;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::{kernels, library};
use crate::error::{Error, Result};

/// The driver that came with CUDA 13.0, as it counts: older ones lack functions that the bindings call, and code of our
/// nvcc.
const OLDEST_DRIVER: i32 = 13000;
/// The oldest GPUs that CUDA 13 serves.
const OLDEST_CAPABILITY: (i32, i32) = (7, 5);

/// An error of the driver, in words.
pub fn failed(what: &str, error: DriverError) -> Error {
    let name = error
        .error_name()
        .ok()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|| format!("{:?}", error.0));
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    Error::new(format!("{what}: {text} ({name})"))
}

/// Starts the driver, and gives its version as it counts: 13000 is CUDA 13.0.
///
/// Errors when the program has no kernels, or the machine no driver that is new enough.
pub fn start_driver() -> Result<i32> {
    kernels::require_any()?;
    let version = start_any_driver()?;
    check_version(version)?;
    Ok(version)
}

/// The same of a driver that may be too old, for a program that may have no kernels.
///
/// Errors when there is none, or it does not start.
pub fn start_any_driver() -> Result<i32> {
    library::require_driver()?;
    result::init().map_err(|e| failed("cannot start CUDA", e).hint(why_not_started(Path::new("/dev"))))?;
    let mut version = 0;
    // SAFETY: the driver writes one int.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| failed("cannot ask the driver", e))?;
    Ok(version)
}

/// Errors when the driver is too old.
pub fn check_version(version: i32) -> Result<()> {
    if version >= OLDEST_DRIVER {
        return Ok(());
    }
    let (major, minor) = (version / 1000, version % 1000 / 10);
    Err(Error::new(format!("the NVIDIA driver is for CUDA {major}.{minor}, 13.0 is the least"))
        .hint("install driver 580 or later"))
}

/// What may keep a driver that is installed from starting: its files in `folder` are not there, or not for this user.
fn why_not_started(folder: &Path) -> String {
    let names = ["nvidiactl", "nvidia0", "nvidia-uvm"];
    for path in names.map(|name| folder.join(name)) {
        match File::options().read(true).write(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return format!("you have no permission to open `{}`: `ls -l` shows its group", path.display());
            }
            _ => {}
        }
    }
    if names.iter().all(|name| !folder.join(name).exists()) {
        return "no GPU is given to this machine or container: there is no `/dev/nvidia0`".to_string();
    }
    "is the NVIDIA driver loaded? `nvidia-smi` shows it".to_string()
}

/// How many GPUs the driver shows to this program.
///
/// Errors as [`start_driver`].
pub fn count_gpus() -> Result<usize> {
    start_driver()?;
    let count = result::device::get_count().map_err(|e| failed("cannot count GPUs", e))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Whether the link between two GPUs lets the first read the memory of the second.
pub fn can_reach(from: sys::CUdevice, to: sys::CUdevice) -> Result<bool> {
    let mut can = 0;
    // SAFETY: both were returned by the driver, which writes one int.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, from, to) }
        .result()
        .map_err(|e| failed("cannot ask how GPUs are linked", e))?;
    Ok(can != 0)
}

/// What the driver says of a GPU.
pub struct Properties {
    pub name: String,
    /// Compute capability, (9, 0) for Hopper.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Whether it can copy from memory of the host that this program may only read, as files are mapped.
    pub registers_read_only: bool,
    /// Whether it has stream-ordered memory. All since Pascal have, some virtual GPUs do not.
    pub has_memory_pools: bool,
}

impl Properties {
    /// The driver's handle of GPU `ordinal`, and what it says of it.
    ///
    /// Errors when the GPU is missing or too old.
    pub fn of(ordinal: usize) -> Result<(sys::CUdevice, Self)> {
        let (device, properties) = Self::ask(ordinal)?;
        properties.check_capability(ordinal)?;
        Ok((device, properties))
    }

    /// Errors when the GPU is too old.
    pub fn check_capability(&self, ordinal: usize) -> Result<()> {
        if self.capability >= OLDEST_CAPABILITY {
            return Ok(());
        }
        let (name, (major, minor)) = (&self.name, self.capability);
        let what = format!("GPU {ordinal} ({name}) has compute capability {major}.{minor}, 7.5 is the least");
        Err(Error::new(what).hint(library::use_the_cpu()))
    }

    /// The same of a GPU that may be too old.
    ///
    /// Errors when the GPU is missing.
    pub fn ask(ordinal: usize) -> Result<(sys::CUdevice, Self)> {
        let count = result::device::get_count().map_err(|e| failed("cannot count GPUs", e))?;
        let index = i32::try_from(ordinal).ok().filter(|index| *index < count);
        let index = index.ok_or_else(|| {
            Error::new(format!("no GPU {ordinal}: this machine shows {count}")).hint("`nvidia-smi -L` lists them")
        })?;
        let device = result::device::get(index).map_err(|e| failed("cannot open the GPU", e))?;
        let name = result::device::get_name(device).map_err(|e| failed("cannot open the GPU", e))?;
        let attribute = |attribute| {
            // SAFETY: `device` was returned by `device::get`.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(|e| failed("cannot ask the GPU", e))
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
        assert!(why_not_started(folder.path()).contains("no GPU is given to this machine"));
        std::fs::write(folder.path().join("nvidiactl"), "").unwrap();
        assert!(why_not_started(folder.path()).contains("nvidia-smi"));
    }

    #[test]
    fn a_driver_that_is_too_old_is_told() {
        assert!(check_version(OLDEST_DRIVER).is_ok());
        assert!(check_version(12090).unwrap_err().to_string().contains("CUDA 12.9"));
    }
}
