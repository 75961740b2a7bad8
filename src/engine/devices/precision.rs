//! The default precision of a device: on a GPU, the fastest one whose kernels agree with their definitions on this very
//! GPU.
//!
//! Rates are measured once for a GPU, a driver and the kernels of this program, and kept next to the driver's cache of
//! compiled kernels. On Hopper nothing is measured: there bf16 is the default. Start reading at [`select`], which
//! decides, and is the only place that does.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::bf16;
use serde::{Deserialize, Serialize};

use crate::backend::cpu::{self, Cpu};
use crate::backend::cuda::{self, Cuda, GemmCache, Identity};
use crate::backend::{Backend, Device as _, Memory as _, Storage};
use crate::engine::args::EngineArgs;
use crate::engine::choice::PrecisionChoice;
use crate::error::{Error, Field, Result};
use crate::files::{Bytes, Format, Scales, TensorView, atomic};
use crate::model::ModelInfo;
use crate::nn::Linear;
use crate::pipeline::{MemoryPlan, MemorySizes, Plan, Request};
use crate::stage::Observer;

/// The min gain over 16 bits that makes up for the rounding to 8 bits.
const MIN_GAIN: f64 = 1.05;
/// Rows, columns and outputs of the timed matrix multiplication, of the size of the largest ones of klein 4B.
const TIMED: [usize; 3] = [1024, 3072, 12288];
/// Rows, columns and outputs of the matrix multiplication that is compared with its definition.
const COMPARED: [usize; 3] = [129, 1024, 1000];
/// The number of timed runs; the fastest counts.
const RUNS: usize = 5;
/// The memory for measuring, in bytes.
const MEMORY: u64 = 1 << 30;
/// The measured precisions, with the backend's names for them and the allowed error of a result, relative to its
/// magnitude plus the typical one. The results of fp8 are compared with float32, all others with the same arithmetic
/// on the CPU, up to the rounding of results to 16 bits.
const MEASURED: [(PrecisionChoice, cuda::Precision, cpu::Precision, f32); 4] = [
    (PrecisionChoice::Native, cuda::Precision::Bf16, cpu::Precision::F32, 1.0 / 128.0),
    (PrecisionChoice::Int8, cuda::Precision::Int8, cpu::Precision::Int8, 1.0 / 128.0),
    (PrecisionChoice::W4a8, cuda::Precision::W4a8, cpu::Precision::W4a8, 1.0 / 128.0),
    (PrecisionChoice::Fp8, cuda::Precision::Fp8, cpu::Precision::F32, 0.2),
];

/// The matrix multiplications of a GPU in one precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The precision; `Native` is 16 bits.
    pub precision: PrecisionChoice,
    /// Achieved TFLOP/s; `None` if the results differ from the definition.
    pub tflops: Option<f64>,
}

/// The measured rates of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    machine: Identity,
    /// One for each precision that the GPU supports.
    pub rates: Vec<Rate>,
}

/// A precision, and the reason for it in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// The selected precision.
    pub precision: PrecisionChoice,
    /// The reason.
    pub why: String,
}

/// Selects the default precision from measured rates. `is_resident` returns `true` if the whole transformer fits in
/// the GPU's memory in a precision. If it fits in 16 bits, the fastest precision is selected; otherwise the fastest one
/// of 8 bits in which it fits, otherwise 4-bit weights if they fit, otherwise 8 bits, streamed.
pub fn select(rates: &[Rate], is_resident: impl Fn(PrecisionChoice) -> bool) -> Selection {
    let rate = |precision| rates.iter().find(|rate| rate.precision == precision).and_then(|rate| rate.tflops);
    let native = rate(PrecisionChoice::Native);
    let gain = |precision| rate(precision).map(|tflops| tflops / native.unwrap_or(tflops).max(f64::MIN_POSITIVE));
    let eight = [PrecisionChoice::Int8, PrecisionChoice::Fp8].into_iter();
    let eight = eight.filter_map(|precision| Some((precision, gain(precision)?)));
    // The first of equals, as `max_by` would take the last.
    let fastest = |among: &dyn Fn(PrecisionChoice) -> bool| {
        let found = eight.clone().filter(|(precision, _)| among(*precision));
        found.reduce(|best, next| if next.1 > best.1 { next } else { best })
    };
    let faster = |(precision, gain): (PrecisionChoice, f64)| Selection {
        precision,
        why: format!("{gain:.1} times the speed of 16 bits on this GPU"),
    };
    let smaller = |precision: PrecisionChoice, streamed: bool| {
        let but = if streamed { "nor in fewer, and 8 bits stream half as much" } else { "but in fewer" };
        Selection { precision, why: format!("the transformer does not fit in this GPU's memory in 16 bits, {but}") }
    };
    let native = |why: &str| Selection { precision: PrecisionChoice::Native, why: why.to_string() };
    if is_resident(PrecisionChoice::Native) {
        return match fastest(&|_| true) {
            Some(found) if found.1 >= MIN_GAIN => faster(found),
            _ => native("fewer bits are not faster on this GPU"),
        };
    }
    if let Some((precision, _)) = fastest(&is_resident) {
        return smaller(precision, false);
    }
    let w4a8 = PrecisionChoice::W4a8;
    match fastest(&|_| true) {
        _ if rate(w4a8).is_some() && is_resident(w4a8) => smaller(w4a8, false),
        Some((precision, _)) => smaller(precision, true),
        None => native("no kernels for fewer bits are usable on this GPU"),
    }
}

