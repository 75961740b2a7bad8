//! One image on several devices: the same session runs on each of them at once.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use scopeguard::defer_on_unwind;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::files::ModelFiles;
use crate::model::open::OpenModel;
use crate::pipeline::request::fields::Request;
use crate::pipeline::session::model::Model;
use crate::pipeline::session::shared_text::TextSource;
use crate::pipeline::session::{Image, Session};
use crate::stage::{CancelFlag, Progress};
use crate::token_split::own_heads;

/// Polling interval of the caller's cancel flag.
const POLL: Duration = Duration::from_millis(10);
/// Time for the other devices to end after an error. They finish the work that is already enqueued.
const GRACE: Duration = Duration::from_secs(10);

/// A model on each device of a group that generates one image together. Tokens and rows of pixels are split between
/// devices; each device has all weights.
///
/// It generates one image at a time, because devices synchronize in the order of their work. Do not call it from a
/// thread of rayon's pool: the devices wait for work on that pool.
pub struct Parallel<B: Backend> {
    /// In the order of ranks.
    devices: Vec<Device<B>>,
    grace: Duration,
    /// Threads of an earlier image that have not ended. The lock is held while an image is generated.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Device<B: Backend> {
    name: String,
    model: Arc<Model<B>>,
}

/// A message from the thread of a device.
enum Message<T> {
    Progress(Progress),
    Ended(usize, Result<T>),
    Panicked(usize, Box<dyn Any + Send>),
}

impl<B: Backend> Parallel<B> {
    /// Loads a model on all `backends`: [`OpenModel::open`], [`Model::new`] on the first device, [`Model::on`] on
    /// each other one, then [`Parallel::new`]. Nothing is copied to the devices yet.
    ///
    /// Errors as these functions do.
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

    /// Calls [`Parallel::named`] with ranks as names: "device 0", "device 1" and so on.
    ///
    /// Errors as [`Parallel::named`].
    pub fn new(models: Vec<Arc<Model<B>>>) -> Result<Self> {
        Self::named(models.into_iter().enumerate().map(|(rank, model)| (format!("device {rank}"), model)).collect())
    }

    /// Creates a `Parallel` from one model on all devices of a group in the order of ranks, each with its name; or on
    /// a single device.
    ///
    /// Errors if the devices are not all devices of one group, have models of different sizes, or cannot split the
    /// attention heads evenly. Equal weights are the caller's responsibility.
    pub fn named(models: Vec<(String, Arc<Model<B>>)>) -> Result<Self> {
        let world = models.len();
        let Some((_, first)) = models.first() else { return Err(Error::usage("at least 1 device is required")) };
        for (rank, (name, model)) in models.iter().enumerate() {
            let (backend, info) = (model.backend(), model.info());
            if (backend.rank(), backend.world()) != (rank, world) {
                let what = format!("{name} of {world} is rank {} of {}", backend.rank(), backend.world());
                return Err(Error::new(what).hint("pass all devices of one group in their order"));
            }
            if (&info.transformer, &info.vae) != (&first.info().transformer, &first.info().vae) {
                return Err(Error::new(format!("{name} has a different model than the first device")));
            }
        }
        own_heads(first.info().transformer.num_attention_heads, world)?;
        let devices = models.into_iter().map(|(name, model)| Device { name, model }).collect();
        Ok(Self { devices, grace: GRACE, threads: Mutex::default() })
    }

    /// Sets the time that other devices have to end after an error; the default is 10 s.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Returns the model of each device, in the order of ranks.
    pub fn models(&self) -> impl ExactSizeIterator<Item = &Arc<Model<B>>> {
        self.devices.iter().map(|device| &device.model)
    }

    /// Returns the name of each device, in the order of ranks.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }

    /// Calls `of` with the model of each device; returns the results with the device names, in the order of ranks.
    pub(crate) fn map_devices<T>(&self, of: impl Fn(&Arc<Model<B>>) -> T) -> impl Iterator<Item = (String, T)> {
        self.devices.iter().map(move |device| (device.name.clone(), of(&device.model)))
    }

