//! An engine, opened by Python.

use std::path::PathBuf;
use std::process;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use flux::default_model::default_model;
use flux::engine::choice::{AttentionChoice, ParallelChoice, PrecisionChoice};
use flux::engine::{Decodes, EngineArgs, PreviewDecoder};
use flux::files::{ModelPaths, Variant};
use flux::sampler::empirical_shift;
use flux::{CancelFlag, Device, Error, Field, Observer, Progress, Result};
use flux_hub::Wanted;
use flux_runtime::{allocator, threads};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::errors::{OrRaise, keyword};
use crate::request::Request;
use crate::ticket::Ticket;
use crate::wait::{Flag, interruptible};

/// The pixels of a token.
const PIXELS: usize = 16 * 16;

/// The arguments of `flux.Engine`. Python passes every key.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    model: Option<PathBuf>,
    text_encoder: Option<PathBuf>,
    vae: Option<PathBuf>,
    tokenizer: Option<PathBuf>,
    variant: Option<String>,
    device: String,
    precision: String,
    attention: String,
    parallel: String,
    quantize: Option<String>,
    gpu_memory: Option<u64>,
    preview_decoder: Option<PathBuf>,
    adapters: Vec<PathBuf>,
    threads: Option<u64>,
    caches_references: bool,
}

/// A model on its devices; `None` once it is closed.
#[pyclass(frozen, module = "flux._flux")]
pub struct Engine {
    engine: Mutex<Option<Arc<flux::Engine>>>,
    process: u32,
}

/// Keeps the notes of opening a model.
#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(flux::error::named(text, keyword));
    }

    fn detail(&mut self, _text: &str) {}

    fn progress(&mut self, _progress: Progress) {}

    fn finish(&mut self) {}
}

#[pymethods]
impl Engine {
    /// Opens a model. Returns the engine and the notes for the user.
    #[staticmethod]
    fn open(py: Python<'_>, options: Options) -> PyResult<(Self, Vec<String>)> {
        let cancel = CancelFlag::default();
        let flag = cancel.clone();
        let (engine, notes) = interruptible(py, &cancel, move || options.open(&flag))?;
        Ok((Self { engine: Mutex::new(Some(Arc::new(engine))), process: process::id() }, notes))
    }

    /// Submits a request.
    fn submit(&self, py: Python<'_>, request: Request, flag: &Flag) -> PyResult<Ticket> {
        let (engine, cancel) = (self.engine(py)?, flag.0.clone());
        let (events, files) = interruptible(py, &flag.0, move || {
            let (job, files) = request.job(&engine, &cancel)?;
            Ok((engine.submit(job)?.in_order(), files))
        })?;
        Ok(Ticket::new(events, flag.0.clone(), files))
    }

    /// Cancels the jobs of the engine, and frees its devices.
    fn close(&self, py: Python<'_>) {
        let engine = self.engine.lock().take();
        // In a forked process, the threads that dropping it waits for do not exist.
        if process::id() == self.process {
            py.detach(|| drop(engine));
        } else {
            std::mem::forget(engine);
        }
    }

    /// The devices that generate `count` images, each with its type of arithmetic.
    fn devices(&self, py: Python<'_>, count: usize) -> PyResult<Vec<(String, String)>> {
        let engine = self.engine(py)?;
        py.detach(|| engine.wait_for_devices().map(|()| engine.devices(count))).or_raise(py)
    }

    /// Name, used bytes and available bytes of each device.
    fn memory(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, Option<u64>)>> {
        let memory = self.engine(py)?.memory();
        Ok(memory.into_iter().map(|device| (device.device, device.used, device.available)).collect())
    }

    /// The numbers of waiting, running and finished images.
    fn stats(&self, py: Python<'_>) -> PyResult<(usize, usize, usize)> {
        let stats = self.engine(py)?.stats();
        Ok((stats.waiting, stats.running, stats.made))
    }

    /// Facts about the model as JSON.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        let engine = self.engine(py)?;
        let info = engine.info();
        let [height, width] = info.default_image_size;
        let facts = serde_json::json!({
            "name": info.name,
            "variant": info.variant().to_string(),
            "channels": info.transformer.in_channels,
            "size": [width, height],
            "steps": info.default_steps,
            "guidance": info.default_guidance(),
        });
        Ok(facts.to_string())
    }

    /// The plan of a request as JSON, with the `timesteps` of a FLUX.2 model, from 1000 to 0.
    fn plan(&self, py: Python<'_>, request: Request) -> PyResult<String> {
        let (engine, cancel) = (self.engine(py)?, CancelFlag::default());
        let plan = move || {
            let (job, _) = request.job(&engine, &cancel)?;
            let plan = engine.plan(&job.request)?;
            let shift = empirical_shift(plan.width * plan.height / PIXELS, plan.steps);
            let times = plan.schedule.schedule(shift, plan.steps).times();
            let mut json =
                serde_json::to_value(&plan).map_err(|e| Error::new(format!("cannot write the plan: {e}")))?;
            json["timesteps"] = times.iter().map(|times| times.now).collect();
            Ok(json.to_string())
        };
        py.detach(plan).or_raise(py)
    }

    /// Generates the image of a recipe `count` times without Python. Returns the seconds of each run.
    fn measure(&self, py: Python<'_>, recipe: &str, count: usize) -> PyResult<Vec<f64>> {
        let engine = self.engine(py)?;
        let run = || {
            let recipe: flux::Recipe = serde_json::from_str(recipe).map_err(|e| Error::usage(e.to_string()))?;
            let time = |_| {
                let start = Instant::now();
                engine.generate_recipe(recipe.clone()).run().map(|_| start.elapsed().as_secs_f64())
            };
            (0..count).map(time).collect::<Result<Vec<f64>>>()
        };
        py.detach(run).or_raise(py)
    }
}