/// Returns the precision for a model on GPU `number`, if `args` leave it to the program. `model` waits for the model;
/// `None` if it cannot be opened. The observer receives the reason.
pub fn resolve<'a>(
    args: &EngineArgs,
    number: usize,
    first: Option<&Request>,
    model: &dyn Fn() -> Option<&'a ModelInfo>,
    observer: &mut dyn Observer,
) -> PrecisionChoice {
    let is_fast = args.precision == PrecisionChoice::Fast;
    if !is_fast && (args.precision != PrecisionChoice::Auto || args.quantize.is_some()) {
        return args.precision;
    }
    // Opening the GPU reports its errors.
    match cuda::is_hopper(number) {
        Err(_) => return args.precision,
        Ok(true) => return if is_fast { PrecisionChoice::Fp8 } else { PrecisionChoice::Native },
        Ok(false) => {}
    }
    let Some(info) = model().filter(|info| info.is_full_size() && !info.has_quantized_transformer()) else {
        return PrecisionChoice::Native;
    };
    let chosen = Rates::find(number, observer).and_then(|rates| {
        let gpu = Cuda::with(number, args.gpu_memory, cuda::Precision::Bf16, &GemmCache::Off)?;
        let usual = Request::new("", 0);
        let plan = Plan::new(first.unwrap_or(&usual), info)?;
        let is_resident = |precision| {
            let mut costs = gpu.costs();
            costs.products = storage(precision);
            let fitting = MemoryPlan::new(&MemorySizes::new(&costs, info, &plan, true), gpu.available_bytes());
            fitting.is_some_and(|plan| plan.transformer.streamed() == 0)
        };
        Ok(select(&rates.rates, is_resident))
    });
    match chosen {
        Ok(Selection { precision: PrecisionChoice::Native, why }) => {
            observer.detail(&format!("computing in 16 bits: {why}"));
            PrecisionChoice::Native
        }
        Ok(Selection { precision, why }) => {
            let name = precision.name();
            observer.note(&format!("computing in {name}: {why}; `{:#} native` computes in 16 bits", Field::Precision));
            precision
        }
        Err(error) => {
            observer.note(&format!("computing in 16 bits: the GPU cannot be measured: {}", error.what()));
            PrecisionChoice::Native
        }
    }
}

/// Returns the precision for a model on the CPU, if `precision` leaves it to the program: bf16 for a full-size model,
/// if the processor multiplies bf16 faster than float32. `model` is as in [`resolve`].
pub fn resolve_on_cpu<'a>(
    precision: PrecisionChoice,
    model: &dyn Fn() -> Option<&'a ModelInfo>,
    observer: &mut dyn Observer,
) -> PrecisionChoice {
    match precision {
        PrecisionChoice::Auto | PrecisionChoice::Fast
            if model().is_some_and(ModelInfo::is_full_size) && Cpu::is_bf16_faster() =>
        {
            let precision = Field::Precision;
            observer
                .detail(&format!("computing in bf16, which is faster on this processor; `{precision:#} f32` is exact"));
            PrecisionChoice::Bf16
        }
        PrecisionChoice::Auto | PrecisionChoice::Fast => PrecisionChoice::Native,
        precision => precision,
    }
}

/// Describes the default precision of GPU `number` for a model that fits in its memory.
///
/// Errors if there is no such GPU, or it cannot be used.
pub fn describe(number: usize) -> Result<String> {
    if cuda::is_hopper(number)? {
        return Ok(format!("16 bits; `{:#} fast` is fp8", Field::Precision));
    }
    let machine = Identity::read(number)?;
    let kept = folder().and_then(|folder| Rates::read(&folder.join(machine.file_name()), &machine));
    Ok(match kept.map(|rates| select(&rates.rates, |_| true)) {
        Some(Selection { precision: PrecisionChoice::Native, why }) => format!("16 bits: {why}"),
        Some(Selection { precision, why }) => format!("{}: {why}", precision.name()),
        None => "measured when a large model is opened first".to_string(),
    })
}

