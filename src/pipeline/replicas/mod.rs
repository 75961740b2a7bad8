//! Several devices with the same model, which share the images of a request.

mod order;
mod queue;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use self::order::{Letter, Order, Says};
use self::queue::Queue;
use super::{CancelFlag, Embeddings, Image, Model, OpenModel, Progress, Request, Session};
use crate::backend::Backend;
use crate::error::{Error, Kind, Result};

/// A model on each of several devices. They share the images of a request; each makes whole images.
///
/// Each device plans its own memory, and loads the weights from the same pages of the files. Batches are divided by the
/// number of images and of devices: as few on each device as their largest size allows, of nearly one size, so that
/// two devices make 2 images one by one and 8 as 4 and 4. Devices of one kind give the same bytes as one of them that
/// makes the same batches; an image that is alone in its batch is the one that [`Model::generate`] makes. Where a
/// device has no room for all of a batch, any device makes the rest.
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
    replicas: Vec<Replica<B>>,
}

/// One of several devices with the same model.
pub struct Replica<B: Backend> {
    name: String,
    model: Arc<Model<B>>,
}

/// What [`Replicas::run`] hands on.
pub enum Made<T> {
    /// How far the batch is whose images come next.
    Progress(Progress),
    /// What the work on a batch gave.
    Item(T),
}

/// Images that one device makes together, as far as it has memory for all.
pub struct Share<'a, B: Backend> {
    session: Session<B>,
    kept: Kept<'a>,
}

/// How many images of a batch a device makes; all of them unless it says otherwise.
struct Kept<'a> {
    queue: &'a Queue,
    batch: Range<usize>,
    count: &'a Cell<usize>,
    is_told: bool,
}

/// Where the work on a batch says how far it is, and what it made.
pub struct Outlet<T> {
    sender: Sender<Message<T>>,
    first: usize,
}

/// What a device sends.
enum Message<T> {
    Progress(usize, Progress),
    Letter(Letter<T>),
    Failed(Error),
}

/// Stops the other devices when a device panics.
struct StopOnPanic<'a>(&'a Queue, &'a CancelFlag);

impl<B: Backend> Replica<B> {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its model.
    pub fn model(&self) -> &Arc<Model<B>> {
        &self.model
    }
}

