//! Scheduling of batches on devices: waiting jobs, batches in progress, and the devices of one or several engines.
//!
//! [`fair`](super::fair) decides which jobs a device generates next. A job of several images is divided evenly, so that
//! all devices end together; see [`batches`]. The division depends only on the numbers of its images and of devices,
//! never on the speed of a device, so the same images form batches each time. Waiting jobs are combined as far as one
//! batch of the first job's shape has room. So jobs that wait behind a busy device form batches, and an idle device
//! waits for nothing.

mod batch;
mod predictions;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use scopeguard::defer;

use self::batch::{Active, Batches, batches};
pub(super) use self::batch::{Batch, JobShare};
use self::predictions::Predicted;
use super::EngineStats;
use super::estimate::{Cost, Pace, Rates};
use super::event::{Event, Message, Sink};
use super::fair::{Fits, Next, Queue, Waiting};
use super::image::Origin;
use super::job::{Job, JobId};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::{SharedText, TextSource};
use crate::stage::{CancelFlag, Progress};

/// Maximum batches of a job per device that are ahead of the caller, which bounds the memory of waiting images.
const AHEAD: usize = 2;
/// The interval between checks for cancelled jobs and jobs past their deadline while the devices become idle.
const LOOK: Duration = Duration::from_millis(500);

/// The jobs of one or several engines, and the batches in progress on their devices. An engine has its own scheduler,
/// or shares that of other engines; see [`Engine::join`](super::Engine::join).
#[derive(Default)]
pub struct Scheduler {
    state: Mutex<State>,
    changed: Condvar,
    /// The latest prediction. One caller computes it while others wait for it.
    predicted: Mutex<Option<Predicted>>,
}

#[derive(Default)]
struct State {
    queue: Queue<Option<Shape>>,
    /// Jobs that are not over.
    jobs: BTreeMap<JobId, Active>,
    /// Batches in progress on devices.
    running: Vec<Running>,
    devices: Vec<Device>,
    rates: Rates,
    submitted: u64,
    /// Number of batches that were taken.
    taken: u64,
    closed: bool,
    /// `true` while devices start nothing.
    paused: bool,
    /// Incremented by each change that affects predictions.
    version: u64,
}

/// A device, or a group of devices.
struct Device {
    /// Number of its model.
    model: usize,
    /// `true` if it waits for a batch.
    is_idle: bool,
    /// `true` if it does not respond.
    is_late: bool,
    /// `true` if its engine takes no more work for it.
    is_gone: bool,
    /// Number of finished images.
    made: usize,
}

/// A job to submit, as the origin of its images. `text` are the text features shared by the devices that generate its
/// images.
pub(super) struct Submission {
    pub(super) origin: Arc<Origin>,
    /// `None` if the job enlarges an image.
    pub(super) shape: Option<Shape>,
    pub(super) text: Arc<SharedText>,
    pub(super) sink: Sink,
    /// `true` if the job waits for the next engine of its model when its engine is closed.
    pub(super) outlives_engine: bool,
}

/// A batch in progress on a device.
struct Running {
    number: u64,
    model: usize,
    images: usize,
    jobs: Vec<JobId>,
    cancel: CancelFlag,
    pace: Pace,
}

/// The number under which the times of upscalers are known, which is no model's.
const UPSCALERS: usize = usize::MAX;

/// Returns the cost of an image of a job, from the shape of its images, or from the image that it enlarges.
pub(super) fn cost(model: usize, job: &Job, shape: Option<&Shape>) -> Cost {
    let enlarging = || job.enlarging.as_ref().map_or(1, |enlarging| enlarging.tokens());
    match shape.map(Shape::tokens_and_evaluations) {
        Some((tokens, evaluations)) => Cost { model, tokens, evaluations },
        None => Cost { model: UPSCALERS, tokens: enlarging(), evaluations: 1 },
    }
}

impl Scheduler {
    /// Adds a device of a model. Returns its number.
    pub(super) fn add(&self, model: usize) -> usize {
        let device = Device { model, is_idle: false, is_late: false, is_gone: false, made: 0 };
        self.change(|state| {
            state.devices.push(device);
            state.devices.len() - 1
        })
    }

    /// Removes devices of a model: their threads end. If the model has no other devices, cancels its jobs, except jobs
    /// that wait for its next engine.
    pub(super) fn leave(&self, model: usize, devices: &[usize]) {
        self.change(|state| {
            devices.iter().for_each(|device| state.devices[*device].is_gone = true);
            if state.devices.iter().any(|device| device.model == model && !device.is_gone) {
                return;
            }
            let is_left = |(_, job): &(&JobId, &Active)| job.model == model && !job.outlives_engine;
            let left: Vec<JobId> = state.jobs.iter().filter(is_left).map(|(id, _)| *id).collect();
            left.into_iter().for_each(|id| state.cancel(id));
        });
    }

