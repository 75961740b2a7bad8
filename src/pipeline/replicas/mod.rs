//! Several devices with the same model, or groups of them, which share the images of a request.

mod order;
mod queue;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use self::order::{BatchOutput, Order, Output};
use self::queue::Queue;
use super::shared_text::{HostPrompts, Reader, SharedText};
use super::{CancelFlag, Embeddings, Image, MemoryPlan, Model, OpenModel, Parallel, Plan, Progress, Request, Session};
use crate::backend::Backend;
use crate::error::{Error, Kind, Result};

/// A model on each of several devices. They share the images of a request; each makes whole images. Where a group of
/// devices makes each image together, see [`Parallel`], the group is one device here.
///
/// The first device reads the prompt for all, and loads the weights from the files; the others copy them from it where
/// they are linked to it and compute alike, and load them from the same pages where not. Each plans its own memory.
/// Batches are divided by the number of images and of devices: as few on each device as their largest size allows, of
/// nearly one size, so that two devices make 2 images one by one and 8 as 4 and 4. Devices of one kind give the same
/// bytes as one of them that makes the same batches; an image that is alone in its batch is the one that
/// [`Model::generate`] makes. Where a device has no room for all of a batch, any device makes the rest.
///
/// ```no_run
/// use flux::backend::cuda::Cuda;
/// use flux::files::ModelFiles;
/// use flux::pipeline::{CancelFlag, OpenModel, Replicas, Request};
///
/// let devices = [0, 1].map(|gpu| Ok((format!("cuda:{gpu}"), Cuda::new(gpu, None)?)));
/// let devices = devices.into_iter().collect::<flux::Result<Vec<_>>>()?;
/// let model = OpenModel::open(&ModelFiles::open("models/klein-4b".as_ref())?)?;
/// let replicas = Replicas::new(devices, model)?;
/// let images = replicas.generate(&Request::new("a cat", 42), 8, &CancelFlag::default(), &mut |_| {})?;
/// assert_eq!((images.len(), images[7].plan.seed), (8, 49));
/// # Ok::<(), flux::Error>(())
/// ```
pub struct Replicas<B: Backend> {
    /// At least one.
    replicas: Vec<Replica<B>>,
    /// The text features that the first one made for the others.
    prompts: Arc<HostPrompts>,
}

/// One of several devices with the same model, or a group that makes each image together.
pub struct Replica<B: Backend> {
    name: Arc<str>,
    ranks: Parallel<B>,
}

/// What [`Replicas::run`] hands on.
pub enum Made<T> {
    /// How far the batch is whose images come next.
    Progress(Progress),
    /// What the work on a batch gave.
    Item(T),
}

/// Images that one device makes at once, as far as it has memory for all.
pub struct Share<B: Backend> {
    device: Arc<str>,
    session: Session<B>,
    first: usize,
    /// None where another rank of the group says it.
    kept: Option<Kept>,
}

/// How many images of a batch a device makes; all of them unless it says otherwise.
struct Kept {
    queue: Arc<Queue>,
    batch: Range<usize>,
    count: Arc<AtomicUsize>,
    is_told: bool,
}

/// Where the work on a batch says how far it is, and what it made.
pub struct Sink<T> {
    /// None where another rank of the group says it.
    sender: Option<Sender<Message<T>>>,
    first: usize,
}

/// What a device sends.
enum Message<T> {
    Progress(usize, Progress),
    Output(BatchOutput<T>),
    Failed(Error),
    /// The device takes no more batches.
    Over,
}

/// Messages until all devices are over. One that was left behind may hold a sender for longer.
struct Messages<T> {
    receiver: Receiver<Message<T>>,
    at_work: usize,
}

/// Says that a device is over.
struct Ending<'a, T>(&'a Sender<Message<T>>);

/// Has devices that wait for text features make their own, where this one ends without.
struct Abandon<'a>(&'a Reader);

/// Ends all devices when one of them, or the caller, panics.
struct StopOnPanic<'a>(&'a Queue, &'a CancelFlag);

impl<B: Backend> Replica<B> {
    /// The device's name; of a group, the names of all.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its model, of a group that of the first device.
    pub fn model(&self) -> &Arc<Model<B>> {
        self.ranks.first()
    }

    /// The devices of a group in the order of ranks, or the one device.
    pub fn ranks(&self) -> &Parallel<B> {
        &self.ranks
    }
}

