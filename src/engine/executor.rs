//! Interfaces between an engine and a model on devices, independent of the backend.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::event::Event;
use super::image::Image;
use super::schedule::{Batch, JobShare, Scheduler};
use super::{DeviceMemory, OfImages, transparent};
use crate::backend::{Backend, Remark};
use crate::error::{Error, Result};
use crate::files::adapter::Adapter;
use crate::model::ModelInfo;
use crate::pipeline::session::preview::Previews;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::{SharedText, TextSource};
use crate::pipeline::{
    Decoded, Latents, MemoryPlan, Model, Plan, Replica, Replicas, Request, Session, Timings, Transparency,
};
use crate::rgb::Rgb;
use crate::stage::{CancelFlag, Progress};

/// A model on all devices of an engine.
pub(super) trait Pool: Send + Sync {
    /// See [`Replicas::shape`].
    fn shape(&self, request: &Request) -> Result<Shape>;
    /// See [`Replicas::shared_text`].
    fn shared_text(&self) -> Arc<SharedText>;
    /// See [`Replicas::prefetch`].
    fn prefetch(&self, request: &Request, count: usize) -> Result<()>;
    /// See [`Engine::encode_images_ahead`](super::Engine::encode_images_ahead).
    fn encode_images_ahead(&self, request: &Request, cancel: &CancelFlag) -> Result<()>;
    /// See [`Model::prepare_previews`].
    fn prepare_previews(&self) -> Result<()>;
    /// See [`Engine::plan`](super::Engine::plan).
    fn plan(&self, request: &Request) -> Result<Plan>;
    /// See [`Replicas::memory_plans`].
    fn memory_plans(&self, plan: &Plan, count: usize) -> Vec<(String, Result<MemoryPlan>)>;
    /// See [`Engine::devices`](super::Engine::devices).
    fn devices(&self, count: usize) -> Vec<(String, String)>;
    /// See [`Engine::machine`](super::Engine::machine).
    fn machine(&self, count: usize) -> String;
    /// See [`Engine::computes_asynchronously`](super::Engine::computes_asynchronously).
    fn computes_asynchronously(&self) -> bool;
    /// Returns `true` if an image in a batch may differ from the same image alone.
    fn rounds_by_batch(&self) -> bool;
    /// See [`Engine::remarks`](super::Engine::remarks).
    fn remarks(&self, count: usize) -> Vec<(String, Remark)>;
    /// See [`Engine::memory`](super::Engine::memory).
    fn memory(&self) -> Vec<DeviceMemory>;
    /// Returns the model's configs.
    fn info(&self) -> &ModelInfo;
    /// See [`Engine::adapter`](super::Engine::adapter).
    fn adapter(&self, path: &Path) -> Result<Arc<Adapter>>;
}

impl<B: Backend> Pool for Replicas<B> {
    fn shape(&self, request: &Request) -> Result<Shape> {
        Replicas::shape(self, request)
    }

    fn shared_text(&self) -> Arc<SharedText> {
        Replicas::shared_text(self)
    }

    fn prefetch(&self, request: &Request, count: usize) -> Result<()> {
        Replicas::prefetch(self, request, count)
    }

    fn encode_images_ahead(&self, request: &Request, cancel: &CancelFlag) -> Result<()> {
        // With several devices, it is not known yet which one generates the image.
        match &self.used(usize::MAX)[..] {
            [only] => only.model().encode_images_ahead(request, cancel),
            _ => Ok(()),
        }
    }

    fn prepare_previews(&self) -> Result<()> {
        self.first().model().prepare_previews()
    }

    fn plan(&self, request: &Request) -> Result<Plan> {
        self.first().model().plan(request)
    }

    fn memory_plans(&self, plan: &Plan, count: usize) -> Vec<(String, Result<MemoryPlan>)> {
        Replicas::memory_plans(self, plan, count)
    }

    fn devices(&self, count: usize) -> Vec<(String, String)> {
        let describe = |model: &Arc<Model<B>>| model.backend().describe();
        let of = |replica: &Arc<Replica<B>>| replica.ranks().map_devices(describe).collect::<Vec<_>>();
        self.used(count).iter().flat_map(of).collect()
    }

    fn machine(&self, count: usize) -> String {
        let used = self.used(count);
        let machines = used.iter().flat_map(|replica| replica.ranks().map_devices(|model| model.backend().machine()));
        machines.map(|(_, machine)| machine).next().unwrap_or_default()
    }

    fn computes_asynchronously(&self) -> bool {
        self.first().model().backend().costs().is_asynchronous()
    }

    fn rounds_by_batch(&self) -> bool {
        self.first().model().backend().rounds_by_batch()
    }

    fn remarks(&self, count: usize) -> Vec<(String, Remark)> {
        let remarks = |model: &Arc<Model<B>>| model.backend().remarks();
        let of = |replica: &Arc<Replica<B>>| replica.ranks().map_devices(remarks).collect::<Vec<_>>();
        let named = |(name, remarks): (String, Vec<Remark>)| {
            remarks.into_iter().map(|remark| (name.clone(), remark)).collect::<Vec<_>>()
        };
        self.used(count).iter().flat_map(of).flat_map(named).collect()
    }

