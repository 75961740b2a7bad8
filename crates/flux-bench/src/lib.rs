//! `flux bench`: times of an image's stages and of a model's ops, compared with the device's ceilings, the cost of
//! adapters, the throughput of several devices, and the communication of devices that generate one image together.
//!
//! A time is the median of several runs, measured by events on the device, printed with the minimum and the maximum.
//! Before an op runs, the caches are filled with other values. Rates count each tensor once for each necessary read or
//! write, and two floating-point operations for a multiply-add. They are compared with ceilings measured first on the
//! same device: for bytes the faster of a copy and an in-place sum, for floating-point operations a large square matrix
//! multiplication. On a CPU an op on a small tensor may exceed the byte ceiling, if the tensor fits the last-level
//! cache.
//!
//! It parses no flags, which `crate::cli` does. Start reading at [`run`].

mod adapters;
mod edits;
mod exchanges;
pub mod live;
mod maker;
mod ops;
mod replicas;
pub mod selftest;
pub mod serve;
mod shapes;
mod stages;
mod upscaler;
mod weights;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use flux::backend::{Backend, Storage};
use flux::files::ModelFiles;
use flux::model::{ModelInfo, OpenModel, Quantization};
use flux::pipeline::{Model, Parallel};
use flux::stage::CancelFlag;
use flux::tensor::Tensor;
use flux::{Error, Result};
use serde::Serialize;

use edits::Edit;
use maker::Maker;
use shapes::Shapes;

/// The default prompt.
pub const PROMPT: &str = "A cat holding a sign that says hello world";

/// The selection and settings of measurements.
#[derive(Clone)]
pub struct Settings {
    /// Parts of names: a measurement runs if its name contains one of them, or if there are none.
    pub names: Vec<String>,
    /// Sides of square images in pixels, rounded down to sizes that the model supports, without repeats.
    pub sizes: Vec<usize>,
    /// Numbers of reference images, each combined with each size. References have the size of the image.
    pub references: Vec<usize>,
    /// True to cache keys and values of references for all steps.
    pub kv: bool,
    /// The formats that weights are quantized to.
    pub quantization: Quantization,
    /// The prompt. For models without a fixed prompt length, long prompts take longer.
    pub prompt: String,
    /// Images per batch, for images without references.
    pub batch: usize,
    /// Denoising steps; `None` is the model's default.
    pub steps: Option<usize>,
    /// Seconds for which every op also runs without a pause.
    pub in_a_row: Option<f64>,
    /// The pause before every image.
    pub pause: Option<Duration>,
    /// True to print one JSON object per line instead of a table.
    pub json: bool,
    pub effort: Effort,
}

/// The number of runs and the data sizes, chosen by the device's speed.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Runs of an op, after a quarter as many warm-up runs.
    pub op_runs: usize,
    /// Images, after half as many warm-up images.
    pub image_runs: usize,
    /// The number of values that fill the caches; more than they hold.
    fill: usize,
    /// Values of the copy for the byte ceiling; `product` is the side of the matrix multiplication for the other
    /// ceiling.
    copy: usize,
    product: usize,
}

impl Effort {
    pub const GPU: Self = Self { op_runs: 20, image_runs: 5, fill: 64 << 20, copy: 256 << 20, product: 8192 };
    pub const CPU: Self = Self { op_runs: 3, image_runs: 2, fill: 8 << 20, copy: 16 << 20, product: 1024 };
}

