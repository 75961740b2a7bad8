//! One image by several devices: the same session on each of them at once.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::files::ModelFiles;
use crate::model::open::OpenModel;
use crate::pipeline::request::plan::Request;
use crate::pipeline::session::model::Model;
use crate::pipeline::session::shared_text::TextSource;
use crate::pipeline::session::{Image, Session};
use crate::stage::{CancelFlag, Progress};
use crate::token_split::own_heads;

/// How often the caller's flag is looked at.
const POLL: Duration = Duration::from_millis(10);
/// How long the other devices have to end after an error, which takes them the rest of what they compute.
const GRACE: Duration = Duration::from_secs(10);

/// A model on each of several devices that make one image together: tokens and rows of pixels are shared, weights are
/// whole on each.
///
/// It makes one image at a time, because devices meet in the order of what they compute. Not to be called from a thread
/// of rayon's pool, whose work the devices wait for.
pub struct Parallel<B: Backend> {
    /// In the order of ranks.
    devices: Vec<Device<B>>,
    grace: Duration,
    /// Held while an image is made. Threads of an earlier one that have not ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Device<B: Backend> {
    name: String,
    model: Arc<Model<B>>,
}

/// What the threads of an image say.
enum Message<T> {
    Progress(Progress),
    Ended(usize, Result<T>),
    Panicked(usize, Box<dyn Any + Send>),
}

impl<B: Backend> Parallel<B> {
    /// [`OpenModel::open`], [`Model::new`] on the first device and [`Model::on`] on each other, and [`Parallel::new`].
    ///
    /// Errors as these do. Nothing is copied to the devices yet.
    pub fn load(backends: Vec<B>, dir: &ModelFiles) -> Result<Self> {
        let mut backends = backends.into_iter();
        let Some(first) = backends.next() else { return Self::new(Vec::new()) };
        let first = Model::new(first, OpenModel::open(dir)?);
        let mut models = vec![Arc::clone(&first)];
        for backend in backends {
            models.push(first.on(backend)?);
        }
        Self::new(models)
    }

    /// [`Parallel::named`], of devices that have no names but their ranks.
    ///
    /// Errors as that.
    pub fn new(models: Vec<Arc<Model<B>>>) -> Result<Self> {
        Self::named(models.into_iter().enumerate().map(|(rank, model)| (format!("device {rank}"), model)).collect())
    }

    /// One model on all devices of a group, in the order of ranks, each with its name; or on one device.
    ///
    /// Errors when these are not all devices of a group, have models of different sizes, or cannot share the heads of
    /// attention evenly. That the weights are the same is the caller's concern.
    pub fn named(models: Vec<(String, Arc<Model<B>>)>) -> Result<Self> {
        let world = models.len();
        let Some((_, first)) = models.first() else { return Err(Error::usage("no devices make no image")) };
        for (rank, (name, model)) in models.iter().enumerate() {
            let (backend, info) = (model.backend(), model.info());
            if (backend.rank(), backend.world()) != (rank, world) {
                let what = format!("{name}, of {world}, is rank {} of {}", backend.rank(), backend.world());
                return Err(Error::new(what).hint("give all devices of one group in their order"));
            }
            if (&info.transformer, &info.vae) != (&first.info().transformer, &first.info().vae) {
                return Err(Error::new(format!("{name} has another model than the first device")));
            }
        }
        own_heads(first.info().transformer.num_attention_heads, world)?;
        let devices = models.into_iter().map(|(name, model)| Device { name, model }).collect();
        Ok(Self { devices, grace: GRACE, threads: Mutex::default() })
    }

    /// After an error, the other devices have `grace` to end, instead of 10 s.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// The model of each device, in the order of ranks.
    pub fn models(&self) -> impl ExactSizeIterator<Item = &Arc<Model<B>>> {
        self.devices.iter().map(|device| &device.model)
    }

    /// The name of each device, in the order of ranks.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }

    /// What `of` says of the model on each device, with the device's name, in the order of ranks.
    pub(crate) fn of_each<T>(&self, of: impl Fn(&Arc<Model<B>>) -> T) -> impl Iterator<Item = (String, T)> {
        self.devices.iter().map(move |device| (device.name.clone(), of(&device.model)))
    }

    /// The model of the first device.
    pub fn first(&self) -> &Arc<Model<B>> {
        &self.devices[0].model
    }

    /// Makes the images of one [`Model::session`]. `report` gets the progress of the first device.
    ///
    /// Errors as [`Parallel::run`].
    pub fn generate_batch(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Image>> {
        self.run(request, count, cancel, report, |_, session, report| session.run(report))
    }

    /// Runs `work(rank, session, report)` on all devices at once, each of several on a thread of its own, with a
    /// [`Model::session`] of the same request, and returns what it returns on the first device. `work` does the same on
    /// all devices, as far as its session is concerned. `report` gets the progress of the first one. `cancel` also ends
    /// devices within a step, where they wait for each other.
    ///
    /// Errors as sessions do: an error on any device ends the work of all, and the first one is returned, with the name
    /// of its device where there are several. A panic of a device does the same, and is the caller's then. A device
    /// that does not end then is left behind; until it does, no other image is made.
    pub fn run<T: Send + 'static>(
        &self,
        request: &Request,
        count: usize,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
        work: impl Fn(usize, Session<B>, &mut dyn FnMut(Progress)) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.run_items(request.items(count)?, &TextSource::Own, cancel, report, work)
    }