    /// Changes the state, and wakes devices.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        state.version += 1;
        drop(state);
        self.changed.notify_all();
        changed
    }

    /// Adds jobs of a model at once. Returns their identities.
    ///
    /// Errors if the scheduler is closed.
    pub(super) fn submit(&self, model: usize, jobs: Vec<Submission>) -> Result<Vec<JobId>> {
        self.change(|state| {
            if state.closed {
                return Err(
                    Error::new("the engine does not accept any more jobs").hint("send the job to another engine")
                );
            }
            Ok(jobs.into_iter().map(|job| state.submit(model, job)).collect())
        })
    }

    /// Takes the next batch for a device; waits for one. Returns `None` if there are none left: the scheduler is
    /// closed, or the engine of the device is.
    pub(super) fn take(&self, device: usize) -> Option<Batch> {
        let mut state = self.state.lock();
        state.devices[device].is_idle = true;
        let taken = loop {
            if state.devices[device].is_gone {
                break None;
            }
            let mut wait = None;
            match state.decide(device, Instant::now()) {
                Next::Batch { jobs, passed } => break state.begin(device, &jobs, &passed),
                Next::Wait(time) => wait = Some(time),
                Next::Nothing => {}
            }
            if state.closed && state.jobs.is_empty() {
                break None;
            }
            match wait {
                Some(time) => drop(self.changed.wait_for(&mut state, time)),
                None => self.changed.wait(&mut state),
            }
        };
        state.devices[device].is_idle = false;
        state.version += 1;
        drop(state);
        self.changed.notify_all();
        taken
    }

    /// Marks a device as late or not. Work reserved for a late device is not waited for.
    pub(super) fn set_late(&self, device: usize, is_late: bool) {
        if self.state.lock().devices[device].is_late != is_late {
            self.change(|state| state.devices[device].is_late = is_late);
        }
    }

    /// Returns `true` if no device of the same model responds.
    pub(super) fn all_are_late(&self, device: usize) -> bool {
        let state = self.state.lock();
        state.siblings(device).all(|device| state.devices[device].is_late)
    }

    /// Returns `true` if there are several devices of the same model, so that errors include the name of the device.
    pub(super) fn has_several(&self, device: usize) -> bool {
        self.state.lock().siblings(device).count() > 1
    }

    /// Returns `true` if the device starts nothing more.
    pub(super) fn is_closed(&self, device: usize) -> bool {
        let state = self.state.lock();
        state.closed || state.devices[device].is_gone
    }

    /// Limits a batch to its first `count` images, and records that its steps begin. The other images return to their
    /// jobs, as the next to generate.
    pub(super) fn keep(&self, batch: &mut Batch, count: usize) {
        self.change(|state| {
            let mut left = count;
            for part in &mut batch.parts {
                let kept = part.images.len().min(left);
                left -= kept;
                let back = part.images.start + kept..part.images.end;
                part.images.end = back.start;
                state.put_back(part.id, back);
            }
            batch.requests.truncate(count);
            if let Some(running) = state.running.iter_mut().find(|running| running.number == batch.number) {
                running.images = count;
                running.pace.start(count, Instant::now());
            }
        });
    }

    /// Records the progress of a batch.
    pub(super) fn progress(&self, batch: &Batch, progress: Progress) {
        let mut state = self.state.lock();
        state.version += 1;
        if let Some(running) = state.running.iter_mut().find(|running| running.number == batch.number) {
            running.pace.progress(progress, Instant::now());
        }
    }

    /// Counts a finished image of a batch.
    pub(super) fn made(&self, batch: &Batch) {
        self.state.lock().devices[batch.device].made += 1;
    }

    /// Ends a batch on a device that has generated the first `made` of its images.
    pub(super) fn end(&self, batch: &Batch, made: usize, result: Result<()>) {
        batch.reader.abandon();
        self.change(|state| {
            if let Some(place) = state.running.iter().position(|running| running.number == batch.number) {
                let running = state.running.remove(place);
                if result.is_ok() {
                    running.pace.learn(&mut state.rates, Instant::now());
                }
            }
            let joined = batch.parts.len() > 1;
            let mut left = made;
            for part in &batch.parts {
                let made = part.images.len().min(left);
                left -= made;
                let Some(job) = state.jobs.get_mut(&part.id) else { continue };
                job.running -= 1;
                match &result {
                    Ok(()) => {}
                    Err(error) if joined && error.kind() != ErrorKind::Cancelled && job.failed.is_none() => {
                        // The error may belong to another job, so each job is retried alone once.
                        let back = part.images.start + made..part.images.end;
                        if made == 0 {
                            job.open -= 1;
                        } else {
                            let images = part.images.start..back.start;
                            part.send(Event::Finished { images, device: Arc::from(""), timings: Box::default() });
                        }
                        state.queue.get_mut(part.id).into_iter().for_each(|job| job.combines = false);
                        state.put_back(part.id, back);
                    }
                    Err(error) => state.fail(part.id, error.clone()),
                }
                state.end_if_over(part.id);
            }
        });
    }

    /// Records that the caller of a job has received all of a batch.
    pub(super) fn batch_received(&self, id: JobId) {
        self.change(|state| {
            if let Some(job) = state.jobs.get_mut(&id) {
                job.open = job.open.saturating_sub(1);
            }
        });
    }

    /// Cancels a job, see [`Ticket::cancel`](super::Ticket::cancel).
    pub fn cancel(&self, id: JobId) {
        self.change(|state| state.cancel(id));
    }

    /// Ends jobs whose cancel flag is set, and jobs that were not started before their deadline. Devices that take a
    /// batch do this, too; call it regularly if they may be busy for long.
    pub fn sweep(&self) {
        self.change(|state| state.sweep(Instant::now()));
    }

    /// Waits until all devices are idle, and runs `work` before they start anything else.
    pub fn while_idle<T>(&self, work: impl FnOnce() -> T) -> T {
        // Devices may start again, also after a panic.
        defer!(self.change(|state| state.paused = false));
        let mut state = self.state.lock();
        state.paused = true;
        while !state.running.is_empty() {
            self.changed.wait_for(&mut state, LOOK);
            state.sweep(Instant::now());
        }
        drop(state);
        work()
    }

    /// Takes no more jobs, and waits until existing jobs are over. At `deadline`, it cancels the remaining jobs and
    /// returns `false`.
    pub(super) fn close(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        while !state.jobs.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                let ids: Vec<JobId> = state.jobs.keys().copied().collect();
                ids.into_iter().for_each(|id| state.cancel(id));
                self.changed.notify_all();
                return false;
            };
            self.changed.wait_for(&mut state, left);
        }
        true
    }

    /// Takes no more jobs.
    pub(super) fn retire(&self) {
        self.change(|state| state.closed = true);
    }

    pub(super) fn stats(&self, model: usize) -> EngineStats {
        let state = self.state.lock();
        let devices = || state.devices.iter().filter(|device| device.model == model && !device.is_gone);
        EngineStats {
            devices: devices().count(),
            waiting: state.queue.iter().filter(|job| job.model == model).map(|job| job.images).sum(),
            running: state.running.iter().filter(|running| running.model == model).map(|running| running.images).sum(),
            made: devices().map(|device| device.made).sum(),
        }
    }
}