impl Engine {
    /// Returns the engine.
    fn engine(&self, py: Python<'_>) -> PyResult<Arc<flux::Engine>> {
        let engine = || {
            if process::id() != self.process {
                return Err(Error::usage("this engine was opened by the parent process, and its threads are not here")
                    .hint("open an engine in each process, or start processes with multiprocessing's `spawn`"));
            }
            let engine = self.engine.lock().clone();
            engine.ok_or_else(|| Error::usage("the engine is closed").hint("open another `flux.Engine`"))
        };
        engine().or_raise(py)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let engine = self.engine.get_mut().take();
        if process::id() != self.process {
            std::mem::forget(engine);
            return;
        }
        // Dropping an engine waits for its threads, which may take a step.
        let _ = Python::try_attach(|py| py.detach(|| drop(engine)));
    }
}

impl Options {
    fn open(self, cancel: &CancelFlag) -> Result<(flux::Engine, Vec<String>)> {
        let args = self.args()?;
        start_threads(self.threads)?;
        let found = |path: &Option<PathBuf>, field: Field| {
            let found = |path| flux_hub::resolve(path, Wanted::Model).map_err(|e| e.for_field(field));
            path.as_deref().map(found).transpose()
        };
        let paths = ModelPaths {
            model: found(&self.model, Field::Model)?,
            text_encoder: found(&self.text_encoder, Field::TextEncoder)?,
            vae: found(&self.vae, Field::Vae)?,
            tokenizer: found(&self.tokenizer, Field::Tokenizer)?,
            variant: self.variant.as_deref().map(variant).transpose()?,
        };
        let files = paths.open(default_model).map_err(|e| e.for_field(Field::Model))?;
        let mut notes = Notes::default();
        files.notes().iter().for_each(|note| notes.note(note));
        let engine = flux::Engine::open(files, &args, None, &mut notes, cancel)?;
        Ok((engine, notes.0))
    }

    fn args(&self) -> Result<EngineArgs> {
        let adapter =
            |path: &PathBuf| flux_hub::resolve(path, Wanted::Adapter).map_err(|e| e.for_field(Field::Adapters));
        let decoder = |file: &PathBuf| PreviewDecoder { file: file.clone(), decodes: Decodes::Steps };
        Ok(EngineArgs {
            caches_references: self.caches_references,
            adapters: self.adapters.iter().map(adapter).collect::<Result<_>>()?,
            preview_decoder: self.preview_decoder.as_ref().map(decoder),
            quantize: self.quantize.as_deref().map(|text| parsed(text, Field::Quantize)).transpose()?,
            device: parsed::<Device>(&self.device, Field::Device)?,
            precision: parsed::<PrecisionChoice>(&self.precision, Field::Precision)?,
            attention: parsed::<AttentionChoice>(&self.attention, Field::Attention)?,
            gpu_memory: self.gpu_memory,
            parallel: parsed::<ParallelChoice>(&self.parallel, Field::Parallel)?,
            ..EngineArgs::default()
        })
    }
}

/// Parses the value of an option.
fn parsed<T: FromStr<Err = String>>(text: &str, field: Field) -> Result<T> {
    text.parse().map_err(|why| Error::usage(format!("`{text}`: {why}")).for_field(field))
}

fn variant(name: &str) -> Result<Variant> {
    let variants = [Variant::Distilled, Variant::Base, Variant::Kv];
    variants.into_iter().find(|variant| variant.to_string() == name).ok_or_else(|| {
        Error::usage(format!("`{name}` is not a variant")).for_field(Field::Variant).hint("use distilled, base or kv")
    })
}

/// Starts the compute threads of the process once.
///
/// Errors if they are running and another number is requested, or if no thread can start.
fn start_threads(wanted: Option<u64>) -> Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock();
    if *started && wanted.is_some() {
        return Err(Error::usage("the threads of this process are already running")
            .for_field(Field::Threads)
            .hint("pass the number to the first engine, or set RAYON_NUM_THREADS"));
    }
    if !*started {
        allocator::keep_tensors();
        // Reading images may have started them with the number of cores already.
        match threads::start(wanted) {
            Err(error) if wanted.is_some() => return Err(error.for_field(Field::Threads)),
            _ => *started = true,
        }
    }
    Ok(())
}