/// Returns the storage of weights of large matrix multiplications in a precision.
fn storage(precision: PrecisionChoice) -> Storage {
    match precision {
        PrecisionChoice::Int8 => Storage::Int8,
        PrecisionChoice::Fp8 => Storage::Fp8,
        PrecisionChoice::W4a8 => Storage::W4a8,
        _ => Storage::Native,
    }
}

impl Rates {
    /// Returns the rates of a GPU from the file, or measures them.
    ///
    /// Errors if the GPU cannot compute.
    fn find(number: usize, observer: &mut dyn Observer) -> Result<Self> {
        let machine = Identity::read(number)?;
        let file = folder().map(|folder| folder.join(machine.file_name()));
        let kept = file.as_ref().and_then(|file| Self::read(file, &machine));
        kept.map_or_else(|| Self::measure_and_keep(number, machine, file, observer), Ok)
    }

    fn read(file: &Path, machine: &Identity) -> Option<Self> {
        let rates: Self = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        (rates.machine == *machine).then_some(rates)
    }

    fn measure_and_keep(
        number: usize,
        machine: Identity,
        file: Option<PathBuf>,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let mut rates = Vec::new();
        for (precision, products, definition, bound) in MEASURED {
            // A GPU without fp8 cannot be opened with it.
            let Ok(gpu) = Cuda::with(number, Some(MEMORY), products, &GemmCache::Off) else { continue };
            let agrees = agrees(&gpu, &Cpu::new(definition), bound)?;
            if !agrees {
                observer.note(&format!("{} is not used: it computes wrong results on this GPU", precision.name()));
            }
            rates.push(Rate { precision, tflops: if agrees { Some(tflops(&gpu)?) } else { None } });
        }
        let rates = Self { machine, rates };
        let text = serde_json::to_vec(&rates).map_err(|e| Error::new(e.to_string()))?;
        let kept = file.is_some_and(|file| {
            file.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
                && atomic::write(&file, &text).is_ok()
        });
        if !kept {
            observer.detail("the speed of this GPU is measured at each start: it cannot be written to a file");
        }
        Ok(rates)
    }
}

/// Returns the folder of the driver's cache of compiled kernels.
///
/// Source: CUDA C++ Programming Guide, environment variables.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("CUDA_CACHE_PATH").or_else(|| Some(set("HOME")?.join(".nv/ComputeCache")))
}

/// Returns `true` if a matrix multiplication of the GPU is its definition on the CPU, within `bound`.
fn agrees(gpu: &Cuda, cpu: &Cpu, bound: f32) -> Result<bool> {
    let [rows, cols, out] = COMPARED;
    let x = values(1, rows * cols);
    let (got, expected) = (product(gpu, &x, [rows, cols, out])?, product(cpu, &x, [rows, cols, out])?);
    let typical = (expected.iter().map(|value| value * value).sum::<f32>() / expected.len() as f32).sqrt();
    // `false` for NaN.
    Ok(got.iter().zip(&expected).all(|(got, expected)| (got - expected).abs() <= bound * (expected.abs() + typical)))
}

/// Returns `x W^T` of `x` [rows, cols] and a fixed weight [out, cols], as the device computes it.
fn product<B: Backend>(device: &B, x: &[f32], [rows, cols, out]: [usize; 3]) -> Result<Vec<f32>> {
    let x = device.upload(x, rows, cols)?;
    device.download(&x.linear(&weight(device, out, cols)?, None)?)
}

/// Returns the fastest rate of [`RUNS`] matrix multiplications.
fn tflops(gpu: &Cuda) -> Result<f64> {
    let [rows, cols, out] = TIMED;
    let (x, weight) = (gpu.upload(&values(1, rows * cols), rows, cols)?, weight(gpu, out, cols)?);
    let mut fastest = f64::MAX;
    for _ in 0..=RUNS {
        let from = gpu.event()?;
        let made = x.linear(&weight, None)?;
        let to = gpu.event()?;
        gpu.wait(&to)?;
        drop(made);
        fastest = fastest.min(gpu.elapsed(&from, &to)?.as_secs_f64());
    }
    Ok((2 * rows * cols * out) as f64 / fastest.max(1e-9) / 1e12)
}

