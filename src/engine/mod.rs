//! An engine opens a model once and makes images for whoever asks: jobs go in, events and images come out.
//!
//! One thread of each device, or of each group of devices that make an image together, lives as long as the engine. A
//! thread takes the next batch of the schedule, which joins images of one shape that wait: those of a job, and
//! those of several jobs. A [`Job`] may be cancelled at any time; an error ends its own job alone.
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
pub mod choice;
pub mod devices;
mod digests;
mod executor;
mod feedback;
mod image;
mod image_recipe;
mod inputs;
mod job;
mod open;
mod order;
mod recipe;
mod schedule;
#[cfg(test)]
mod tests;
mod ticket;
mod worker;

use std::io::Read;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use args::{Decodes, EngineArgs, Observer, PreviewDecoder, Unobserved};
pub use image::JobImage;
pub use image_recipe::{ImageRecipe, ModelRecipe, NUMERICS, OfImages};
pub use inputs::{EmbeddedFiles, InputSource, Inputs};
pub use job::{BatchShape, Event, Job};
pub use open::OpeningTimes;
pub use recipe::{AdapterFile, Recipe};
pub use ticket::{InOrder, Ticket};

use self::digests::ModelDigests;
use self::executor::{Executor, Pool};
use self::image::Origin;
use self::schedule::Schedule;
use crate::backend::{Backend, Remark};
use crate::error::Result;
use crate::files::adapter::Adapter;
use crate::files::adapter::AdapterUse;
use crate::model::{ModelInfo, OpenModel};
use crate::pipeline::{Image, MemoryPlan, Plan, Replicas, Request};
use crate::stage::{CancelFlag, Progress};

/// A model on devices, and the threads that make images with it.
pub struct Engine {
    pool: Arc<dyn Pool>,
    schedule: Arc<Schedule>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Devices that are being opened.
    late: Mutex<Option<Late>>,
    /// Those that were opened with the model, by the path that was given.
    adapters: Vec<(PathBuf, Arc<Adapter>)>,
    /// What images say of the model.
    model: Arc<ModelRecipe>,
    digests: Arc<ModelDigests>,
    times: OpeningTimes,
}

/// Waits for devices that are being opened.
type Late = Box<dyn FnOnce() -> Result<Vec<Arc<dyn Executor>>> + Send>;

/// What an engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct EngineStats {
    /// Threads that make images.
    pub devices: usize,
    /// Images of jobs that no device has begun.
    pub waiting: usize,
    /// Images that devices are making.
    pub running: usize,
    /// Images that were made since the engine was opened.
    pub made: usize,
}

impl Engine {
    /// An engine on groups of devices, each device with its name; a group makes each image together, and may be one
    /// device. Weights are loaded for the first job.
    ///
    /// Errors as [`Replicas::of_groups`], and when the system starts no thread.
    pub fn on<B: Backend>(groups: Vec<Vec<(String, B)>>, model: OpenModel) -> Result<Self> {
        Self::of(&Replicas::of_groups(groups, model)?)
    }

    /// An engine on devices that have the model already, and may be used beside it.
    ///
    /// Errors when the system starts no thread.
    pub fn of<B: Backend>(replicas: &Replicas<B>) -> Result<Self> {
        let pool = Arc::new(replicas.clone());
        let devices = replicas.all().into_iter().map(|replica| replica as Arc<dyn Executor>);
        Self::with(pool, devices.collect())
    }

    fn with(pool: Arc<dyn Pool>, devices: Vec<Arc<dyn Executor>>) -> Result<Self> {
        let ModelInfo { name, quantised, .. } = pool.info();
        let model = ModelRecipe { name: name.clone(), quantize: quantised.clone(), ..ModelRecipe::default() };
        let engine = Self {
            pool,
            model: Arc::new(model),
            digests: Arc::default(),
            schedule: Arc::default(),
            threads: Mutex::default(),
            late: Mutex::default(),
            adapters: Vec::new(),
            times: OpeningTimes::default(),
        };
        engine.add(devices)?;
        Ok(engine)
    }

