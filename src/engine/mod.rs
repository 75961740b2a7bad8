//! An engine, which opens a model once and generates images for any number of callers: jobs go in, events and images
//! come out.
//!
//! Each device, or group of devices that generate an image together, has one thread that lives as long as the engine.
//! The thread takes the next batch from a [`Scheduler`], which combines waiting images of one shape from one or several
//! jobs. A [`Job`] can be cancelled at any time; an error ends only its own job. Nothing here knows servers or
//! command lines. Start reading at [`Engine`].
//!
//! ```no_run
//! use flux::backend::cpu::{Cpu, Precision};
//! use flux::engine::{Engine, Event, Job};
//! use flux::files::ModelFiles;
//! use flux::model::OpenModel;
//! use flux::pipeline::Request;
//!
//! let model = OpenModel::open(&ModelFiles::open("models/tiny".as_ref())?)?;
//! let engine = Engine::on(vec![vec![("cpu".to_string(), Cpu::new(Precision::F32))]], model)?;
//! let cats = engine.submit(Job::new(Request::new("a cat", 42), 4))?;
//! let dog = engine.submit(Job::new(Request::new("a dog", 1), 1))?;
//! for event in cats.in_order() {
//!     if let Event::Image { place, image, .. } = event? {
//!         image.save(format!("cat-{place}.png"))?;
//!     }
//! }
//! dog.cancel();
//! # Ok::<(), flux::Error>(())
//! ```

mod args;
pub mod boxes;
mod builder;
pub mod choice;
pub mod controls;
pub mod devices;
mod digests;
mod enlarging;
mod estimate;
mod event;
mod executor;
pub mod expand;
mod fair;
mod feedback;
mod generation;
mod image;
mod image_recipe;
mod input_image;
mod inputs;
mod job;
mod networks;
mod open;
mod order;
mod passes;
mod recipe;
pub mod regions;
mod running;
mod schedule;
#[cfg(test)]
mod tests;
mod ticket;
mod transparent;
mod upscaling;
mod worker;

use std::io::Read;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use args::{Decodes, EngineArgs, PreviewDecoder};
pub use builder::EngineBuilder;
pub use enlarging::Enlarging;
pub use estimate::Ahead;
pub use event::{Event, Message, Sink};
pub use flux_base::stage::{Observer, Unobserved};
pub use generation::Generation;
pub use image::Image;
pub use image_recipe::{ImageRecipe, ModelRecipe, NUMERICS, OfImages};
pub use input_image::InputImage;
pub use inputs::{EmbeddedFiles, InputSource, Inputs};
pub use job::{Job, JobId, Owner, Priority};
pub use open::OpeningTimes;
pub use recipe::{AdapterFile, Recipe, Upsampled};
pub use schedule::Scheduler;
pub use ticket::{InOrder, Ticket};
pub use upscaling::{EnlargedSize, Upscaling};

// Types of fields of recipes and arguments, whose modules are hidden.
#[doc(inline)]
pub use crate::files::ModelPaths;
#[doc(inline)]
pub use crate::files::adapter::BlockStrengths;
#[doc(inline)]
pub use crate::input::{Resize, Sides};
#[doc(inline)]
pub use crate::model::Quantization;
#[doc(inline)]
pub use crate::pipeline::{Hires, Transparency};
#[doc(inline)]
pub use crate::sampler::{Rng, ScheduleKind, Variation, Variety};

use self::digests::ModelDigests;
use self::executor::{Device, Executor, Pool};
use self::image::Origin;
use self::schedule::Submission;
use self::worker::Seat;
use crate::backend::{Backend, Remark};
use crate::error::Result;
use crate::files::adapter::Adapter;
use crate::files::adapter::AdapterUse;
use crate::model::{ModelInfo, OpenModel};
use crate::output::Sign;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::{self, CacheStats, MemoryPlan, Plan, Replicas, Request};
use crate::rgb::Rgb;
use crate::stage::{CancelFlag, Progress};