/// Returns a weight [out, cols] in the storage of the device's precision. Its rows repeat, so that it is soon made.
fn weight<B: Backend>(device: &B, out: usize, cols: usize) -> Result<Linear<B>> {
    let distinct = out.min(100);
    let scale = (cols as f32).sqrt();
    let values = values(2, distinct * cols);
    let rows: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(value / scale).to_le_bytes()).collect();
    let bytes: Vec<u8> = rows.iter().copied().cycle().take(2 * out * cols).collect();
    let range = 0..bytes.len();
    let view = TensorView::new(Arc::new(Bytes::Owned(bytes)), range, Format::Bf16, vec![out, cols], Scales::None);
    Linear::load(device, "precision", &[view.map_err(Error::new)?], device.costs().products)
}

/// Returns `n` values between -1 and 1 without a pattern, exact in 16 bits.
fn values(seed: u64, n: usize) -> Vec<f32> {
    let value = |i: usize| {
        // splitmix64, which needs no previous index.
        let mut z = (seed + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        f32::from((z >> 56) as i8) / 128.0
    };
    (0..n).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use PrecisionChoice::{Fp8, Int8, Native, W4a8};

    /// An invented GPU: rates of 16 bits, int8, w4a8 and fp8.
    fn rates(tflops: [Option<f64>; 4]) -> Vec<Rate> {
        MEASURED.iter().zip(tflops).map(|((precision, ..), tflops)| Rate { precision: *precision, tflops }).collect()
    }

    #[test]
    fn the_fastest_precision_is_selected_if_16_bits_fit() {
        for (tflops, expected) in [
            // By NVIDIA's figures: 3090, 4090 and 5090 with fp8, an old card whose int8 is slow, and B200.
            ([Some(71.0), Some(142.0), Some(120.0), None], Int8),
            ([Some(165.0), Some(330.0), Some(300.0), Some(310.0)], Int8),
            ([Some(210.0), Some(400.0), Some(300.0), Some(420.0)], Fp8),
            ([Some(60.0), Some(62.0), Some(50.0), None], Native),
            ([Some(1500.0), Some(300.0), Some(300.0), None], Native),
            // Kernels that disagree with their definitions are never used.
            ([Some(71.0), None, None, None], Native),
            ([Some(71.0), None, Some(120.0), Some(80.0)], Fp8),
        ] {
            assert_eq!(select(&rates(tflops), |_| true).precision, expected, "{tflops:?}");
        }
        let why = select(&rates([Some(71.0), Some(142.0), None, None]), |_| true).why;
        assert!(why.starts_with("2.0 times"), "{why}");
    }

    #[test]
    fn memory_selects_8_bits_then_4_then_streaming() {
        let small = rates([Some(50.0), Some(40.0), Some(30.0), None]);
        let fits = |fitting: &'static [PrecisionChoice]| move |precision| fitting.contains(&precision);
        assert_eq!(select(&small, fits(&[Int8, W4a8])).precision, Int8, "8 bits that are slower, but resident");
        assert_eq!(select(&small, fits(&[W4a8])).precision, W4a8);
        let streamed = select(&small, fits(&[]));
        assert!(streamed.precision == Int8 && streamed.why.contains("stream half"), "{streamed:?}");
        let wrong = rates([Some(50.0), None, None, None]);
        assert_eq!(select(&wrong, fits(&[])).precision, Native);
        assert_eq!(select(&rates([Some(9.0), None, Some(8.0), None]), fits(&[])).precision, Native);
    }

    #[test]
    fn every_measured_precision_agrees_with_itself_and_wrong_results_are_seen() {
        let [rows, cols, out] = [3, 256, 40];
        let x = values(1, rows * cols);
        for (precision, _, definition, _) in MEASURED {
            let cpu = Cpu::new(definition);
            let exact = product(&cpu, &x, [rows, cols, out]).unwrap();
            let float = product(&Cpu::new(cpu::Precision::F32), &x, [rows, cols, out]).unwrap();
            let error = exact.iter().zip(&float).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error < 0.3 && (error > 0.0) == matches!(precision, Int8 | W4a8), "{precision:?}: {error}");
        }
    }

    #[test]
    fn rates_are_read_back_on_the_same_machine_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rates.json");
        let machine = Identity { gpu: "A".to_string(), capability: (8, 9), driver: 13000, kernels: 7 };
        let kept = Rates { machine: machine.clone(), rates: rates([Some(1.0), None, Some(2.0), None]) };
        fs::write(&file, serde_json::to_vec(&kept).unwrap()).unwrap();
        assert_eq!(Rates::read(&file, &machine), Some(kept));
        assert_eq!(Rates::read(&file, &Identity { kernels: 8, ..machine.clone() }), None);
        fs::write(&file, "{").unwrap();
        assert_eq!(Rates::read(&file, &machine), None);
    }
}
