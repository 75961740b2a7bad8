//! `flux devices`: the hardware of the machine, and the devices that this program would use. It computes nothing. Start
//! reading at [`run`].

mod sensors;

use flux::Result;
use flux::engine::devices::{GpuFacts, HostFacts, describe_precision, free_bytes, host_facts, survey};
use flux::error::{named, shown};
use serde::Serialize;

use self::sensors::{Library, Sensors};
use super::json::json_lines;
use super::print;
use crate::cli::{self, Devices};

/// The text for unknown values.
const UNKNOWN: &str = "-";

/// The JSON report.
#[derive(Serialize)]
struct Report {
    cpu: HostFacts,
    driver: Option<Driver>,
    /// The reason if there is no GPU.
    no_gpu: Option<String>,
    gpus: Vec<Gpu>,
}

#[derive(Serialize)]
struct Driver {
    version: Option<String>,
    cuda: String,
}

#[derive(Serialize)]
struct Gpu {
    device: String,
    name: String,
    uuid: Option<String>,
    compute_capability: String,
    multiprocessors: usize,
    memory_bytes: Option<u64>,
    computes_in: Option<&'static str>,
    kernels: String,
    unusable: Option<String>,
    fp8: bool,
    without_fp8: Option<String>,
    /// The default precision.
    precision: Option<String>,
    #[serde(flatten)]
    sensors: Sensors,
}

/// Prints the devices. A machine without a GPU is not an error.
pub fn run(args: &Devices) -> Result<()> {
    let report = report();
    let text = if args.json { json_lines(&report)? } else { report.text() };
    print(text.as_bytes())
}

fn report() -> Report {
    let cpu = host_facts();
    match survey() {
        Ok(survey) => {
            let library = Library::open();
            let driver = Some(Driver { version: library.driver_version(), cuda: survey.driver_cuda });
            let no_gpu = survey.gpus.is_empty().then(|| "the driver reports no GPU".to_string());
            let gpus = survey.gpus.into_iter().map(|gpu| {
                let mut sensors = library.sensors(&gpu);
                sensors.free_bytes = sensors.free_bytes.or_else(|| free_bytes(gpu.number));
                Gpu::from_facts(gpu, sensors)
            });
            Report { cpu, driver, no_gpu, gpus: gpus.collect() }
        }
        Err(why) => Report { cpu, driver: None, no_gpu: Some(why.shown_with(cli::flag)), gpus: Vec::new() },
    }
}

/// Returns a line for each device, for the header of reports.
pub fn lines() -> Vec<String> {
    let report = report();
    let gpus = report.gpus.iter().map(|gpu| {
        let memory = gpu.memory_bytes.map_or(UNKNOWN.to_string(), gib);
        format!("{}: {}, compute capability {}, {memory}", gpu.device, gpu.name, gpu.compute_capability)
    });
    let driver = report
        .driver
        .iter()
        .map(|driver| format!("driver: {}, CUDA {}", driver.version.as_deref().unwrap_or(UNKNOWN), driver.cuda));
    let no_gpu = report.no_gpu.iter().map(|why| format!("no GPU: {}", why.lines().next().unwrap_or_default()));
    let HostFacts { name, threads, instructions, .. } = &report.cpu;
    let name = name.as_deref().unwrap_or(UNKNOWN);
    let cpu = format!("cpu: {name}, {threads} threads, {}", instructions.join(" "));
    [cpu].into_iter().chain(driver).chain(gpus).chain(no_gpu).collect()
}