impl<B: Backend> Replicas<B> {
    /// A model on devices, each with its name. Nothing is copied to them yet.
    ///
    /// Errors when there are none or two have one name, and as [`Model::on`].
    pub fn new(devices: Vec<(String, B)>, model: OpenModel) -> Result<Self> {
        Self::of_groups(devices.into_iter().map(|device| vec![device]).collect(), model)
    }

    /// The same where each of `groups` makes its images together; a group may be one device.
    ///
    /// Errors as [`Replicas::new`] and [`Parallel::named`].
    pub fn of_groups(groups: Vec<Vec<(String, B)>>, model: OpenModel) -> Result<Self> {
        let mut groups = groups.into_iter();
        let mut first = groups.next().unwrap_or_default().into_iter();
        let Some((name, backend)) = first.next() else {
            return Err(Error::usage("there is no device, expected at least one"));
        };
        let source = Model::new(backend, model);
        let first = Replica::new((name, Arc::clone(&source)), first, &source)?;
        let mut replicas = Self { replicas: vec![first], prompts: Arc::default() };
        groups.try_for_each(|group| replicas.add(group))?;
        Ok(replicas)
    }

    /// Adds a device, or a group that makes its images together.
    ///
    /// Errors as [`Replicas::of_groups`].
    pub fn add(&mut self, group: Vec<(String, B)>) -> Result<()> {
        let is_there =
            |name: &str| self.replicas.iter().any(|replica| replica.ranks.names().any(|known| known == name));
        if let Some((name, _)) = group.iter().find(|(name, _)| is_there(name)) {
            return Err(there_twice(name));
        }
        let mut group = group.into_iter();
        let Some((name, backend)) = group.next() else { return Err(Error::usage("a group has no device")) };
        let source = Arc::clone(self.replicas[0].model());
        let first = (name, source.on(backend)?);
        self.replicas.push(Replica::new(first, group, &source)?);
        Ok(())
    }

    /// The devices that make `count` images: no more than there are images.
    pub fn used(&self, count: usize) -> &[Replica<B>] {
        &self.replicas[..count.clamp(1, self.replicas.len())]
    }

    /// Starts loading the weights of first images to the devices that make `count` of them, as [`Model::prefetch`].
    ///
    /// Errors as that.
    pub fn prefetch(&self, request: &Request, count: usize) -> Result<()> {
        // The first one comes first: others copy what it loads.
        let mut devices = self.used(count).iter().enumerate();
        devices.try_for_each(|(index, replica)| {
            let is_read_elsewhere = index > 0 && request.embeddings.is_none();
            replica.ranks.models().try_for_each(|model| model.prefetch_as(request, is_read_elsewhere))
        })
    }

    /// Which parts of the model are in memory while devices make `count` images like `plan`, of each device with its name.
    pub fn memory_plans(&self, plan: &Plan, count: usize) -> impl Iterator<Item = (&str, Result<MemoryPlan>)> {
        self.used(count).iter().enumerate().flat_map(move |(index, replica)| {
            let plan = Plan { is_read_elsewhere: index > 0, ..plan.clone() };
            replica.ranks.names().zip(replica.ranks.models()).map(move |(name, model)| (name, model.memory_plan(&plan)))
        })
    }