    /// The same for the first of `requests`, see [`Model::session_of`], where another group may read the prompts.
    ///
    /// Errors as [`Parallel::run`].
    pub(crate) fn run_items<T: Send + 'static>(
        &self,
        requests: Vec<Request>,
        reader: &TextSource,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
        work: impl Fn(usize, Session<B>, &mut dyn FnMut(Progress)) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        if let Some(late) = threads.first() {
            let name = late.thread().name().unwrap_or("a device").to_string();
            return Err(Error::new(format!("{name} is still busy with an image that has ended with an error"))
                .hint("try again once it has ended, or load the model anew"));
        }
        self.models().try_for_each(|model| model.backend().restore_collectives())?;
        cancel.check()?;
        // In the order of ranks, because others copy what the first one loads. What is wrong with the request, its
        // session says.
        for model in self.models() {
            requests.first().map(|request| model.prefetch_as(request, reader.is_other()));
        }
        if let [Device { model, .. }] = &self.devices[..] {
            // It waits for no other, so nobody waits for it.
            return work(0, Session::new(model, &requests, reader, cancel)?, report);
        }
        let (requests, work, (sender, receiver)) = (Arc::new(requests), Arc::new(work), mpsc::channel());
        // Set as well when a device fails, so that others stop loading.
        let cancel = &cancel.child();
        let _stop = StopOnPanic(self.first().backend(), cancel);
        for (rank, Device { name, model }) in self.devices.iter().enumerate() {
            let (model, requests, work) = (Arc::clone(model), Arc::clone(&requests), Arc::clone(&work));
            let (flag, sender, reader) = (cancel.clone(), sender.clone(), reader.clone());
            let on_device = move || {
                let session = || Session::new(&model, &requests, &reader, &flag);
                one(&model, &sender, |report| work(rank, session()?, report));
            };
            let thread = thread::Builder::new().name(name.clone()).spawn(on_device);
            let failed = |error| {
                let error = Error::no_thread(&error);
                cancel.cancel();
                self.abort(&error);
                error
            };
            threads.push(thread.map_err(failed)?);
        }
        drop(sender);
        let Outcome { result, ended, mut panic } = self.wait(&receiver, cancel, report);
        // Those that have sent their last message end now; the others are left behind.
        for (thread, ended) in threads.drain(..).collect::<Vec<_>>().into_iter().zip(ended) {
            if !ended {
                threads.push(thread);
            } else if let Err(payload) = thread.join() {
                panic.get_or_insert(payload);
            }
        }
        match panic {
            Some(payload) => panic::resume_unwind(payload),
            None => result,
        }
    }

    /// Passes on progress until all devices have ended, or one has ended with an error and the others had time to end.
    fn wait<T>(
        &self,
        receiver: &Receiver<Message<T>>,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Outcome<T> {
        let mut ended = vec![false; self.devices.len()];
        let (mut first, mut error, mut panic, mut deadline) = (None, None, None, None);
        let mut cancelled = false;
        let named = |rank: usize, error: Error| {
            let several = self.devices.len() > 1 && error.kind() != ErrorKind::Cancelled;
            if several { error.on(&self.devices[rank].name) } else { error }
        };
        while ended.contains(&false) && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            match receiver.recv_timeout(POLL) {
                Ok(Message::Progress(progress)) => report(progress),
                Ok(Message::Ended(rank, result)) => {
                    ended[rank] = true;
                    match result {
                        Ok(made) if rank == 0 => first = Some(made),
                        Ok(_) => {}
                        Err(e) => {
                            error.get_or_insert_with(|| named(rank, e));
                            cancel.cancel();
                            deadline.get_or_insert_with(|| Instant::now() + self.grace);
                        }
                    }
                }
                Ok(Message::Panicked(rank, payload)) => {
                    ended[rank] = true;
                    panic.get_or_insert(payload);
                    cancel.cancel();
                    deadline.get_or_insert_with(|| Instant::now() + self.grace);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !cancelled
                && deadline.is_none()
                && let Err(e) = cancel.check()
            {
                self.abort(&e);
                cancelled = true;
            }
        }
        let missing = || Error::new("a device ended without a result");
        Outcome { result: error.map_or_else(|| first.ok_or_else(missing), Err), ended, panic }
    }

    /// Whether a device is still busy with an image that has ended with an error.
    pub(crate) fn is_late(&self) -> bool {
        let threads = self.threads.try_lock();
        threads.is_ok_and(|threads| threads.iter().any(|thread| !thread.is_finished()))
    }

    fn abort(&self, cause: &Error) {
        self.first().backend().abort_collectives(cause);
    }
}

/// What came of an image, and which devices have ended.
struct Outcome<T> {
    result: Result<T>,
    ended: Vec<bool>,
    panic: Option<Box<dyn Any + Send>>,
}

/// Ends all devices when the caller panics, who is told of progress.
struct StopOnPanic<'a, B: Backend>(&'a B, &'a CancelFlag);

impl<B: Backend> Drop for StopOnPanic<'_, B> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.1.cancel();
            self.0.abort_collectives(&Error::new("a panic"));
        }
    }
}

/// What one device does: `work`, whose error or panic ends the others.
fn one<B: Backend, T>(
    model: &Model<B>,
    sender: &Sender<Message<T>>,
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<T>,
) {
    let rank = model.backend().rank();
    // Where nobody listens, the caller is gone.
    let send = |message: Message<T>| drop(sender.send(message));
    let mut report = |progress: Progress| {
        if rank == 0 {
            send(Message::Progress(progress));
        }
    };
    // A session that panicked is not used again, and a model guards what its sessions share.
    let done = panic::catch_unwind(AssertUnwindSafe(|| work(&mut report)));
    let (cause, end) = match done {
        Ok(result) => (result.as_ref().err().cloned(), Message::Ended(rank, result)),
        Err(payload) => (Some(Error::new("a panic")), Message::Panicked(rank, payload)),
    };
    // It comes before what the others say because of it.
    send(end);
    if let Some(cause) = cause {
        model.backend().abort_collectives(&cause);
    }
}