    /// Returns the model of the first device.
    pub fn first(&self) -> &Arc<Model<B>> {
        &self.devices[0].model
    }

    /// Generates the images of one [`Model::session`]. `report` receives the progress of the first device.
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

    /// Runs `work(rank, session, report)` on all devices at once, with a [`Model::session`] of the same request on
    /// each, and returns the result of the first device. With several devices, each runs on its own thread. `work`
    /// must do the same to its session on all devices. `report` receives the progress of the first device. `cancel`
    /// also ends devices that wait for each other within a step.
    ///
    /// Errors as sessions do: an error on any device ends the work of all devices. The first error is returned, with
    /// the name of its device if there are several. A panic on a device also ends all devices, and resumes in the
    /// caller. A device that does not end in time is left behind; no other image is generated until it ends.
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

    /// Runs `work` as [`Parallel::run`] does, for the first batch of `requests`, see [`Model::session_of`]. Another
    /// group may encode the prompts.
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
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        if let Some(late) = threads.first() {
            let name = late.thread().name().unwrap_or("a device").to_string();
            return Err(Error::new(format!("{name} is still busy with an image that failed"))
                .hint("try again later, or reload the model"));
        }
        self.models().try_for_each(|model| model.backend().restore_collectives())?;
        cancel.check()?;
        // In the order of ranks, because the others copy weights that the first device loads. Errors in the request
        // are reported by its session.
        for model in self.models() {
            requests.first().map(|request| model.prefetch_as(request, reader.is_other()));
        }
        if let [Device { model, .. }] = &self.devices[..] {
            // A single device needs no thread: no other device waits for it.
            return work(0, Session::new(model, &requests, reader, cancel)?, report);
        }
        let (requests, work, (sender, receiver)) = (Arc::new(requests), Arc::new(work), mpsc::channel());
        // Also set when a device fails, so that the others stop loading.
        let cancel = &cancel.child();
        // The caller's `report` may panic.
        defer_on_unwind! {
            cancel.cancel();
            self.abort(&Error::new("a panic"));
        }
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
        // Devices that have sent their last message end now; the others are left behind.
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

    /// Forwards progress until all devices have ended, or until the grace period after the first error is over.
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
        let missing = || Error::new("a device stopped without a result");
        Outcome { result: error.map_or_else(|| first.ok_or_else(missing), Err), ended, panic }
    }

    /// Returns `true` if a device is still busy with an image that has ended with an error.
    pub(crate) fn is_late(&self) -> bool {
        let threads = self.threads.try_lock();
        threads.is_some_and(|threads| threads.iter().any(|thread| !thread.is_finished()))
    }

    fn abort(&self, cause: &Error) {
        self.first().backend().abort_collectives(cause);
    }
}

/// The result of an image, and the devices that have ended.
struct Outcome<T> {
    result: Result<T>,
    ended: Vec<bool>,
    panic: Option<Box<dyn Any + Send>>,
}

/// Runs `work` on one device; its error or panic ends the other devices.
fn one<B: Backend, T>(
    model: &Model<B>,
    sender: &Sender<Message<T>>,
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<T>,
) {
    let rank = model.backend().rank();
    // Sending fails only if the caller is gone.
    let send = |message: Message<T>| drop(sender.send(message));
    let mut report = |progress: Progress| {
        if rank == 0 {
            send(Message::Progress(progress));
        }
    };
    // A session that panicked is not used again, and a model guards the state that its sessions share.
    let done = panic::catch_unwind(AssertUnwindSafe(|| work(&mut report)));
    let (cause, end) = match done {
        Ok(result) => (result.as_ref().err().cloned(), Message::Ended(rank, result)),
        Err(payload) => (Some(Error::new("a panic")), Message::Panicked(rank, payload)),
    };
    // Sent first, so that this error arrives before the errors that it causes on other devices.
    send(end);
    if let Some(cause) = cause {
        model.backend().abort_collectives(&cause);
    }
}
