//! Interfaces between an engine and a model on devices, independent of the backend.

use std::path::Path;
use std::sync::Arc;

use super::DeviceMemory;
use super::enlarging::Enlarging;
use super::networks::Networks;
use super::passes;
use super::running::RunningBatch;
use crate::backend::{Backend, Remark};
use crate::error::Result;
use crate::files::adapter::Adapter;
use crate::model::ModelInfo;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::SharedText;
use crate::pipeline::{MemoryPlan, Model, Plan, Replica, Replicas, Request, Timings};
use crate::stage::{CancelFlag, Progress};
use crate::upscaler::Tiles;

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
        let cancel = making.batch.lock().cancel.clone();
        making.start(1, None);
        let (backend, report) = (self.replica.model().backend(), &mut |progress: Progress| making.progress(progress));
        let (file, place) = (enlarging.upscaler.as_ref(), (enlarging.to(), Tiles::Auto));
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
        let enlarging = making.batch.lock().parts.first().and_then(|part| part.job().enlarging.clone());
        match enlarging {
            Some(enlarging) => self.enlarge(&enlarging, making),
            None => passes::run(&self.replica, &self.networks, making),
        }
    }
}