    fn memory(&self) -> Vec<DeviceMemory> {
        let memory = |model: &Arc<Model<B>>| {
            let (backend, prompts) = (model.backend(), model.prompt_cache());
            let available = Some(backend.available_bytes()).filter(|bytes| *bytes != u64::MAX);
            (backend.stats().memory_bytes, available, prompts)
        };
        let of = |replica: &Arc<Replica<B>>| replica.ranks().map_devices(memory).collect::<Vec<_>>();
        let named = |(device, (used, available, prompts))| DeviceMemory { device, used, available, prompts };
        self.used(usize::MAX).iter().flat_map(of).map(named).collect()
    }

    fn info(&self) -> &ModelInfo {
        self.first().model().info()
    }

    fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        self.first().model().adapter(path)
    }
}

/// An executor of batches: one device, or a group.
pub(super) trait Executor: Send + Sync {
    /// Returns the name of the device, or the joined names of a group.
    fn name(&self) -> &str;
    /// Returns `true` for a group of several devices.
    fn is_group(&self) -> bool;
    /// Generates a batch.
    ///
    /// Errors as sessions do; errors of a group include the name of the device.
    fn make(&self, batch: &Arc<RunningBatch>) -> Result<()>;
    /// Returns `true` if the executor is still busy with a batch that has ended with an error.
    fn is_late(&self) -> bool;
}

/// A batch in progress on a device; it sends its events to the jobs.
pub(super) struct RunningBatch {
    scheduler: Arc<Scheduler>,
    batch: Mutex<Batch>,
    made: AtomicUsize,
}

impl RunningBatch {
    pub(super) fn new(scheduler: Arc<Scheduler>, batch: Batch) -> Self {
        Self { scheduler, batch: Mutex::new(batch), made: AtomicUsize::new(0) }
    }

    pub(super) fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of images that were sent.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Sends that steps begin, with memory for the first `count` images; returns the other images to the scheduler.
    pub(super) fn start(&self, count: usize, remark: Option<&str>) {
        let mut batch = self.batch();
        self.scheduler.keep(&mut batch, count);
        for part in batch.parts.iter().filter(|part| !part.images().is_empty()) {
            part.send(Event::Started { images: part.images(), batch: count, remark: remark.map(str::to_string) });
        }
    }

    /// Returns `true` if a job requests previews.
    pub(super) fn wants_previews(&self) -> bool {
        self.batch().parts.iter().any(|part| part.job().previews)
    }

    /// Sends the preview of each image.
    pub(super) fn previews(&self, mut images: impl Iterator<Item = Option<Rgb>>, steps: [usize; 2]) {
        for part in &self.batch().parts {
            for (place, image) in part.images().zip(&mut images) {
                if let Some(image) = image.filter(|_| part.job().previews) {
                    part.send(Event::Preview { place, steps, image });
                }
            }
        }
    }

    pub(super) fn progress(&self, progress: Progress) {
        let batch = self.batch();
        self.scheduler.progress(&batch, progress);
        batch.parts.iter().for_each(|part| part.send(Event::Progress(progress)));
    }

    /// Sends the next image; `other` is the image on another background.
    pub(super) fn image(&self, image: Decoded, latents: Option<Latents>, other: Option<Rgb>) {
        let mut place = self.made.fetch_add(1, Ordering::Relaxed);
        let made = self.batch();
        self.scheduler.made(&made);
        let of_batch = OfImages { place, count: made.requests.len() };
        for part in &made.parts {
            let images = part.images();
            if place < images.len() {
                let place = images.start + place;
                let image = Box::new(Image::new((image, other), place, of_batch, Arc::clone(&part.origin)));
                part.send(Event::Image { place, image, latents });
                return;
            }
            place -= images.len();
        }
    }

    /// Sends that all images are generated.
    pub(super) fn finish(&self, device: &Arc<str>, timings: &Timings) {
        for part in self.batch().parts.iter().filter(|part| !part.images().is_empty()) {
            let (images, device) = (part.images(), Arc::clone(device));
            part.send(Event::Finished { images, device, timings: Box::new(timings.clone()) });
        }
    }
}

impl<B: Backend> Executor for Replica<B> {
    fn name(&self) -> &str {
        Replica::name(self)
    }

    fn is_group(&self) -> bool {
        self.ranks().models().len() > 1
    }

    fn is_late(&self) -> bool {
        self.ranks().is_late()
    }