/// Measures the first of the named `devices`, and the throughput of all of them together. Ops have the shapes of
/// `model`, otherwise of klein 4B; stages use `model`, otherwise the default model. `print` receives every line.
/// Returns `true` if measurements of the devices as a group were requested, for [`run_over`].
///
/// Errors when no measurement matches the names, the model cannot be loaded, or memory runs out.
pub fn run<B: Backend>(
    devices: &[(String, B)],
    model: Option<&ModelFiles>,
    settings: Settings,
    default_model: impl FnOnce() -> Result<ModelFiles>,
    print: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<bool> {
    let Some((_, backend)) = devices.first() else { return Err(Error::usage("there is no device to measure")) };
    let shapes = shapes_of(model)?;
    let mut bench = Bench::new(backend, devices, settings.rounded(&shapes), print)?;
    let (stages, encodes, edits) = (bench.wanted(stages::name), bench.wanted(stages::encode_name), bench.edits()?);
    let adapted = bench.wanted(adapters::name);
    let measures_images = !stages.is_empty() || !edits.is_empty();
    let shared = bench.shared();
    let measures_model = measures_images || !shared.is_empty() || !encodes.is_empty() || !adapted.is_empty();
    if measures_model {
        let built_in = if model.is_none() { Some(default_model()?) } else { None };
        if let Some(dir) = model.or(built_in.as_ref()) {
            if measures_images {
                let maker = Maker::One(bench.load(backend, dir)?);
                stages::measure(&mut bench, &maker, &stages)?;
                edits::measure(&mut bench, &maker, &edits)?;
            }
            replicas::measure(&mut bench, dir, &shared)?;
            stages::measure_encodes(&mut bench, dir, &encodes)?;
            adapters::measure(&mut bench, dir, &adapted)?;
        }
    }
    for size in bench.settings.sizes.clone() {
        ops::measure(&mut bench, &shapes, size)?;
        upscaler::measure(&mut bench, size)?;
    }
    let wants_group = devices.len() > 1 && bench.settings.wants_group(devices.len());
    if CEILINGS.iter().any(|name| bench.wants(name)) {
        bench.ceiling()?;
    }
    if !measures_model && bench.measured.is_empty() && bench.ceiling.is_none() && !wants_group {
        return Err(Error::usage(format!("no measurement has `{}` in its name", bench.settings.names.join("` or `")))
            .hint(
                "use names such as `stages/1024x1024`, `vae_encode/1024x1024`, `adapters/1024x1024`, `ceiling/copy`, \
             `ops/linear 4608x3072x27648`, `upscale/rrdb 1024x1024 x4` and, with `--references 2`, `stages/edit-1024x1024+2`, on two GPUs \
             `replicas/1024x1024 x 2` and `exchange/1024x1024 over 2`",
            ));
    }
    Ok(wants_group)
}

/// Returns the shapes of a model, or of klein 4B.
fn shapes_of(model: Option<&ModelFiles>) -> Result<Shapes> {
    Ok(model.map(ModelInfo::read).transpose()?.map_or_else(Shapes::klein_4b, |info| Shapes::new(&info)))
}

/// Measures the stages of images that `ranks`, a group or one device, generate together, and the communication of a
/// group.
///
/// Errors as [`run`].
pub fn run_over<B: Backend>(
    ranks: &[B],
    model: Option<&ModelFiles>,
    settings: Settings,
    default_model: impl FnOnce() -> Result<ModelFiles>,
    print: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let Some(first) = ranks.first() else { return Err(Error::usage("at least one device is required")) };
    let shapes = shapes_of(model)?;
    let mut bench = Bench::new(first, &[], settings.rounded(&shapes), print)?;
    let (stages, edits) = (bench.wanted(stages::name), bench.edits()?);
    if ranks.len() > 1 {
        let exchanges = bench.wanted(|size| exchanges::name(size, ranks.len()));
        exchanges::measure(&mut bench, ranks, &shapes, &exchanges)?;
    }
    if stages.is_empty() && edits.is_empty() {
        return Ok(());
    }
    let built_in = if model.is_none() { Some(default_model()?) } else { None };
    let Some(dir) = model.or(built_in.as_ref()) else { return Ok(()) };
    let mut models = ranks.iter().map(|rank| bench.load(rank, dir)).collect::<Result<Vec<_>>>()?;
    let maker = if models.len() == 1 { Maker::One(models.remove(0)) } else { Maker::Several(Parallel::new(models)?) };
    stages::measure(&mut bench, &maker, &stages)?;
    edits::measure(&mut bench, &maker, &edits)
}

impl Settings {
    /// Returns `true` if `name` is selected.
    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns `true` if any stages of images are selected.
    fn wants_stages(&self) -> bool {
        let edit = |size| self.references.iter().any(|&references| self.wants(&Edit { size, references }.name()));
        self.sizes.iter().any(|&size| self.wants(&stages::name(size)) || edit(size))
    }

    /// Returns `true` if any measurement of a group of this many devices is selected. Sizes must be rounded.
    fn wants_group(&self, devices: usize) -> bool {
        self.wants_stages() || self.sizes.iter().any(|&size| self.wants(&exchanges::name(size, devices)))
    }

    /// Rounds sizes to supported ones and removes repeats: for a repeated size, the prompt would be cached.
    fn rounded(mut self, shapes: &Shapes) -> Self {
        let (patch, mut seen) = (shapes.patch(), HashSet::new());
        self.sizes =
            self.sizes.iter().map(|size| (size / patch).max(1) * patch).filter(|&size| seen.insert(size)).collect();
        let mut seen = HashSet::new();
        self.references.retain(|&references| seen.insert(references));
        self
    }
}

/// The minimum work of an op.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Values read and written.
    Values(usize),
    /// Floating-point operations.
    Flops(u64),
}

