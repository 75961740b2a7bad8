//! A survey of the machine's GPUs, and of this program's support for each, without opening one.

use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::driver::result;
use serde::{Deserialize, Serialize};

use super::capability::{self, HOPPER};
use super::driver::{Properties, check_version, failed, start_any_driver, start_driver};
use super::element::Element;
use super::ops::quantize;
use super::{kernels, library};
use crate::error::{Field, Result};

/// The GPUs that the driver shows to this program.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The newest CUDA version that the driver supports, such as 13.0.
    pub driver_cuda: String,
    /// In the order of their numbers.
    pub gpus: Vec<GpuFacts>,
}

/// The properties of a GPU, and this program's support for it.
#[derive(Debug, Clone)]
pub struct GpuFacts {
    /// The number N of `--device cuda:N`.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// Without the prefix, such as `GPU-`: 36 characters.
    pub uuid: Option<String>,
    /// Compute capability, such as 9.0.
    pub capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Total bytes of its memory.
    pub memory_bytes: Option<u64>,
    /// The compute type; `None` if the GPU can't be used.
    pub computes_in: Option<&'static str>,
    /// A description of the kernels for it.
    pub kernels: String,
    /// The reason that it can't be used, if so.
    pub unusable: Option<String>,
    /// The reason that it doesn't support fp8, if so.
    pub without_fp8: Option<String>,
}

/// The properties of a machine on which rates of matrix multiplications depend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The name of the GPU.
    pub gpu: String,
    /// The compute capability that selects kernels.
    pub capability: (i32, i32),
    /// The newest CUDA version that the driver supports, as the driver counts.
    pub driver: i32,
    /// A hash of this program's kernels for matrix multiplications.
    pub kernels: u64,
}

impl Identity {
    /// Reads the properties of GPU `number`, without opening it.
    ///
    /// Errors if there is no such GPU, or it cannot be used.
    pub fn read(number: usize) -> Result<Self> {
        let driver = start_driver()?;
        let (_, properties) = Properties::read(number)?;
        let capability = capability::taken_for(properties.capability)?;
        let element = Element::for_gpu(capability)?;
        let mut kernels = DefaultHasher::new();
        // Rates are of matrix multiplications, whose other kernels are cuBLASLt's.
        let measured =
            kernels::files(element).filter(|file| file.starts_with("linear_") || file.starts_with("quantize"));
        measured.filter_map(|file| kernels::fatbin(file, element)).for_each(|fatbin| fatbin.hash(&mut kernels));
        Ok(Self { gpu: properties.name, capability, driver, kernels: kernels.finish() })
    }

    /// Returns the name of a file for the properties.
    pub fn file_name(&self) -> String {
        let gpu = self.gpu.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let (major, minor) = self.capability;
        format!("flux-rates-{gpu}-{major}.{minor}-{}.json", self.driver)
    }
}

/// Returns `true` if the kernels of Hopper GPUs are selected on GPU `number`.
///
/// Errors if there is no such GPU, or it cannot be used.
pub fn is_hopper(number: usize) -> Result<bool> {
    start_driver()?;
    let (_, properties) = Properties::read(number)?;
    Ok(capability::taken_for(properties.capability)? == HOPPER)
}

/// Queries the driver.
///
/// Errors if there is no driver, or it does not start.
pub fn survey() -> Result<Survey> {
    let version = start_any_driver()?;
    let count = result::device::get_count().map_err(|e| failed("cannot count GPUs", e))?;
    let gpus = (0..usize::try_from(count).unwrap_or(0)).map(|number| facts(number, version)).collect::<Result<_>>()?;
    Ok(Survey { driver_cuda: format!("{}.{}", version / 1000, version % 1000 / 10), gpus })
}

/// Returns the free bytes of a GPU's memory. This creates a context on it, which takes some of them.
pub fn free_bytes(number: usize) -> Option<u64> {
    super::device::Device::open(number, Some(0)).ok()?.free_bytes()
}

fn facts(number: usize, version: i32) -> Result<GpuFacts> {
    let (device, properties) = Properties::ask(number)?;
    let (major, minor) = properties.capability;
    let taken_for = capability::taken_for(properties.capability);
    let capability = *taken_for.as_ref().unwrap_or(&properties.capability);
    let element = taken_for.and_then(Element::for_gpu);
    let usable = properties
        .check_capability(number)
        .and_then(|()| kernels::require_any())
        .and_then(|()| check_version(version))
        .and_then(|()| element.as_ref().map_err(Clone::clone).and_then(|element| kernels::require(*element)))
        .and_then(|()| library::find_cublaslt());
    let served = element.as_ref().ok().and_then(|element| kernels::built().serves(capability, *element));
    let fp8 = match element {
        Ok(Element::F16) => Some("fp8 requires a GPU that computes everything else in bf16, not in fp16".to_string()),
        _ => quantize::check_capability(capability, &properties.name, Field::Precision)
            .err()
            .map(|e| e.what().to_string()),
    };
    // SAFETY: `device` was returned by the driver.
    let memory_bytes = unsafe { result::device::total_mem(device) }.ok().map(|bytes| bytes as u64);
    Ok(GpuFacts {
        number,
        uuid: result::device::get_uuid(device).ok().map(|uuid| hyphened(bytemuck::cast(uuid.bytes))),
        capability: format!("{major}.{minor}"),
        multiprocessors: properties.multiprocessors,
        memory_bytes,
        computes_in: element.as_ref().ok().filter(|_| usable.is_ok()).map(|element| element.name()),
        kernels: served.unwrap_or_else(|| "none".to_string()),
        unusable: usable.err().map(|e| e.what().to_string()),
        without_fp8: fp8,
        name: properties.name,
    })
}

/// Formats a UUID with groups of 8, 4, 4, 4 and 12 digits.
fn hyphened(bytes: [u8; 16]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| digits[part].concat()).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|i| 0x11 * i as u8);
        assert_eq!(hyphened(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