    fn make(&self, making: &Arc<RunningBatch>) -> Result<()> {
        let (requests, reader, cancel) = {
            let batch = making.batch();
            (batch.requests.clone(), batch.reader.clone(), batch.cancel.clone())
        };
        if requests.first().is_some_and(|request| request.transparent == Transparency::Edit) {
            return make_transparent(self, making, (requests, reader, cancel));
        }
        let (making, name): (_, Arc<str>) = (Arc::clone(making), self.name().into());
        let model = Arc::clone(self.model());
        let on_rank = move |rank: usize, session: Session<B>, _: &mut dyn FnMut(Progress)| match rank {
            0 => {
                let timings = generate(session, &making, &model, |image, latents| making.image(image, latents, None))?;
                making.finish(&name, &timings);
                Ok(())
            }
            // Only the first rank sends the images.
            _ => session.run(&mut |_| {}).map(drop),
        };
        self.ranks().run_items(requests, &reader, &cancel, &mut |_| {}, on_rank)
    }
}

/// Generates the images of a batch, and each of them on another background.
///
/// Errors as sessions do.
fn make_transparent<B: Backend>(
    replica: &Replica<B>,
    making: &Arc<RunningBatch>,
    (requests, reader, cancel): (Vec<Request>, TextSource, CancelFlag),
) -> Result<()> {
    let (own, model) = (Arc::clone(making), Arc::clone(replica.model()));
    let first = move |rank: usize, session: Session<B>, _: &mut dyn FnMut(Progress)| {
        if rank > 0 {
            return session.run(&mut |_| {}).map(|_| None);
        }
        let mut images = Vec::new();
        let timings = generate(session, &own, &model, |image, latents| images.push((image, latents)))?;
        Ok(Some((images, timings)))
    };
    let made = replica.ranks().run_items(requests.clone(), &reader, &cancel, &mut |_| {}, first)?;
    let (images, mut timings) = made.ok_or_else(|| Error::new("a device made no image"))?;
    for ((image, latents), request) in images.into_iter().zip(&requests) {
        let Decoded { rgb: bytes, plan } = &image;
        let rgb = Rgb { width: plan.width, height: plan.height, bytes: bytes.clone() };
        let (second, own) = (transparent::second_request(request, rgb), Arc::clone(making));
        let other = transparent::generate(replica, second, &cancel, move |progress| own.progress(progress))?;
        timings = timings.then(other.timings);
        let other = Rgb { width: other.plan.width, height: other.plan.height, bytes: other.rgb };
        making.image(image, latents, Some(other));
    }
    making.finish(&replica.name().into(), &timings);
    Ok(())
}

/// Generates the images of a session, and passes each to `take`. Returns the timings.
fn generate<B: Backend>(
    mut session: Session<B>,
    making: &RunningBatch,
    model: &Arc<Model<B>>,
    mut take: impl FnMut(Decoded, Option<Latents>),
) -> Result<Timings> {
    let report = &mut |progress| making.progress(progress);
    if making.batch().parts.iter().any(JobShare::wants_embeddings) {
        let embeddings = session.embeddings()?;
        let batch = making.batch();
        batch
            .parts
            .iter()
            .filter(|part| part.wants_embeddings())
            .for_each(|part| part.send(Event::Embeddings(embeddings.clone())));
    }
    let count = session.prepare(report)?;
    making.start(count, session.adapter_remark());
    if making.wants_previews() {
        show_steps(&mut session, making, model, report)?;
    }
    let wants_latents = making.batch().parts.iter().any(|part| part.job().latents);
    let mut latents = if wants_latents { session.final_latents(report)? } else { Vec::new() }.into_iter();
    while let Some(image) = session.decode(report)? {
        take(image, latents.next());
    }
    session.finish()
}

/// Runs the steps, and sends a preview of each. A VAE without an encoder has no preview map; then there are no
/// previews, which is not an error.
fn show_steps<B: Backend>(
    session: &mut Session<B>,
    making: &RunningBatch,
    model: &Model<B>,
    report: &mut dyn FnMut(Progress),
) -> Result<()> {
    let previewer = match model.previewer() {
        Ok(previewer) => previewer,
        Err(error) if model.info().preview_decoder.is_some() => return Err(error),
        Err(_) => return Ok(()),
    };
    if !session.watch(report)? {
        return Ok(());
    }
    let total = session.plan().steps_to_run();
    let (backend, (height, width)) = (model.backend(), model.info().latent_size(session.plan()));
    let (size, channels) = ([height, width], model.info().transformer.in_channels);
    let show = |previews: Option<Previews<B>>, done: usize| {
        let Some(previews) = previews else { return Ok(()) };
        let images = previewer.finish(backend, previews, size, channels)?;
        making.previews(images.into_iter(), [done, total]);
        Ok::<_, Error>(())
    };
    let mut previews = None;
    for done in 1..total {
        session.step(report)?;
        // The preview of the previous step is finished while the device computes this step.
        show(previews.take(), done - 1)?;
        let begin = |latents| previewer.begin(backend, latents, size);
        previews = session.predict()?.map(begin).transpose()?;
        // A backend that computes while the host enqueues has finished this step already.
        if session.is_idle()? {
            show(previews.take(), done)?;
        }
    }
    if previews.is_some() {
        session.step(report)?;
    }
    show(previews, total - 1)
}