/// The times of several runs, in seconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    median: f64,
    min: f64,
    max: f64,
    /// The time per run among many runs without a pause.
    in_a_row: Option<f64>,
}

impl Times {
    /// Panics if there are no times.
    fn from_seconds(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self { median: seconds[seconds.len() / 2], min: seconds[0], max: seconds[seconds.len() - 1], in_a_row: None }
    }
}

/// The maximum rates of the device.
#[derive(Debug, Clone, Copy)]
struct Ceiling {
    bytes_s: f64,
    flops_s: f64,
}

/// One measured op, for `--json`.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    ms: f64,
    min_ms: f64,
    max_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_a_row_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gb_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tflop_s: Option<f64>,
    /// The fraction of the ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_ceiling: Option<f64>,
    /// The time of the composition, as a multiple of the op's.
    #[serde(skip_serializing_if = "Option::is_none")]
    composed: Option<f64>,
}

impl Row<'_> {
    fn text(&self) -> String {
        let Self { name, ms, min_ms, max_ms, .. } = self;
        let mut line = format!("{name:<52} {ms:10.4} ms  [{min_ms:.4} .. {max_ms:.4}]");
        line += &self.in_a_row_ms.map_or_else(String::new, |ms| format!("  in a row {ms:.4} ms"));
        for (value, unit) in [(self.gb_s, "GB/s"), (self.tflop_s, "TFLOP/s")] {
            line += &value.map_or_else(String::new, |value| format!("  {value:9.2} {unit}"));
        }
        line += &self.of_ceiling.map_or_else(String::new, |share| format!("  {:3.0}% of ceiling", share * 100.0));
        line += &self.composed.map_or_else(String::new, |times| format!("  composed {times:.2}x"));
        line
    }
}

/// The names of the ceilings. If one is selected, all are measured.
const CEILINGS: [&str; 4] = ["ceiling/copy", "ceiling/add", "ceiling/linear", "ceiling/multiply"];
/// Tile steps of each multiprocessor for the multiply-only ceilings: a millisecond or two.
const MULTIPLY_STEPS: usize = 4000;

struct Bench<'a, B: Backend> {
    /// The first of the devices.
    backend: B,
    devices: &'a [(String, B)],
    /// Overwritten before each run of an op.
    fill: Option<Tensor<B>>,
    ceiling: Option<Ceiling>,
    /// The names of measured ops.
    measured: HashSet<String>,
    settings: Settings,
    print: &'a mut dyn FnMut(&str) -> Result<()>,
}

impl<'a, B: Backend> Bench<'a, B> {
    /// Prints a description of the device, unless lines are JSON.
    fn new(
        backend: &B,
        devices: &'a [(String, B)],
        settings: Settings,
        print: &'a mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Self> {
        if !settings.json {
            print(&backend.describe())?;
        }
        Ok(Self {
            backend: backend.clone(),
            devices,
            fill: None,
            ceiling: None,
            measured: HashSet::new(),
            settings,
            print,
        })
    }

    /// Returns `true` if `name` is selected.
    fn wants(&self, name: &str) -> bool {
        self.settings.wants(name)
    }

    /// Returns the sizes whose measurement of this name is selected.
    fn wanted(&self, name: impl Fn(usize) -> String) -> Vec<usize> {
        self.settings.sizes.iter().copied().filter(|&size| self.wants(&name(size))).collect()
    }

    /// Returns the selected images with references.
    ///
    /// Errors when an image is too small for a reference.
    fn edits(&self) -> Result<Vec<Edit>> {
        let Settings { sizes, references, .. } = &self.settings;
        let all = sizes.iter().flat_map(|&size| references.iter().map(move |&references| Edit { size, references }));
        let edits: Vec<Edit> = all.filter(|edit| self.wants(&edit.name())).collect();
        edits.iter().min_by_key(|edit| edit.size).map_or(Ok(()), |smallest| smallest.check())?;
        Ok(edits)
    }

    /// Returns the selected sizes for throughput on all devices; empty for a single device.
    fn shared(&self) -> Vec<usize> {
        let devices = self.devices.len();
        if devices > 1 { self.wanted(|size| replicas::name(size, devices)) } else { Vec::new() }
    }

    /// Opens the model.
    fn open(&self, dir: &ModelFiles) -> Result<OpenModel> {
        let mut model = OpenModel::open(dir)?;
        if self.settings.kv {
            model.cache_references()?;
        }
        model.quantize(&self.settings.quantization, &CancelFlag::default(), &mut |_| {})?;
        Ok(model)
    }