impl<B: Backend> Replicas<B> {
    /// A model on devices, each with its name. Nothing is copied to them yet.
    ///
    /// Errors when there are none or two have one name, and when the files were changed since the model was opened or
    /// cannot be mapped for each device.
    pub fn new(devices: Vec<(String, B)>, model: OpenModel) -> Result<Self> {
        let (names, backends): (Vec<String>, Vec<B>) = devices.into_iter().unzip();
        if names.is_empty() {
            return Err(Error::usage("there is no device, expected at least one"));
        }
        if let Some((_, name)) = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
            return Err(Error::usage(format!("the device {name} is there twice")));
        }
        let models = Model::on_each(backends, model)?;
        let replicas = names.into_iter().zip(models).map(|(name, model)| Replica { name, model }).collect();
        Ok(Self { replicas })
    }

    /// The devices that make `count` images: no more than there are images.
    pub fn used(&self, count: usize) -> &[Replica<B>] {
        &self.replicas[..count.clamp(1, self.replicas.len())]
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
        let work = |_: &Replica<B>, share: Share<'_, B>, outlet: &Outlet<Image>| {
            let report = &mut |progress| outlet.progress(progress);
            let (session, _) = share.prepare(report)?;
            session.run(report)?.into_iter().for_each(|image| outlet.give(image));
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
    /// to the outlet. `take` gets that on this thread in the order of the seeds, whichever device is faster.
    ///
    /// An error of a device or of `take` cancels the other devices, and is returned with the name of the device where
    /// there are several.
    ///
    /// Errors as [`Model::session`] does and as `work` and `take` do, and once `cancel` is set.
    pub fn run<T: Send>(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        work: impl Fn(&Replica<B>, Share<'_, B>, &Outlet<T>) -> Result<()> + Sync,
        take: &mut dyn FnMut(Made<T>) -> Result<()>,
    ) -> Result<()> {
        request.check_count(count)?;
        let devices = self.used(count);
        let queue = &Queue::new(count, devices.len(), devices[0].model.most_at_once(request)?);
        let cancel = &cancel.child();
        thread::scope(|scope| {
            let (sender, messages) = mpsc::channel();
            for replica in devices {
                let (sender, work) = (sender.clone(), &work);
                let serve = move || {
                    let _stop = StopOnPanic(queue, cancel);
                    while let Some(batch) = queue.take() {
                        if let Err(error) = replica.serve(request, batch, (queue, cancel), &sender, work) {
                            queue.stop();
                            cancel.cancel();
                            let several = devices.len() > 1 && error.kind() != Kind::Cancelled;
                            let error = if several { error.on(&replica.name) } else { error };
                            // Without a receiver this device was told to end.
                            let _ = sender.send(Message::Failed(error));
                        }
                    }
                };
                if let Err(error) = thread::Builder::new().name(replica.name.clone()).spawn_scoped(scope, serve) {
                    queue.stop();
                    cancel.cancel();
                    return Err(Error::no_thread(&error));
                }
            }
            drop(sender);
            let handed_on = hand_on(&messages, queue, take);
            if handed_on.is_err() {
                queue.stop();
                cancel.cancel();
            }
            // What still comes may be the reason of what has ended.
            messages.iter().fold(handed_on, |done, message| match message {
                Message::Failed(error) => Err(reason(done, error)),
                Message::Progress(..) | Message::Letter(_) => done,
            })
        })
    }
}

impl<B: Backend> Replica<B> {
    /// Makes a batch.
    fn serve<T>(
        &self,
        request: &Request,
        batch: Range<usize>,
        (queue, cancel): (&Queue, &CancelFlag),
        sender: &Sender<Message<T>>,
        work: impl Fn(&Self, Share<'_, B>, &Outlet<T>) -> Result<()>,
    ) -> Result<()> {
        let count = &Cell::new(batch.len());
        let outlet = Outlet { sender: sender.clone(), first: batch.start };
        let (part, images) = (request.part(batch.clone()), batch.len());
        let kept = Kept { queue, batch, count, is_told: false };
        let session = self.model.session(&part, images, cancel)?;
        work(self, Share { session, kept }, &outlet)?;
        outlet.say(Says::End(count.get()));
        Ok(())
    }
}

/// Hands on what devices say, until all have said all.
///
/// Errors when a device failed, and as `take` does.
fn hand_on<T>(
    messages: &Receiver<Message<T>>,
    queue: &Queue,
    take: &mut dyn FnMut(Made<T>) -> Result<()>,
) -> Result<()> {
    let mut order = Order::new();
    for message in messages {
        match message {
            Message::Progress(first, progress) if order.hears(first) => take(Made::Progress(progress))?,
            Message::Progress(..) => {}
            Message::Letter(letter) => {
                let (items, ended) = order.sort(letter);
                items.into_iter().try_for_each(|item| take(Made::Item(item)))?;
                (0..ended).for_each(|_| queue.handed_on());
            }
            Message::Failed(error) => return Err(error),
        }
    }
    Ok(())
}

/// The error to return of what came first and of another: devices that were cancelled because one failed do not say
/// why.
fn reason(done: Result<()>, other: Error) -> Error {
    match done {
        Err(first) if first.kind() != Kind::Cancelled => first,
        _ => other,
    }
}

impl<B: Backend> Share<'_, B> {
    /// Which of all images that were asked for is the first of this batch.
    pub fn first(&self) -> usize {
        self.kept.batch.start
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
        self.kept.count.set(count);
        self.kept.tell();
        Ok((self.session, count))
    }
}

impl Kept<'_> {
    fn tell(&mut self) {
        if !self.is_told {
            self.queue.keep(&self.batch, self.count.get());
            self.is_told = true;
        }
    }
}

impl Drop for Kept<'_> {
    /// Nothing comes back of a batch that ended without saying.
    fn drop(&mut self) {
        self.tell();
    }
}

impl<T> Outlet<T> {
    /// Says how far the batch is.
    pub fn progress(&self, progress: Progress) {
        self.send(Message::Progress(self.first, progress));
    }

    /// Hands on what was made.
    pub fn give(&self, item: T) {
        self.say(Says::Item(item));
    }

    fn say(&self, says: Says<T>) {
        self.send(Message::Letter(Letter { first: self.first, says }));
    }

    fn send(&self, message: Message<T>) {
        // Without a receiver the work was cancelled, which the session finds out.
        let _ = self.sender.send(message);
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
