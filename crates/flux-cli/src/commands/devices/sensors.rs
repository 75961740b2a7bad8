//! Sensors of a GPU from NVIDIA's management library: clocks, power and temperature.
//!
//! The library is missing in some places, such as containers without `utility`, and many GPUs support only some
//! queries: unknown values are `None`. NVML orders GPUs differently from CUDA and includes GPUs hidden by
//! CUDA_VISIBLE_DEVICES, so GPUs are looked up by UUID.

use flux::engine::devices::GpuFacts;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use serde::Serialize;

/// The library, if it is installed.
pub struct Library(Option<Nvml>);

/// The current sensor values of a GPU.
#[derive(Debug, Default, Serialize)]
pub struct Sensors {
    pub free_bytes: Option<u64>,
    pub power_w: Option<f64>,
    pub power_limit_w: Option<f64>,
    pub temperature_c: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// The reasons for reduced clocks; empty if clocks are not reduced.
    pub throttle: Option<Vec<&'static str>>,
}

/// The throttle reasons with names for users. Idle clocks do not count.
const REASONS: [(ThrottleReasons, &str); 8] = [
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "clock setting"),
    (ThrottleReasons::SW_POWER_CAP, "power limit"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SYNC_BOOST, "another GPU in its sync group"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "temperature"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware temperature limit"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display clock setting"),
];

impl Library {
    pub fn open() -> Self {
        Self(Nvml::init().ok())
    }

    /// Returns the driver's version, such as 580.65.06.
    pub fn driver_version(&self) -> Option<String> {
        let told = self.0.as_ref().and_then(|nvml| nvml.sys_driver_version().ok());
        told.or_else(|| std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_string()))
    }

    pub fn sensors(&self, gpu: &GpuFacts) -> Sensors {
        self.ask(gpu).unwrap_or_default()
    }

    fn ask(&self, gpu: &GpuFacts) -> Option<Sensors> {
        let (nvml, uuid) = (self.0.as_ref()?, gpu.uuid.as_ref()?);
        let device = ["GPU", "MIG"].iter().find_map(|kind| nvml.device_by_uuid(format!("{kind}-{uuid}")).ok())?;
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        Some(Sensors {
            free_bytes: device.memory_info().ok().map(|memory| memory.free),
            power_w: device.power_usage().ok().map(watts),
            power_limit_w: device.enforced_power_limit().ok().map(watts),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            throttle: device.current_throttle_reasons().ok().map(reasons),
        })
    }
}

fn reasons(found: ThrottleReasons) -> Vec<&'static str> {
    REASONS.iter().filter(|(reason, _)| found.contains(*reason)).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gpu_is_not_slowed_down() {
        assert!(reasons(ThrottleReasons::GPU_IDLE).is_empty());
        let two = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(reasons(two), ["power limit", "hardware temperature limit"]);
    }

    #[test]
    fn a_gpu_that_the_library_does_not_know_has_no_figures() {
        let sensors = Library(None).ask(&super::super::tests::gpu());
        assert!(sensors.is_none());
    }
}