/// A model on devices, and the threads that generate images with it.
pub struct Engine {
    pool: Arc<dyn Pool>,
    /// The scheduler, and the number of the model there.
    scheduler: Mutex<(Arc<Scheduler>, usize)>,
    threads: Mutex<Vec<(Arc<Seat>, JoinHandle<()>)>>,
    prepares_previews: AtomicBool,
    /// Devices that are still being opened.
    late: Mutex<Option<Late>>,
    /// Adapters that were opened with the model, by the path that was passed.
    adapters: Vec<(PathBuf, Arc<Adapter>)>,
    /// Model metadata for images.
    model: Arc<ModelRecipe>,
    digests: Arc<ModelDigests>,
    signer: Option<Arc<dyn Sign>>,
    times: OpeningTimes,
}

/// Waits for devices that are being opened.
type Late = Box<dyn FnOnce() -> Result<Vec<Arc<dyn Executor>>> + Send>;

/// The current work of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct EngineStats {
    /// Device threads.
    pub devices: usize,
    /// Images of jobs that no device has started.
    pub waiting: usize,
    /// Images in progress on devices.
    pub running: usize,
    /// Images finished since the engine was opened.
    pub made: usize,
}

/// The memory of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Name of the device.
    pub device: String,
    /// Bytes used by the model and its images.
    pub used: u64,
    /// Bytes that can still be allocated, if known.
    pub available: Option<u64>,
    /// Cache of text features, which is part of `used`.
    pub prompts: CacheStats,
}

impl Engine {
    /// Creates an engine on groups of devices, each device with its name. A group generates each image together, and
    /// may be one device. Weights are loaded for the first job.
    ///
    /// Errors as [`Replicas::from_groups`], and if the system starts no thread.
    pub fn on<B: Backend>(groups: Vec<Vec<(String, B)>>, model: OpenModel) -> Result<Self> {
        Self::from_replicas(&Replicas::from_groups(groups, model)?)
    }

    /// Creates an engine on devices that already have the model. The replicas can also be used independently.
    ///
    /// Errors if the system starts no thread.
    pub fn from_replicas<B: Backend>(replicas: &Replicas<B>) -> Result<Self> {
        let pool = Arc::new(replicas.clone());
        let devices = replicas.all().into_iter().map(Device::executor);
        Self::with(pool, devices.collect())
    }

    fn with(pool: Arc<dyn Pool>, devices: Vec<Arc<dyn Executor>>) -> Result<Self> {
        let ModelInfo { name, quantized, .. } = pool.info();
        let model = ModelRecipe { name: name.clone(), quantize: quantized.clone(), ..ModelRecipe::default() };
        let engine = Self {
            pool,
            model: Arc::new(model),
            digests: Arc::default(),
            scheduler: Mutex::default(),
            threads: Mutex::default(),
            prepares_previews: AtomicBool::new(false),
            late: Mutex::default(),
            adapters: Vec::new(),
            signer: None,
            times: OpeningTimes::default(),
        };
        engine.add(devices)?;
        Ok(engine)
    }

    fn add(&self, devices: Vec<Arc<dyn Executor>>) -> Result<()> {
        let (scheduler, model) = self.scheduler();
        // All devices are registered before the first of them takes a batch.
        let seats: Vec<_> = devices.iter().map(|_| Seat::new(&scheduler, scheduler.add(model))).collect();
        for (seat, device) in seats.into_iter().zip(devices) {
            let thread = worker::start(Arc::clone(&seat), device)?;
            self.threads.lock().push((seat, thread));
        }
        Ok(())
    }

    fn scheduler(&self) -> (Arc<Scheduler>, usize) {
        self.scheduler.lock().clone()
    }

