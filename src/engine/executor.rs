//! Interfaces between an engine and a model on devices, independent of the backend.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::enlarging::Enlarging;
use super::event::Event;
use super::image::Image;
use super::networks::Networks;
use super::passes;
use super::schedule::{Batch, Scheduler};
use super::{DeviceMemory, OfImages};
use crate::backend::{Backend, Remark};
use crate::error::Result;
use crate::files::adapter::Adapter;
use crate::model::ModelInfo;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::SharedText;
use crate::pipeline::{Latents, MemoryPlan, Model, Plan, Replica, Replicas, Request, Timings};
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

    /// Sends the next image.
    pub(super) fn image(&self, image: (Rgb, Plan), latents: Option<Latents>) {
        let mut place = self.made.fetch_add(1, Ordering::Relaxed);
        let made = self.batch();
        self.scheduler.made(&made);
        let of_batch = OfImages { place, count: made.requests.len() };
        for part in &made.parts {
            let images = part.images();
            if place < images.len() {
                let place = images.start + place;
                let image = Box::new(Image::new(image, place, of_batch, Arc::clone(&part.origin)));
                part.send(Event::Image { place, image, latents });
                return;
            }
            place -= images.len();
        }
    }

    /// Sends the enlarged image of a job.
    pub(super) fn enlarged(&self, image: Rgb) {
        self.made.fetch_add(1, Ordering::Relaxed);
        let batch = self.batch();
        self.scheduler.made(&batch);
        if let Some(part) = batch.parts.first() {
            part.send(Event::Enlarged(Box::new(image)));
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

/// A replica of the model, and the upscalers on its first device.
pub(super) struct Device<B: Backend> {
    replica: Arc<Replica<B>>,
    networks: Networks<B>,
}

impl<B: Backend> Device<B> {
    pub(super) fn executor(replica: Arc<Replica<B>>) -> Arc<dyn Executor> {
        Arc::new(Self { replica, networks: Networks::default() })
    }

    /// Enlarges the image of a batch, and sends it.
    fn enlarge(&self, enlarging: &Enlarging, making: &RunningBatch) -> Result<()> {
        let cancel = making.batch().cancel.clone();
        making.start(1, None);
        let (backend, report) = (self.replica.model().backend(), &mut |progress: Progress| making.progress(progress));
        let (file, place) = (enlarging.upscaler.as_ref(), (enlarging.to(), enlarging.tiles()));
        making.enlarged(self.networks.enlarge(backend, file, enlarging.image(), place, report, &cancel)?);
        making.finish(&self.name().into(), &Timings::default());
        Ok(())
    }
}

impl<B: Backend> Executor for Device<B> {
    fn name(&self) -> &str {
        self.replica.name()
    }

    fn is_group(&self) -> bool {
        self.replica.ranks().models().len() > 1
    }

    fn is_late(&self) -> bool {
        self.replica.ranks().is_late()
    }

    fn make(&self, making: &Arc<RunningBatch>) -> Result<()> {
        let enlarging = making.batch().parts.first().and_then(|part| part.job().enlarging.clone());
        match enlarging {
            Some(enlarging) => self.enlarge(&enlarging, making),
            None => passes::run(&self.replica, &self.networks, making),
        }
    }
}