    /// Makes `count` images, whose seeds are the request's and those that follow it.
    ///
    /// Errors as [`Replicas::run`].
    pub fn generate(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Image>> {
        let work = |share: Share<B>, sink: &Sink<Image>| {
            let report = &mut |progress| sink.progress(progress);
            let (session, _) = share.prepare(report)?;
            session.run(report)?.into_iter().for_each(|image| sink.give(image));
            Ok(())
        };
        let mut images = Vec::new();
        self.run(request, count, cancel, work, &mut |made| {
            match made {
                Made::Progress(progress) => report(progress),
                Made::Item(image) => images.push(image),
            }
            Ok(())
        })?;
        Ok(images)
    }

    /// Has devices make `count` images, whose seeds are the request's and those that follow it. `work` is what a device
    /// does for a batch, on a thread of its own: it calls [`Share::prepare`], makes the images, and gives what it likes
    /// to the sink. `take` gets that on this thread in the order of the seeds, whichever device is faster. Of a group,
    /// each device does so, and only what the first one gives is taken. The first device reads the prompt for all: others
    /// wait in [`Share::prepare`], [`Share::embeddings`] and [`Share::make`] until that one has called one of them, or has
    /// ended.
    ///
    /// An error of a device or of `take` cancels the other devices, and is returned with the name of the device where
    /// there are several. A device that does not end then is left behind, see [`Parallel::run`].
    ///
    /// Errors as [`Model::session`] does and as `work` and `take` do, and once `cancel` is set.
    pub fn run<T: Send + 'static>(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        work: impl Fn(Share<B>, &Sink<T>) -> Result<()> + Send + Sync + 'static,
        take: &mut dyn FnMut(Made<T>) -> Result<()>,
    ) -> Result<()> {
        request.check_count(count)?;
        let devices = self.used(count);
        let queue = &Arc::new(Queue::new(count, devices.len(), devices[0].model().most_at_once(request)?));
        cancel.check()?;
        self.prefetch(request, count)?;
        let (cancel, work) = (&cancel.child(), &Arc::new(work));
        let shares = devices.len() > 1 && request.embeddings.is_none();
        let text = &shares.then(|| Arc::new(SharedText::new(&self.prompts)));
        thread::scope(|scope| {
            let _stop = StopOnPanic(queue, cancel);
            let (sender, receiver) = mpsc::channel();
            for (index, replica) in devices.iter().enumerate() {
                let sender = sender.clone();
                let reader = match text {
                    None => Reader::Own,
                    Some(text) if index == 0 => Reader::First(Arc::clone(text)),
                    Some(text) => Reader::Other(Arc::clone(text)),
                };
                // The device that reads the prompt for all makes some of the images, however fast the others are.
                let mut first = if index == 0 { queue.take() } else { None };
                let serve = move || {
                    let (_text, _stop, _ending) = (Abandon(&reader), StopOnPanic(queue, cancel), Ending(&sender));
                    while let Some(batch) = first.take().or_else(|| queue.take()) {
                        let served = replica.serve(request, batch, &reader, (queue, cancel), &sender, work);
                        if let Err(error) = served {
                            queue.stop();
                            cancel.cancel();
                            // A group has named the device itself.
                            let alone = devices.len() > 1 && replica.ranks.models().len() == 1;
                            let error =
                                if alone && error.kind() != Kind::Cancelled { error.on(&replica.name) } else { error };
                            // Without a receiver this device was told to end.
                            let _ = sender.send(Message::Failed(error));
                        }
                        reader.abandon();
                    }
                };
                if let Err(error) = thread::Builder::new().name(replica.name.to_string()).spawn_scoped(scope, serve) {
                    queue.stop();
                    cancel.cancel();
                    return Err(Error::no_thread(&error));
                }
            }
            hand_on(Messages { receiver, at_work: devices.len() }, (queue, cancel), take)
        })
    }
}

impl<B: Backend> Replica<B> {
    /// The first device of a group, and the others, which take the model of `source` over.
    ///
    /// Errors as [`Parallel::named`] and [`Model::on`], and when two devices have one name.
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

    /// Makes a batch.
    fn serve<T: Send + 'static>(
        &self,
        request: &Request,
        batch: Range<usize>,
        reader: &Reader,
        (queue, cancel): (&Arc<Queue>, &CancelFlag),
        sender: &Sender<Message<T>>,
        work: &Arc<impl Fn(Share<B>, &Sink<T>) -> Result<()> + Send + Sync + 'static>,
    ) -> Result<()> {
        let (part, images, first) = (request.part(batch.clone()), batch.len(), batch.start);
        let kept = Arc::new(AtomicUsize::new(images));
        let on_rank = {
            let (device, queue, count) = (Arc::clone(&self.name), Arc::clone(queue), Arc::clone(&kept));
            let (sender, work) = (sender.clone(), Arc::clone(work));
            move |rank: usize, session: Session<B>, _: &mut dyn FnMut(Progress)| {
                let kept = || {
                    let (queue, count) = (Arc::clone(&queue), Arc::clone(&count));
                    Kept { queue, batch: batch.clone(), count, is_told: false }
                };
                let (device, kept) = (Arc::clone(&device), (rank == 0).then(kept));
                let sink = Sink { sender: (rank == 0).then(|| sender.clone()), first };
                work(Share { device, session, first, kept }, &sink)
            }
        };
        self.ranks.run_with(&part, images, reader, cancel, &mut |_| {}, on_rank)?;
        Sink { sender: Some(sender.clone()), first }.output(Output::End(kept.load(Ordering::Relaxed)));
        Ok(())
    }
}

fn there_twice(name: &str) -> Error {
    Error::usage(format!("the device {name} is there twice"))
}