    /// Lets the devices take work from a scheduler that several engines share, as model number `model`. Existing jobs
    /// are done first.
    pub fn join(&self, scheduler: &Arc<Scheduler>, model: usize) {
        let threads = self.threads.lock();
        let mut own = self.scheduler.lock();
        if Arc::ptr_eq(&own.0, scheduler) {
            return;
        }
        let (before, _) = mem::replace(&mut *own, (Arc::clone(scheduler), model));
        let numbers: Vec<_> = threads.iter().map(|_| scheduler.add(model)).collect();
        threads.iter().zip(numbers).for_each(|((seat, _), number)| seat.change(scheduler, number));
        before.retire();
    }

    /// Registers devices that are still being opened.
    fn expect(&self, late: Late) {
        *self.late.lock() = Some(late);
    }

    /// Waits until all devices are open.
    ///
    /// Errors if one of them cannot be opened.
    pub fn wait_for_devices(&self) -> Result<()> {
        let mut late = self.late.lock();
        late.take().map_or(Ok(()), |wait| self.add(wait()?))
    }

    /// Returns the time that opening took.
    pub fn times(&self) -> OpeningTimes {
        self.times
    }

    /// Creates a job for `count` images of a recipe. Seeds count up from the recipe's seed. Reads the files that the
    /// recipe names; the image `-` is `stdin`.
    ///
    /// Errors if a file cannot be read, or does not suit the model or the other files.
    pub fn job(&self, recipe: &Recipe, count: usize, stdin: &mut dyn Read) -> Result<Job> {
        self.job_from(recipe, count, InputSource::new(stdin))
    }

    /// As [`Engine::job`], with another source of files.
    fn job_from(&self, recipe: &Recipe, count: usize, mut source: InputSource<'_>) -> Result<Job> {
        recipe.check()?;
        let inputs = Inputs::read(recipe, &mut source)?;
        let request =
            Request { adapters: self.adapters(recipe)?, ..inputs.apply(recipe.request_with(&source.embedded)?) };
        Ok(Job { inputs: Arc::new(inputs), recipe: Some(Arc::new(recipe.clone())), ..Job::new(request, count) })
    }

    /// Submits a job.
    ///
    /// Errors if the model cannot do what is requested, there is too little memory for it, or the engine takes no
    /// more jobs.
    pub fn submit(&self, job: Job) -> Result<Ticket> {
        let (scheduler, model) = self.scheduler();
        Ticket::new(scheduler, model, |sender| {
            // Without a receiver, the caller is gone.
            self.submission(job, Arc::new(move |message| drop(sender.send(message))), false)
        })
    }

    /// Submits jobs at once, whose messages go to functions. If the engine is closed, waiting jobs are generated by the
    /// next engine of its model, see [`Engine::join`].
    ///
    /// Errors as [`Engine::submit`].
    pub fn submit_to(&self, jobs: impl IntoIterator<Item = (Job, Sink)>) -> Result<Vec<JobId>> {
        let jobs = jobs.into_iter().map(|(job, sink)| self.submission(job, sink, true)).collect::<Result<_>>()?;
        let (scheduler, model) = self.scheduler();
        scheduler.submit(model, jobs)
    }

    /// Returns the estimated seconds until all jobs of the engine's scheduler and one more are done, if images of the
    /// model were timed.
    ///
    /// Errors as [`Engine::plan`], without the errors of the tokenizer.
    pub fn seconds_with(&self, job: &Job) -> Result<Option<f64>> {
        let (scheduler, model) = self.scheduler();
        let cost = schedule::cost(model, job, self.shape(job)?.as_ref());
        Ok(scheduler.seconds_with(Some((cost, job.count))))
    }

    /// Returns the shape of the images of a job; `None` if the job enlarges an image.
    fn shape(&self, job: &Job) -> Result<Option<Shape>> {
        job.enlarging.is_none().then(|| self.pool.shape(&job.request)).transpose()
    }