impl State {
    /// Returns the devices of the same model.
    fn siblings(&self, device: usize) -> impl Iterator<Item = usize> {
        let model = self.devices[device].model;
        let is_one = move |(_, device): &(usize, &Device)| device.model == model && !device.is_gone;
        self.devices.iter().enumerate().filter(is_one).map(|(device, _)| device)
    }

    fn submit(&mut self, model: usize, submission: Submission) -> JobId {
        let Submission { origin, shape, text, sink, outlives_engine } = submission;
        let job = &origin.job;
        let devices = self.devices.iter().filter(|device| device.model == model && !device.is_gone).count();
        self.submitted += 1;
        let id = JobId(self.submitted);
        let divided = devices > 1 && job.count > 1;
        let text = (divided && job.request.embeddings.is_none() && job.words.is_empty()).then_some(text);
        let (cost, max) = (cost(model, job, shape.as_ref()), shape.as_ref().map_or(1, Shape::max_at_once));
        let ahead = self.queue.iter().filter(|other| other.priority >= job.priority).map(|other| other.images).sum();
        sink(Message::Event { first: 0, event: Event::Queued(ahead) });
        self.queue.push(Waiting {
            id,
            owner: job.owner.clone(),
            priority: job.priority,
            deadline: job.deadline,
            cost: cost.work(),
            count: job.count,
            images: job.count,
            combines: text.is_none() && job.max_together > 1,
            model,
            shape,
            max_together: job.max_together.min(max),
            max_latency: job.max_latency,
            window: job.window,
            since: Instant::now(),
            passed: 0,
        });
        let active = Active {
            cancel: job.cancel.child(),
            sink,
            outlives_engine,
            model,
            cost,
            max,
            first: Vec::new(),
            rest: batches(job.count, devices.max(1), max).peekable(),
            text,
            open: 0,
            running: 0,
            failed: None,
            origin,
        };
        self.jobs.insert(id, active);
        id
    }