impl Gpu {
    fn from_facts(facts: GpuFacts, sensors: Sensors) -> Self {
        let GpuFacts { number, name, uuid, capability, multiprocessors, memory_bytes, .. } = facts;
        let without_fp8 = facts.without_fp8.or_else(|| facts.unusable.clone());
        Self {
            device: format!("cuda:{number}"),
            name,
            uuid,
            compute_capability: capability,
            multiprocessors,
            memory_bytes,
            computes_in: facts.computes_in,
            kernels: facts.kernels,
            unusable: facts.unusable,
            fp8: without_fp8.is_none(),
            without_fp8,
            precision: describe_precision(number).ok().map(|text| named(&text, cli::flag)),
            sensors,
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let Sensors { free_bytes, power_w, power_limit_w, temperature_c, sm_clock_mhz, memory_clock_mhz, throttle } =
            &self.sensors;
        let known = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_string());
        let of = |now: &Option<f64>| known(now.map(|watts| format!("{watts:.0} W")));
        let mhz = |clock: &Option<u32>| known(clock.map(|mhz| format!("{mhz} MHz")));
        let slowed = throttle.as_ref().map(|reasons| match reasons[..] {
            [] => "no".to_string(),
            _ => format!("by {}", reasons.join(", ")),
        });
        let fp8 = self.without_fp8.as_ref().map_or("yes".to_string(), |why| format!("no: {why}"));
        let used = self.unusable.as_ref().map_or("yes".to_string(), |why| format!("no: {why}"));
        vec![
            ("name", self.name.clone()),
            ("UUID", known(self.uuid.clone())),
            ("compute capability", self.compute_capability.clone()),
            ("multiprocessors", self.multiprocessors.to_string()),
            ("memory", format!("{}, {} free", known(self.memory_bytes.map(gib)), known(free_bytes.map(gib)))),
            ("usable", used),
            ("computes in", known(self.computes_in.map(String::from))),
            ("kernels", self.kernels.clone()),
            ("fp8", fp8),
            ("precision", known(self.precision.clone())),
            ("power", format!("{} of {}", of(power_w), of(power_limit_w))),
            ("temperature", known(temperature_c.map(|degrees| format!("{degrees} C")))),
            ("clocks", format!("{}, memory {}", mhz(sm_clock_mhz), mhz(memory_clock_mhz))),
            ("throttled", known(slowed)),
        ]
    }
}

impl Report {
    fn text(&self) -> String {
        let cpu = &self.cpu;
        let known = |bytes: Option<u64>| bytes.map_or(UNKNOWN.to_string(), gib);
        let cores = cpu.cores.map_or(UNKNOWN.to_string(), |cores| cores.to_string());
        let instructions = if cpu.instructions.is_empty() { UNKNOWN.to_string() } else { cpu.instructions.join(" ") };
        let rows = [
            ("name", cpu.name.clone().unwrap_or_else(|| UNKNOWN.to_string())),
            ("cores", format!("{cores}, {} threads", cpu.threads)),
            ("instructions", instructions),
            ("products", cpu.products.clone()),
            ("memory", format!("{}, {} available", known(cpu.memory_bytes), known(cpu.available_bytes))),
        ];
        let mut lines = section("cpu", &rows);
        if let Some(Driver { version, cuda }) = &self.driver {
            let rows = [("version", version.clone().unwrap_or_else(|| UNKNOWN.to_string())), ("CUDA", cuda.clone())];
            lines.extend(section("driver", &rows));
        }
        lines.extend(self.gpus.iter().flat_map(|gpu| section(&gpu.device, &gpu.rows())));
        lines.extend(self.no_gpu.iter().map(|why| format!("no GPU: {why}")));
        lines.join("\n")
    }
}

fn section(name: &str, rows: &[(&str, String)]) -> Vec<String> {
    let rows = rows.iter().map(|(name, value)| format!("  {name:<19} {}", shown(value)));
    [name.to_string()].into_iter().chain(rows).collect()
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn gpu() -> GpuFacts {
        GpuFacts {
            number: 1,
            name: "NVIDIA H100".to_string(),
            uuid: Some("00112233-4455-6677-8899-aabbccddeeff".to_string()),
            capability: "9.0".to_string(),
            multiprocessors: 132,
            memory_bytes: Some(80 << 30),
            computes_in: Some("bf16"),
            kernels: "kernels for 9.0a are built in".to_string(),
            unusable: None,
            without_fp8: None,
        }
    }

    #[test]
    fn a_gpu_without_sensors_is_told_with_hyphens() {
        let gpu = Gpu::from_facts(gpu(), Sensors::default());
        let text = section("cuda:1", &gpu.rows()).join("\n");
        for line in ["memory              80.0 GiB, - free", "power               - of -", "throttled           -"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let json = serde_json::to_value(&gpu).unwrap();
        assert_eq!((json["device"].as_str(), json["fp8"].as_bool()), (Some("cuda:1"), Some(true)));
        assert!(json["power_w"].is_null() && json["free_bytes"].is_null(), "{json}");
    }

    #[test]
    fn a_gpu_that_cannot_be_used_computes_in_no_fp8_either() {
        let old = GpuFacts { unusable: Some("too old".to_string()), computes_in: None, ..gpu() };
        let gpu = Gpu::from_facts(old, Sensors { throttle: Some(vec!["power limit"]), ..Sensors::default() });
        let text = section("cuda:1", &gpu.rows()).join("\n");
        assert!(text.contains("usable              no: too old") && text.contains("by power limit"), "{text}");
        assert!(!gpu.fp8);
    }
}