    /// Opens the model for a device.
    fn load(&self, backend: &B, dir: &ModelFiles) -> Result<Arc<Model<B>>> {
        Ok(Model::new(backend.clone(), self.open(dir)?))
    }

    /// Returns `true` if the op is selected and not measured yet. Several sizes and blocks have the same shapes.
    fn is_new(&mut self, name: &str) -> bool {
        self.wants(name) && self.measured.insert(name.to_string())
    }

    /// Prints a row as a line of the table, or as JSON.
    fn line(&mut self, text: impl FnOnce() -> String, row: &impl Serialize) -> Result<()> {
        let json = |e| Error::new(format!("cannot write the times as JSON: {e}"));
        let line = if self.settings.json { serde_json::to_string(row).map_err(json)? } else { text() };
        (self.print)(&line)
    }

    /// Times `run`. `prepare` creates inputs that `run` may consume, and is not timed.
    fn times<T, U>(
        &mut self,
        mut prepare: impl FnMut() -> Result<T>,
        mut run: impl FnMut(T) -> Result<U>,
    ) -> Result<Times> {
        let runs = self.settings.effort.op_runs;
        let warm_up = runs.div_ceil(4);
        let mut seconds = Vec::with_capacity(runs);
        for round in 0..warm_up + runs {
            let input = prepare()?;
            let fill = match self.fill.take() {
                Some(fill) => fill,
                None => tensor(&self.backend, self.settings.effort.fill / 1024, 1024)?,
            };
            self.fill = Some(fill.silu()?);
            let from = self.backend.event()?;
            let output = run(input)?;
            let to = self.backend.event()?;
            self.backend.wait(&to)?;
            drop(output);
            if round >= warm_up {
                seconds.push(self.backend.elapsed(&from, &to)?.as_secs_f64());
            }
        }
        let mut times = Times::from_seconds(seconds);
        if let Some(seconds) = self.settings.in_a_row {
            times.in_a_row = Some(self.in_a_row(seconds, times.median, prepare, run)?);
        }
        Ok(times)
    }

    /// Returns the seconds per run when runs follow each other for some time, as during generation. A GPU may reach its
    /// power limit then and lower its clock. The first third is warm-up. Inputs are created beforehand, as many as
    /// memory allows.
    fn in_a_row<T, U>(
        &self,
        seconds: f64,
        one: f64,
        mut prepare: impl FnMut() -> Result<T>,
        mut run: impl FnMut(T) -> Result<U>,
    ) -> Result<f64> {
        let wanted = ((seconds / one) as usize).clamp(3, 100_000);
        // Half of the memory is left for the runs' results.
        let least = self.backend.available_bytes() / 2;
        let mut inputs = vec![prepare()?];
        while inputs.len() < wanted && self.backend.available_bytes() > least {
            inputs.push(prepare()?);
        }
        let (count, warm_up) = (inputs.len(), inputs.len() / 3);
        let mut inputs = inputs.into_iter();
        for input in inputs.by_ref().take(warm_up) {
            run(input)?;
        }
        let from = self.backend.event()?;
        for input in inputs {
            run(input)?;
        }
        let to = self.backend.event()?;
        self.backend.wait(&to)?;
        Ok(self.backend.elapsed(&from, &to)?.as_secs_f64() / (count - warm_up) as f64)
    }

    /// Measures the ceilings when they are first needed.
    fn ceiling(&mut self) -> Result<Ceiling> {
        if let Some(ceiling) = self.ceiling {
            return Ok(ceiling);
        }
        let Effort { copy, product, .. } = self.settings.effort;
        let b = self.backend.clone();
        let x = tensor(&b, copy / 1024, 1024)?;
        let copied = self.times(|| Ok(()), |()| Tensor::concat_rows(&[&x]))?;
        // An in-place sum needs no new memory, which is slow to allocate on a CPU.
        let mut sum = Some(tensor(&b, copy / 1024, 1024)?);
        let added = self.times(
            || Ok(()),
            |()| {
                let whole = sum.take().map_or_else(|| tensor(&b, copy / 1024, 1024), Ok)?;
                sum = Some(whole.add(&x)?);
                Ok(())
            },
        )?;
        drop((x, sum));
        let (x, weight) = (tensor(&b, product, product)?, weights::linear(&b, product, product)?);
        let multiplied = self.times(|| Ok(()), |()| x.linear(&weight, None))?;
        let bytes = (copy as u64 * b.costs().element_bytes) as f64;
        // A ceiling is the fastest run.
        let ceiling = Ceiling {
            bytes_s: (2.0 * bytes / copied.min).max(3.0 * bytes / added.min),
            flops_s: 2.0 * (product as f64).powi(3) / multiplied.min,
        };
        self.ceiling = Some(ceiling);
        let mib = bytes as u64 >> 20;
        self.row(&format!("ceiling/copy {mib} MiB"), Work::Values(2 * copy), copied, None)?;
        self.row(&format!("ceiling/add {mib} MiB"), Work::Values(3 * copy), added, None)?;
        let name = format!("ceiling/linear {product}x{product}x{product}");
        self.row(&name, Work::Flops(2 * (product as u64).pow(3)), multiplied, None)?;
        for (storage, kind) in [(Storage::Native, "16 bits"), (Storage::Fp8, "fp8"), (Storage::Int8, "int8")] {
            let Some(operations) = b.multiply_alone(storage, MULTIPLY_STEPS)? else { continue };
            let times = self.times(|| Ok(()), |()| b.multiply_alone(storage, MULTIPLY_STEPS))?;
            self.row(&format!("ceiling/multiply {kind}"), Work::Flops(operations), times, None)?;
        }
        Ok(ceiling)
    }