    fn submission(&self, job: Job, sink: Sink, outlives_engine: bool) -> Result<Submission> {
        job.request.check_count(job.count)?;
        job.inputs.check_upscaler(&job.request)?;
        job.cancel.check()?;
        self.wait_for_devices()?;
        let shape = self.shape(&job)?;
        if let Some(shape) = &shape {
            if job.request.transparent == Transparency::Edit {
                let [width, height] = shape.size();
                let blank = Rgb { width, height, bytes: vec![255; 3 * width * height] };
                self.pool.shape(&transparent::second_request(&job.request, blank)).map_err(transparent::refused)?;
            }
            self.pool.prefetch(&job.request, job.count)?;
        }
        if job.previews {
            self.prepare_previews();
        }
        let (model, digests, device) = (Arc::clone(&self.model), Arc::clone(&self.digests), self.machine(job.count));
        let (rounds_by_batch, signer) = (self.pool.rounds_by_batch(), self.signer.clone());
        let origin = Origin { job, rounds_by_batch, model, digests, device, signer };
        Ok(Submission { origin: Arc::new(origin), shape, text: self.pool.shared_text(), sink, outlives_engine })
    }

    /// Generates `count` images. Seeds count up from the request's seed. `report` receives the progress of the batch
    /// whose images come next.
    ///
    /// Errors as [`Engine::submit`] and as the job does.
    pub fn generate_images(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<pipeline::Image>> {
        let job = Job { cancel: cancel.clone(), ..Job::new(request.clone(), count) };
        let (mut images, mut decoded) = (Vec::new(), Vec::new());
        for event in self.submit(job)?.in_order() {
            match event? {
                Event::Progress(progress) => report(progress),
                Event::Image { image, .. } => decoded.push(*image),
                Event::Finished { timings, .. } => {
                    let image =
                        |Image { rgb, plan, .. }| pipeline::Image { rgb: rgb.bytes, plan, timings: (*timings).clone() };
                    images.extend(mem::take(&mut decoded).into_iter().map(image));
                }
                Event::Queued(_)
                | Event::Started { .. }
                | Event::Preview { .. }
                | Event::Embeddings(_)
                | Event::Enlarged(_) => {}
            }
        }
        Ok(images)
    }

    /// Starts loading weights for the first images of a job, see [`Replicas::prefetch`].
    ///
    /// Errors as [`Replicas::prefetch`].
    pub fn prefetch(&self, request: &Request, count: usize) -> Result<()> {
        self.pool.prefetch(request, count)
    }

    /// Encodes the prompt of a request, so that jobs with this prompt find it cached. Does nothing if the engine has
    /// work, or if not all parts of the model are in memory together.
    ///
    /// Errors as [`Engine::submit`] and as the text encoder does, and if cancelled.
    pub fn encode_ahead(&self, request: &Request, cancel: &CancelFlag) -> Result<()> {
        let EngineStats { waiting, running, .. } = self.stats();
        let together = |(_, plan): (_, Result<MemoryPlan>)| plan.is_ok_and(|plan| plan.together);
        if waiting + running > 0 || !self.memory_plans(&self.plan(request)?, 1).into_iter().all(together) {
            return Ok(());
        }
        let job = Job { embeddings: true, cancel: cancel.child(), ..Job::new(request.clone(), 1) };
        // Dropping the ticket ends the job before its steps.
        let mut events = self.submit(job)?.map(|event| event.map(|event| matches!(event, Event::Embeddings(_))));
        events.find(|event| !matches!(event, Ok(false))).map_or(Ok(()), |event| event.map(drop))
    }

    /// Encodes the images of the next job while the device still generates another image, so that the job finds them
    /// cached. Does nothing if several devices generate images, or if not all parts of the model are in memory.
    ///
    /// Errors as the job would, which then reports the error again.
    pub fn encode_images_ahead(&self, job: &Job) -> Result<()> {
        self.pool.encode_images_ahead(&job.request, &job.cancel)
    }

    /// Returns `true` if the devices compute while the host does something else.
    pub fn computes_asynchronously(&self) -> bool {
        self.pool.computes_asynchronously()
    }

    /// Starts preparing previews, on another thread. Jobs with previews do this themselves; calling it when the
    /// engine is opened gives the first of them its previews sooner.
    pub fn prepare_previews(&self) {
        if self.prepares_previews.swap(true, Ordering::Relaxed) {
            return;
        }
        let pool = Arc::clone(&self.pool);
        // Without a thread, the first preview does this.
        let _ = thread::Builder::new().name("previews".to_string()).spawn(move || pool.prepare_previews().is_ok());
    }

    /// Checks that previews can be generated. Waits for their preparation.
    ///
    /// Errors if the VAE has no encoder.
    pub fn check_previews(&self) -> Result<()> {
        self.pool.prepare_previews()
    }

    /// Returns the current work of the engine.
    pub fn stats(&self) -> EngineStats {
        let (scheduler, model) = self.scheduler();
        scheduler.stats(model)
    }

    /// Returns the memory of each device.
    pub fn memory(&self) -> Vec<DeviceMemory> {
        self.pool.memory()
    }

    /// Takes no more jobs, and waits until existing jobs are done. After `timeout`, it cancels them and returns
    /// `false`.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.scheduler().0.close(Instant::now() + timeout)
    }