    fn add(&self, devices: Vec<Arc<dyn Executor>>) -> Result<()> {
        // All are there before the first of them takes a batch.
        let first = self.schedule.add(devices.len());
        for (number, device) in (first..).zip(devices) {
            let thread = worker::start(number, device, Arc::clone(&self.schedule))?;
            self.threads().push(thread);
        }
        Ok(())
    }

    /// Devices that come later.
    fn expect(&self, late: Late) {
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some(late);
    }

    /// Waits until all devices are open.
    ///
    /// Errors when one of them cannot be opened.
    pub fn wait_for_devices(&self) -> Result<()> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.take().map_or(Ok(()), |wait| self.add(wait()?))
    }

    /// How long opening took.
    pub fn times(&self) -> OpeningTimes {
        self.times
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job of `count` images of a recipe, whose seeds are its own and those that follow it. Reads the files that
    /// the recipe names; the image `-` is `stdin`.
    ///
    /// Errors when one cannot be read, or does not suit the model or the others.
    pub fn job(&self, recipe: &Recipe, count: usize, stdin: &mut dyn Read) -> Result<Job> {
        let inputs = Inputs::read(recipe, &mut InputSource::new(stdin))?;
        let request = Request { adapters: self.adapters(recipe)?, ..inputs.apply(recipe.request()?) };
        Ok(Job { inputs: Arc::new(inputs), recipe: Some(Arc::new(recipe.clone())), ..Job::new(request, count) })
    }

    /// Has devices make the images of a job.
    ///
    /// Errors when the model cannot do what is asked for, there is too little memory for it, or the engine takes no
    /// more jobs.
    pub fn submit(&self, job: Job) -> Result<Ticket> {
        job.request.check_count(job.count)?;
        job.cancel.check()?;
        self.wait_for_devices()?;
        let shape = self.pool.shape(&job.request)?;
        self.pool.prefetch(&job.request, job.count)?;
        if job.previews {
            self.prepare_previews();
        }
        let Job { request, inputs, recipe, count, provenance, of, key, .. } = job.clone();
        let (model, digests, device) = (Arc::clone(&self.model), Arc::clone(&self.digests), self.machine(count));
        let rounds_by_batch = self.pool.rounds_by_batch();
        let origin =
            Origin { request, inputs, recipe, count, provenance, of, rounds_by_batch, key, model, digests, device };
        Ticket::new(&self.schedule, job, Arc::new(origin), shape, self.pool.shared_text())
    }

    /// Makes `count` images, whose seeds are the request's and those that follow it. `report` gets the progress of the
    /// batch whose images come next.
    ///
    /// Errors as [`Engine::submit`] and as the job does.
    pub fn generate(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Image>> {
        let job = Job { cancel: cancel.clone(), ..Job::new(request.clone(), count) };
        let (mut images, mut decoded) = (Vec::new(), Vec::new());
        for event in self.submit(job)?.in_order() {
            match event? {
                Event::Progress(progress) => report(progress),
                Event::Image { image, .. } => decoded.push(*image),
                Event::Finished { timings, .. } => {
                    let image =
                        |JobImage { rgb, plan, .. }| Image { rgb: rgb.bytes, plan, timings: (*timings).clone() };
                    images.extend(mem::take(&mut decoded).into_iter().map(image));
                }
                Event::Queued(_) | Event::Started { .. } | Event::Preview { .. } | Event::Embeddings(_) => {}
            }
        }
        Ok(images)
    }

    /// Starts loading what the images of a job need first, see [`Replicas::prefetch`].
    ///
    /// Errors as that.
    pub fn prefetch(&self, request: &Request, count: usize) -> Result<()> {
        self.pool.prefetch(request, count)
    }

    /// Encodes the prompt of a request, so that jobs with it need not. Nothing happens where the engine has work, or
    /// where not all parts of the model are in memory together.
    ///
    /// Errors as [`Engine::submit`] and as the text encoder does, and as cancelled.
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

    /// Encodes the images of a job that is submitted next, while the device still makes another one, so that it need
    /// not wait for them. Nothing happens where several devices make images, or not all parts of the model are in
    /// memory.
    ///
    /// Errors as the job would, which then says so.
    pub fn encode_images_ahead(&self, job: &Job) -> Result<()> {
        self.pool.encode_images_ahead(&job.request, &job.cancel)
    }

    /// Whether its devices compute while the host does something else.
    pub fn computes_beside_host(&self) -> bool {
        self.pool.computes_beside_host()
    }

    /// Starts making what previews need, on a thread of its own. Jobs that want previews do so themselves; the first of
    /// them has its previews sooner where this was done when the engine was opened.
    pub fn prepare_previews(&self) {
        let pool = Arc::clone(&self.pool);
        // Without a thread it is made when the first preview is.
        let _ = thread::Builder::new().name("previews".to_string()).spawn(move || pool.prepare_previews().is_ok());
    }

    /// Whether previews can be made, and why not. Waits for what they need.
    ///
    /// Errors when the VAE has no encoder.
    pub fn check_previews(&self) -> Result<()> {
        self.pool.prepare_previews()
    }

    /// What the engine is doing.
    pub fn stats(&self) -> EngineStats {
        self.schedule.stats()
    }

    /// Takes no more jobs, and waits until those that it has are done. Returns whether they are; after `timeout` it
    /// cancels them.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.schedule.close(Instant::now() + timeout)
    }

    /// The names of the devices that make `count` images, in the order of groups and ranks, and how each computes.
    pub fn devices(&self, count: usize) -> Vec<(String, String)> {
        self.pool.devices(count)
    }

    /// What makes `count` images, told apart from machines that may round otherwise: images say it.
    pub fn machine(&self, count: usize) -> String {
        self.pool.machine(count)
    }

    /// What images say of the model, with the digests of its parts. Waits for these.
    pub fn model(&self) -> ModelRecipe {
        ModelRecipe { digests: self.digests.get().clone(), ..(*self.model).clone() }
    }

    /// What these devices have to say of how they work on this machine.
    pub fn remarks(&self, count: usize) -> Vec<(String, Remark)> {
        self.pool.remarks(count)
    }

    /// The model.
    pub fn info(&self) -> &ModelInfo {
        self.pool.info()
    }

    /// What a job would make of the request. Waits for the tokenizer.
    ///
    /// Errors as [`Model::plan`](crate::pipeline::Model::plan).
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        self.pool.plan(request)
    }

    /// With which others the image of a request may be made as one batch.
    ///
    /// Errors as [`Engine::plan`], but for the tokenizer.
    pub fn batch_shape(&self, request: &Request) -> Result<BatchShape> {
        self.pool.shape(request).map(BatchShape)
    }

    /// Which parts of the model are in memory while devices make `count` images like `plan`, of each device with its
    /// name.
    pub fn memory_plans(&self, plan: &Plan, count: usize) -> Vec<(String, Result<MemoryPlan>)> {
        self.pool.memory_plans(plan, count)
    }

    /// The adapters of a recipe.
    ///
    /// Errors as [`Engine::adapter`].
    pub fn adapters(&self, recipe: &Recipe) -> Result<Vec<AdapterUse>> {
        let open = |used: &AdapterFile| Ok(AdapterUse { adapter: self.adapter(&used.file)?, strength: used.strength });
        recipe.adapters.iter().map(open).collect()
    }

    /// An adapter for the model, which is opened unless it is open.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        let open = self.adapters.iter().find(|(known, _)| known == path);
        open.map_or_else(|| self.pool.adapter(path), |(_, adapter)| Ok(Arc::clone(adapter)))
    }
}

impl Drop for Engine {
    /// Cancels what is left, and waits for the threads.
    fn drop(&mut self) {
        self.schedule.close(Instant::now());
        for thread in mem::take(&mut *self.threads()) {
            // A thread catches the panics of what it does.
            let _ = thread.join();
        }
    }
}
