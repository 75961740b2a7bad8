//! One model on several devices, or on groups of devices.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::model::open::OpenModel;
use crate::pipeline::devices::parallel::Parallel;
use crate::pipeline::memory::plan::MemoryPlan;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::session::model::Model;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::{HostPrompts, SharedText};

/// A model on each of several devices; each device generates whole images. A group of devices that generates each
/// image together, see [`Parallel`], counts as one device here. An [`Engine`](crate::engine::Engine) distributes the
/// images of jobs to the devices.
///
/// The first device loads the weights from the files. The others copy weights from the first device if they are
/// linked to it and compute alike; otherwise they load them from the same memory pages. Each device plans its own
/// memory. Devices of one kind give the same bytes as a single one of them that makes the same batches; an image that
/// is alone in its batch equals the image of [`Model::generate`]. Clones share the devices.
///
/// ```no_run
/// use flux::backend::cuda::Cuda;
/// use flux::engine::Engine;
/// use flux::files::ModelFiles;
/// use flux::model::OpenModel;
/// use flux::pipeline::{Replicas, Request};
/// use flux::stage::CancelFlag;
///
/// let devices = [0, 1].map(|gpu| Ok((format!("cuda:{gpu}"), Cuda::new(gpu, None)?)));
/// let devices = devices.into_iter().collect::<flux::Result<Vec<_>>>()?;
/// let model = OpenModel::open(&ModelFiles::open("models/klein-4b".as_ref())?)?;
/// let engine = Engine::from_replicas(&Replicas::new(devices, model)?)?;
/// let images = engine.generate_images(&Request::new("a cat", 42), 8, &CancelFlag::default(), &mut |_| {})?;
/// assert_eq!((images.len(), images[7].plan.seed), (8, 49));
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Clone)]
pub struct Replicas<B: Backend> {
    first: Arc<Replica<B>>,
    others: Arc<Mutex<Vec<Arc<Replica<B>>>>>,
    /// The text features that one device computes for the others.
    prompts: Arc<HostPrompts>,
}

/// One of several devices with the same model, or a group that generates each image together.
pub struct Replica<B: Backend> {
    name: Arc<str>,
    ranks: Parallel<B>,
}

impl<B: Backend> Replica<B> {
    /// Returns the name of the device, or the joined names of a group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the model of the device, or of the first device of a group.
    pub fn model(&self) -> &Arc<Model<B>> {
        self.ranks.first()
    }

    /// Returns the devices of a group in the order of ranks, or the one device.
    pub fn ranks(&self) -> &Parallel<B> {
        &self.ranks
    }
}

impl<B: Backend> Replicas<B> {
    /// Creates replicas of a model on devices, each with its name. Nothing is copied to them yet.
    ///
    /// Errors if there are no devices, if two have the same name, and as [`Model::on`].
    pub fn new(devices: Vec<(String, B)>, model: OpenModel) -> Result<Self> {
        Self::from_groups(devices.into_iter().map(|device| vec![device]).collect(), model)
    }

    /// Creates replicas as [`Replicas::new`] does, from groups that generate their images together. A group may be
    /// one device.
    ///
    /// Errors as [`Replicas::new`] and [`Parallel::named`].
    pub fn from_groups(groups: Vec<Vec<(String, B)>>, model: OpenModel) -> Result<Self> {
        let mut groups = groups.into_iter();
        let mut first = groups.next().unwrap_or_default().into_iter();
        let Some((name, backend)) = first.next() else {
            return Err(Error::usage("at least 1 device is required"));
        };
        let source = Model::new(backend, model);
        let first = Replica::new((name, Arc::clone(&source)), first, &source)?;
        let replicas = Self { first: Arc::new(first), others: Arc::default(), prompts: Arc::default() };
        groups.try_for_each(|group| replicas.add(group).map(drop))?;
        Ok(replicas)
    }

