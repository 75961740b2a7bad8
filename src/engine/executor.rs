//! What an engine needs of a model on devices, whichever backend they are of.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::OfImages;
use super::image::JobImage;
use super::job::Event;
use super::schedule::{Batch, Schedule};
use crate::backend::{Backend, Remark};
use crate::error::{Error, Result};
use crate::files::adapter::Adapter;
use crate::model::ModelInfo;
use crate::pipeline::session::preview::Previews;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::SharedText;
use crate::pipeline::{Decoded, Latents, MemoryPlan, Model, Plan, Replica, Replicas, Request, Session, Timings};
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
    /// See [`Engine::computes_beside_host`](super::Engine::computes_beside_host).
    fn computes_beside_host(&self) -> bool;
    /// Whether an image of a batch may be another than the same image alone.
    fn rounds_by_batch(&self) -> bool;
    /// See [`Engine::remarks`](super::Engine::remarks).
    fn remarks(&self, count: usize) -> Vec<(String, Remark)>;
    /// The model.
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
        // Of several devices nobody knows yet which makes the image.
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
        let of = |replica: &Arc<Replica<B>>| replica.ranks().of_each(describe).collect::<Vec<_>>();
        self.used(count).iter().flat_map(of).collect()
    }

    fn machine(&self, count: usize) -> String {
        let used = self.used(count);
        let machines = used.iter().flat_map(|replica| replica.ranks().of_each(|model| model.backend().machine()));
        machines.map(|(_, machine)| machine).next().unwrap_or_default()
    }

    fn computes_beside_host(&self) -> bool {
        self.first().model().backend().costs().is_beside_host()
    }

    fn rounds_by_batch(&self) -> bool {
        self.first().model().backend().rounds_by_batch()
    }

    fn remarks(&self, count: usize) -> Vec<(String, Remark)> {
        let remarks = |model: &Arc<Model<B>>| model.backend().remarks();
        let of = |replica: &Arc<Replica<B>>| replica.ranks().of_each(remarks).collect::<Vec<_>>();
        let named = |(name, remarks): (String, Vec<Remark>)| {
            remarks.into_iter().map(|remark| (name.clone(), remark)).collect::<Vec<_>>()
        };
        self.used(count).iter().flat_map(of).flat_map(named).collect()
    }

    fn info(&self) -> &ModelInfo {
        self.first().model().info()
    }

    fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        self.first().model().adapter(path)
    }
}

/// What makes batches: one device, or a group.
pub(super) trait Executor: Send + Sync {
    /// Its name; of a group, the names of all.
    fn name(&self) -> &str;
    /// Whether it is a group.
    fn is_group(&self) -> bool;
    /// Makes a batch.
    ///
    /// Errors as sessions do; those of a group have the name of the device.
    fn make(&self, batch: &Arc<Making>) -> Result<()>;
    /// Whether it is still busy with a batch that has ended with an error.
    fn is_late(&self) -> bool;
}

/// A batch that a device makes, and where it says how far it is.
pub(super) struct Making {
    schedule: Arc<Schedule>,
    batch: Mutex<Batch>,
    made: AtomicUsize,
}

impl Making {
    pub(super) fn new(schedule: Arc<Schedule>, batch: Batch) -> Self {
        Self { schedule, batch: Mutex::new(batch), made: AtomicUsize::new(0) }
    }

    pub(super) fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Images that were handed out.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Everything before the first step is done; there is memory for the first `count` images.
    pub(super) fn start(&self, count: usize, remark: Option<&str>) {
        let mut batch = self.batch();
        self.schedule.keep(&mut batch, count);
        for part in batch.parts.iter().filter(|part| !part.images().is_empty()) {
            part.send(Event::Started { images: part.images(), batch: count, remark: remark.map(str::to_string) });
        }
    }

    /// Whether somebody wants to see what steps lead to.
    pub(super) fn wants_previews(&self) -> bool {
        self.batch().parts.iter().any(|part| part.previews)
    }

    /// Hands out what the steps so far lead to, of each image.
    pub(super) fn previews(&self, mut images: impl Iterator<Item = Option<Rgb>>, steps: [usize; 2]) {
        for part in &self.batch().parts {
            for (place, image) in part.images().zip(&mut images) {
                if let Some(image) = image.filter(|_| part.previews) {
                    part.send(Event::Preview { place, steps, image });
                }
            }
        }
    }

    pub(super) fn progress(&self, progress: Progress) {
        self.batch().parts.iter().for_each(|part| part.send(Event::Progress(progress)));
    }

    /// Hands out the next image.
    pub(super) fn image(&self, image: Decoded, latents: Option<Latents>) {
        let mut place = self.made.fetch_add(1, Ordering::Relaxed);
        self.schedule.made();
        let made = self.batch();
        let of_batch = OfImages { place, count: made.requests.len() };
        for part in &made.parts {
            let images = part.images();
            if place < images.len() {
                let place = images.start + place;
                let image = Box::new(JobImage::new(image, place, of_batch, Arc::clone(&part.origin)));
                part.send(Event::Image { place, image, latents });
                return;
            }
            place -= images.len();
        }
    }

    /// All images are handed out.
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

    fn make(&self, making: &Arc<Making>) -> Result<()> {
        let (requests, reader, cancel) = {
            let batch = making.batch();
            (batch.requests.clone(), batch.reader.clone(), batch.cancel.clone())
        };
        let (making, name): (_, Arc<str>) = (Arc::clone(making), self.name().into());
        let model = Arc::clone(self.model());
        let on_rank = move |rank: usize, session: Session<B>, _: &mut dyn FnMut(Progress)| match rank {
            0 => hand_out(session, &making, &name, &model),
            // What the first rank makes is handed out.
            _ => session.run(&mut |_| {}).map(drop),
        };
        self.ranks().run_items(requests, &reader, &cancel, &mut |_| {}, on_rank)
    }
}

/// Makes the images of a session, and hands them out.
fn hand_out<B: Backend>(
    mut session: Session<B>,
    making: &Making,
    device: &Arc<str>,
    model: &Arc<Model<B>>,
) -> Result<()> {
    let report = &mut |progress| making.progress(progress);
    if making.batch().parts.iter().any(|part| part.embeddings) {
        let embeddings = session.embeddings()?;
        let batch = making.batch();
        batch
            .parts
            .iter()
            .filter(|part| part.embeddings)
            .for_each(|part| part.send(Event::Embeddings(embeddings.clone())));
    }
    let count = session.prepare(report)?;
    making.start(count, session.adapter_remark());
    if making.wants_previews() {
        show_steps(&mut session, making, model, report)?;
    }
    let wants_latents = making.batch().parts.iter().any(|part| part.latents);
    let mut latents = if wants_latents { session.final_latents(report)? } else { Vec::new() }.into_iter();
    while let Some(image) = session.decode(report)? {
        making.image(image, latents.next());
    }
    making.finish(device, &session.finish()?);
    Ok(())
}

/// Makes the steps, and hands out what each leads to. A VAE without an encoder has no map, so there is nothing to see,
/// which is no error.
fn show_steps<B: Backend>(
    session: &mut Session<B>,
    making: &Making,
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
        // What the step before it led to becomes an image while the device makes this one.
        show(previews.take(), done - 1)?;
        let begin = |latents| previewer.begin(backend, latents, size);
        previews = session.predict()?.map(begin).transpose()?;
        // A backend that computes while the host enqueues has it already.
        if session.is_idle()? {
            show(previews.take(), done)?;
        }
    }
    if previews.is_some() {
        session.step(report)?;
    }
    show(previews, total - 1)
}