    /// Returns the names of the devices that generate `count` images, in the order of groups and ranks, each with its
    /// type of arithmetic.
    pub fn devices(&self, count: usize) -> Vec<(String, String)> {
        self.pool.devices(count)
    }

    /// Returns a description of the machine that generates `count` images, for metadata. Machines that may round
    /// differently have different descriptions.
    pub fn machine(&self, count: usize) -> String {
        self.pool.machine(count)
    }

    /// Returns the model metadata of images, with the digests of the model's components. Waits for the digests.
    pub fn model(&self) -> ModelRecipe {
        ModelRecipe { digests: self.digests.get().clone(), ..(*self.model).clone() }
    }

    /// Returns remarks of the devices about this machine.
    pub fn remarks(&self, count: usize) -> Vec<(String, Remark)> {
        self.pool.remarks(count)
    }

    /// Returns the model's configs.
    pub fn info(&self) -> &ModelInfo {
        self.pool.info()
    }

    /// Returns the plan of a request. Waits for the tokenizer.
    ///
    /// Errors as [`Model::plan`](crate::pipeline::Model::plan).
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        self.pool.plan(request)
    }

    /// Returns the memory plan of each device, with the device's name, for `count` images like `plan`.
    pub fn memory_plans(&self, plan: &Plan, count: usize) -> Vec<(String, Result<MemoryPlan>)> {
        self.pool.memory_plans(plan, count)
    }

    /// Returns the adapters of a recipe.
    ///
    /// Errors as [`Engine::adapter`].
    pub fn adapters(&self, recipe: &Recipe) -> Result<Vec<AdapterUse>> {
        let open = |AdapterFile { file, strength, blocks }: &AdapterFile| {
            Ok(AdapterUse { adapter: self.adapter(file)?, strength: *strength, blocks: blocks.clone() })
        };
        recipe.adapters.iter().map(open).collect()
    }

    /// Returns an adapter for the model, and opens it if necessary.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        let open = self.adapters.iter().find(|(known, _)| known == path);
        open.map_or_else(|| self.pool.adapter(path), |(_, adapter)| Ok(Arc::clone(adapter)))
    }
}

impl Drop for Engine {
    /// Cancels remaining jobs, and waits for the threads.
    fn drop(&mut self) {
        let (scheduler, model) = self.scheduler();
        let threads = mem::take(&mut *self.threads.lock());
        let devices: Vec<_> = threads.iter().map(|(seat, _)| seat.get().1).collect();
        scheduler.leave(model, &devices);
        for (_, thread) in threads {
            // A thread catches the panics of its work.
            let _ = thread.join();
        }
    }
}