/// Hands on what devices say, until all are over. What they gave before one of them failed is handed on as well, in the
/// order of the images.
///
/// Errors when a device failed, and as `take` does, which ends all devices and is not called again.
fn hand_on<T>(
    messages: Messages<T>,
    (queue, cancel): (&Queue, &CancelFlag),
    take: &mut dyn FnMut(Made<T>) -> Result<()>,
) -> Result<()> {
    let (mut order, mut failed, mut taken) = (Order::new(), None, Ok(()));
    let mut hand = |made: Made<T>| {
        if taken.is_ok() {
            taken = take(made).inspect_err(|_| {
                queue.stop();
                cancel.cancel();
            });
        }
    };
    for message in messages {
        match message {
            Message::Progress(first, progress) if failed.is_none() && order.hears(first) => {
                hand(Made::Progress(progress));
            }
            Message::Progress(..) | Message::Over => {}
            Message::Output(output) => {
                let (items, ended) = order.sort(output);
                items.into_iter().for_each(|item| hand(Made::Item(item)));
                (0..ended).for_each(|_| queue.handed_on());
            }
            Message::Failed(error) => {
                failed = Some(match failed {
                    Some(first) => reason(first, error),
                    None => error,
                });
            }
        }
    }
    order.rest().into_iter().for_each(|item| hand(Made::Item(item)));
    // Devices that were cancelled because of the caller's error do not say why.
    taken.and(failed.map_or(Ok(()), Err))
}

/// The error to return of what came first and of another: devices that were cancelled because one failed do not say
/// why.
fn reason(first: Error, other: Error) -> Error {
    if first.kind() == Kind::Cancelled { other } else { first }
}

impl<B: Backend> Share<B> {
    /// The name of the device, see [`Replica::name`].
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Which of all images that were asked for is the first of this batch.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Whether what this device gives is taken: of a group, that of the first device is.
    pub fn is_taken(&self) -> bool {
        self.kept.is_some()
    }

    /// Makes the images, of which nothing is taken.
    ///
    /// Errors as [`Session::run`].
    pub fn make(self) -> Result<()> {
        self.session.run(&mut |_| {}).map(drop)
    }

    /// See [`Session::embeddings`].
    ///
    /// Errors as that does.
    pub fn embeddings(&mut self) -> Result<Embeddings> {
        self.session.embeddings()
    }

    /// Does everything before the first step, as [`Session::prepare`]. Returns the session and how many images it
    /// makes: as many as memory allows, at least one. Those that are left may be made by any device.
    ///
    /// Errors as [`Session::prepare`].
    pub fn prepare(mut self, report: &mut dyn FnMut(Progress)) -> Result<(Session<B>, usize)> {
        let count = self.session.prepare(report)?;
        if let Some(kept) = &mut self.kept {
            kept.count.store(count, Ordering::Relaxed);
            kept.tell();
        }
        Ok((self.session, count))
    }
}

impl Kept {
    fn tell(&mut self) {
        if !self.is_told {
            self.queue.keep(&self.batch, self.count.load(Ordering::Relaxed));
            self.is_told = true;
        }
    }
}

impl Drop for Kept {
    /// Nothing comes back of a batch that ended without saying.
    fn drop(&mut self) {
        self.tell();
    }
}

impl<T> Iterator for Messages<T> {
    type Item = Message<T>;

    fn next(&mut self) -> Option<Message<T>> {
        if self.at_work == 0 {
            return None;
        }
        let message = self.receiver.recv().ok()?;
        self.at_work -= usize::from(matches!(message, Message::Over));
        Some(message)
    }
}

impl<T> Sink<T> {
    /// Says how far the batch is.
    pub fn progress(&self, progress: Progress) {
        self.send(Message::Progress(self.first, progress));
    }

    /// Hands on what was made.
    pub fn give(&self, item: T) {
        self.output(Output::Item(item));
    }

    fn output(&self, output: Output<T>) {
        self.send(Message::Output(BatchOutput { first: self.first, output }));
    }

    fn send(&self, message: Message<T>) {
        // Without a receiver the work was cancelled, which the session finds out.
        let _ = self.sender.as_ref().map(|sender| sender.send(message));
    }
}

impl<T> Drop for Ending<'_, T> {
    fn drop(&mut self) {
        // Without a receiver the caller panics.
        let _ = self.0.send(Message::Over);
    }
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
            self.1.cancel();
        }
    }
}