    /// Adds a device, or a group that generates its images together.
    ///
    /// Errors as [`Replicas::from_groups`].
    pub fn add(&self, group: Vec<(String, B)>) -> Result<Arc<Replica<B>>> {
        let there = self.all();
        let is_there = |name: &str| there.iter().any(|replica| replica.ranks.names().any(|known| known == name));
        if let Some((name, _)) = group.iter().find(|(name, _)| is_there(name)) {
            return Err(there_twice(name));
        }
        let mut group = group.into_iter();
        let Some((name, backend)) = group.next() else { return Err(Error::usage("a group has no devices")) };
        let source = self.first.model();
        let replica = Arc::new(Replica::new((name, source.on(backend)?), group, source)?);
        self.others.lock().push(Arc::clone(&replica));
        Ok(replica)
    }

    /// Returns the first device, which loads the weights from the files.
    pub fn first(&self) -> &Arc<Replica<B>> {
        &self.first
    }

    /// Returns all devices.
    pub fn all(&self) -> Vec<Arc<Replica<B>>> {
        [&self.first].into_iter().chain(&*self.others.lock()).map(Arc::clone).collect()
    }

    /// Returns the devices that generate `count` images: at most one device per image.
    pub fn used(&self, count: usize) -> Vec<Arc<Replica<B>>> {
        let mut used = self.all();
        used.truncate(count.max(1));
        used
    }

    /// Returns text features that one device computes for all.
    pub(crate) fn shared_text(&self) -> Arc<SharedText> {
        Arc::new(SharedText::new(&self.prompts))
    }

    /// Returns the shape of an image, which decides with which other images it can form a batch.
    ///
    /// Errors as [`Model::plan`], without the errors of the tokenizer.
    pub(crate) fn shape(&self, request: &Request) -> Result<Shape> {
        self.first.model().shape(request)
    }

    /// Starts loading the weights for the first images to the devices that generate `count` of them, as
    /// [`Model::prefetch`] does.
    ///
    /// Errors as [`Model::prefetch`].
    pub fn prefetch(&self, request: &Request, count: usize) -> Result<()> {
        // The first device comes first: the others copy the weights that it loads.
        self.used(count).iter().enumerate().try_for_each(|(index, replica)| {
            let is_read_elsewhere = index > 0 && request.embeddings.is_none();
            replica.ranks.models().try_for_each(|model| model.prefetch_as(request, is_read_elsewhere))
        })
    }

    /// Returns the memory plan of each device, with the device's name, for `count` images like `plan`.
    pub fn memory_plans(&self, plan: &Plan, count: usize) -> Vec<(String, Result<MemoryPlan>)> {
        let of_replica = |(index, replica): (usize, &Arc<Replica<B>>)| {
            let plan = Plan { is_read_elsewhere: index > 0, ..plan.clone() };
            replica.ranks.map_devices(|model| model.memory_plan(&plan)).collect::<Vec<_>>()
        };
        self.used(count).iter().enumerate().flat_map(of_replica).collect()
    }
}

impl<B: Backend> Replica<B> {
    /// Creates a replica from the first device of a group and the other devices, which share the model of `source`.
    ///
    /// Errors as [`Parallel::named`] and [`Model::on`], and if two devices have the same name.
    fn new(
        first: (String, Arc<Model<B>>),
        others: impl Iterator<Item = (String, B)>,
        source: &Model<B>,
    ) -> Result<Self> {
        let mut ranks = vec![first];
        for (name, backend) in others {
            if ranks.iter().any(|(known, _)| *known == name) {
                return Err(there_twice(&name));
            }
            ranks.push((name, source.on(backend)?));
        }
        let ranks = Parallel::named(ranks)?;
        let name = ranks.names().collect::<Vec<_>>().join("+").into();
        Ok(Self { name, ranks })
    }
}

fn there_twice(name: &str) -> Error {
    Error::usage(format!("device {name} is listed twice"))
}