    /// Ends jobs whose cancel flag is set, and jobs that were not started before their deadline.
    fn sweep(&mut self, now: Instant) {
        let cancelled = self.jobs.iter().filter(|(_, job)| job.cancel.check().is_err());
        let cancelled: Vec<JobId> = cancelled.map(|(id, _)| *id).collect();
        cancelled.into_iter().for_each(|id| self.cancel(id));
        let late = |job: &&Waiting<Option<Shape>>| job.deadline.is_some_and(|deadline| deadline <= now);
        let late: Vec<JobId> = self.queue.iter().filter(late).map(|job| job.id).collect();
        for id in late {
            self.fail(id, Error::new("the job was not started before its deadline"));
            self.end_if_over(id);
        }
    }

    /// Returns what a device generates next.
    fn decide(&mut self, device: usize, now: Instant) -> Next {
        self.sweep(now);
        let model = self.devices[device].model;
        // The first of several idle devices takes the batch: it is the one that loads weights first.
        if self.paused || self.siblings(device).find(|other| self.devices[*other].is_idle) != Some(device) {
            return Next::Nothing;
        }
        let max_open = AHEAD * self.siblings(device).count();
        let first = self.siblings(device).next();
        // The first device encodes the prompt for all: it has loaded the text encoder.
        let encodes = first == Some(device) || first.is_some_and(|first| self.devices[first].is_late);
        let starts = |job: &Waiting<Option<Shape>>| {
            let is_new = |active: &Active| job.images == job.count && active.first.is_empty();
            let can_start =
                |active: &Active| active.open < max_open && (encodes || active.text.is_none() || !is_new(active));
            job.model == model && self.jobs.get(&job.id).is_some_and(can_start)
        };
        let fits = Fits { starts: &starts, seconds: &|job| self.seconds(job.id), waits: !self.closed };
        self.queue.next(&fits, now)
    }

    /// Returns the estimated seconds of an image of a job.
    fn seconds(&self, id: JobId) -> Option<f64> {
        self.rates.estimate(self.jobs.get(&id)?.cost)
    }

    /// Starts a batch of jobs on a device.
    fn begin(&mut self, device: usize, jobs: &[JobId], passed: &[JobId]) -> Option<Batch> {
        for id in passed {
            self.queue.get_mut(*id).into_iter().for_each(|job| job.passed += 1);
        }
        self.taken += 1;
        let (number, cancel) = (self.taken, CancelFlag::default());
        let (parts, requests, reader) = (Vec::new(), Vec::new(), TextSource::Own);
        let mut batch = Batch { number, device, parts, requests, reader, cancel };
        for id in jobs {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            if let Some(images) = job.take() {
                self.queue.take(*id, images.len());
                job.join(*id, images, &mut batch);
            }
        }
        let head = self.jobs.get(&batch.parts.first()?.id)?;
        if let Some(text) = &head.text {
            let text = Arc::clone(text);
            batch.reader = match batch.parts[0].images.start {
                0 => TextSource::First(text),
                _ => TextSource::Other(text),
            };
        }
        if batch.parts.len() == 1 {
            batch.cancel = head.cancel.child();
        }
        let (jobs, images) = (batch.parts.iter().map(|part| part.id).collect(), batch.requests.len());
        let pace = Pace::new(head.cost, images, &self.rates, Instant::now());
        let (model, cancel) = (head.model, batch.cancel.clone());
        self.running.push(Running { number, model, images, jobs, cancel, pace });
        Some(batch)
    }

    fn put_back(&mut self, id: JobId, images: Range<usize>) {
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| !images.is_empty() && job.failed.is_none()) {
            self.queue.put_back(id, images.len());
            job.first.push(images);
            job.first.sort_by_key(|images| Reverse(images.start));
        }
    }

    /// Stops scheduling the job, and cancels its running batches. Their cancellation errors do not replace the first
    /// error.
    fn fail(&mut self, id: JobId, error: Error) {
        self.queue.get_mut(id).into_iter().for_each(|job| job.images = 0);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.first.clear();
        job.rest = (Box::new(std::iter::empty()) as Batches).peekable();
        match &job.failed {
            Some(known) if known.kind() != ErrorKind::Cancelled || error.kind() == ErrorKind::Cancelled => {}
            _ => job.failed = Some(error),
        }
        job.cancel.cancel();
    }

    /// Stops scheduling the job, and cancels batches that no other job shares.
    fn cancel(&mut self, id: JobId) {
        self.fail(id, Error::cancelled());
        for running in self.running.iter().filter(|running| running.jobs.contains(&id)) {
            let is_cancelled = |id| self.jobs.get(id).is_none_or(|job| job.failed.is_some());
            if running.jobs.iter().all(is_cancelled) {
                running.cancel.cancel();
            }
        }
        self.end_if_over(id);
    }

    /// Removes a job if it is finished or has failed, and no batch is running.
    fn end_if_over(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.running > 0 || !job.first.is_empty() || job.rest.peek().is_some() {
            return;
        }
        self.queue.remove(id);
        if let Some(job) = self.jobs.remove(&id) {
            (job.sink)(Message::End(job.failed.map_or(Ok(()), Err)));
        }
    }
}