    fn row(&mut self, name: &str, work: Work, times: Times, composed: Option<Times>) -> Result<()> {
        let ceiling = self.ceiling()?;
        let (gb_s, tflop_s, of_ceiling) = match work {
            Work::Values(values) => {
                let rate = (values as u64 * self.backend.costs().element_bytes) as f64 / times.median;
                (Some(rate / 1e9), None, rate / ceiling.bytes_s)
            }
            Work::Flops(flops) => {
                let rate = flops as f64 / times.median;
                (None, Some(rate / 1e12), rate / ceiling.flops_s)
            }
        };
        let [ms, min_ms, max_ms] = [times.median, times.min, times.max].map(|seconds| round(seconds * 1e3, 4));
        let in_a_row_ms = times.in_a_row.map(|seconds| round(seconds * 1e3, 4));
        let (gb_s, tflop_s) = (gb_s.map(|rate| round(rate, 3)), tflop_s.map(|rate| round(rate, 3)));
        let composed = composed.map(|composed| round(composed.median / times.median, 3));
        let row = Row {
            name,
            ms,
            min_ms,
            max_ms,
            in_a_row_ms,
            gb_s,
            tflop_s,
            of_ceiling: Some(round(of_ceiling, 4)),
            composed,
        };
        self.line(|| row.text(), &row)
    }

    /// Measures an op, if it is selected.
    fn op<T, U>(
        &mut self,
        name: &str,
        work: Work,
        prepare: impl FnMut() -> Result<T>,
        run: impl FnMut(T) -> Result<U>,
    ) -> Result<()> {
        self.ceiling()?;
        let times = self.times(prepare, run)?;
        self.row(name, work, times, None)
    }

    /// Measures a fused op, and the composition of simpler ops that defines it.
    fn fused<T, U, V>(
        &mut self,
        name: &str,
        work: Work,
        mut prepare: impl FnMut() -> Result<T>,
        run: impl FnMut(T) -> Result<U>,
        compose: impl FnMut(T) -> Result<V>,
    ) -> Result<()> {
        self.ceiling()?;
        let times = self.times(&mut prepare, run)?;
        let composed = self.times(prepare, compose)?;
        self.row(name, work, times, Some(composed))
    }
}

/// Maximum number of values generated on the host. Larger tensors repeat them, because the host is slow.
const MADE: usize = 16 << 20;

/// Returns activations without a pattern, because caches and power depend on the values.
fn tensor<B: Backend>(backend: &B, rows: usize, cols: usize) -> Result<Tensor<B>> {
    let most = (MADE / cols).max(1);
    let made = rows.min(most);
    let block = backend.upload(&weights::values(made * cols), made, cols)?;
    if made == rows {
        return Ok(block);
    }
    let blocks: Vec<Tensor<B>> = (0..rows).step_by(most).map(|row| block.row_view(0..most.min(rows - row))).collect();
    Tensor::concat_rows(&blocks.iter().collect::<Vec<_>>())
}

/// Rounds to a number of digits after the decimal point.
fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// Returns the median. Panics if there are no values.
fn median(seconds: Vec<f64>) -> f64 {
    Times::from_seconds(seconds).median
}

fn ms(seconds: f64) -> f64 {
    round(seconds * 1e3, 2)
}

fn tflop_s(flops: u64, seconds: f64) -> f64 {
    round(flops as f64 / seconds / 1e12, 3)
}

fn gib(bytes: u64) -> f64 {
    round(bytes as f64 / f64::from(1 << 30), 2)
}
