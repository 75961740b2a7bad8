//! The unfinished jobs in front of the engines: their bounds, and the models that they need.
//!
//! The engines share a [`Scheduler`], which decides what a device generates next. Jobs of a model that is open are
//! submitted at once; others wait until a thread opens the model.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flux::engine::{Ahead, Engine, Job, JobId, Owner, Priority, Scheduler, Sink};
use flux::pipeline::Request;
use flux::stage::CancelFlag;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::http::config::Limits;
use crate::http::error::{ApiError, Result, SOON, too_late};
use crate::http::rate::RateLimits;
use crate::jobs::enlarging;
use crate::jobs::follow::{Image, ImageQueue};
use crate::jobs::metrics::{Metrics, QueueStats};
use crate::jobs::models::Models;
use crate::jobs::record::JobRecord;
use crate::jobs::request::{Asked, Feedback};
use crate::jobs::work;

/// The interval between checks for late jobs and idle models.
const LOOK: Duration = Duration::from_millis(500);
/// The time for which requests for an unloaded model wait while there are requests for a loaded one, and for which a
/// model stays loaded.
const MODEL_WAITS: Duration = Duration::from_secs(5);

/// The queue. See the [module](self).
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    scheduler: Arc<Scheduler>,
    runtime: Handle,
    pub models: Models,
    pub limits: Limits,
    /// Pixels that clients requested recently.
    pixels: RateLimits,
    pub metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    /// By job ID.
    jobs: HashMap<String, Unfinished>,
    /// The time of the last progress while a model is loading.
    opening: Option<Instant>,
    /// `true` once the default model is loaded.
    is_ready: bool,
    /// `true` if no further jobs are accepted.
    is_closed: bool,
}

/// A job with images that are not finished.
struct Unfinished {
    record: Arc<JobRecord>,
    /// The index of its model.
    model: usize,
    priority: Priority,
    /// The bytes that it keeps while it waits.
    bytes: usize,
    /// The job while it waits for its model to be opened.
    pending: Option<(Job, Option<Feedback>)>,
    /// Its images in the scheduler.
    ids: Vec<JobId>,
    /// Images that no device has started, and images that are started and not finished.
    waiting: usize,
    running: usize,
}

impl Queue {
    /// Starts the thread that opens models, which loads the default model first. `opened` is called with the result of
    /// loading. Must be called within a runtime.
    ///
    /// Errors if the system cannot start a thread.
    pub fn start(
        models: Models,
        limits: Limits,
        metrics: Arc<Metrics>,
        opened: impl FnOnce(flux::Result<()>) + Send + 'static,
    ) -> flux::Result<Arc<Self>> {
        let pixels = RateLimits::new(limits.client_pixels);
        let (state, changed, scheduler) = (Mutex::default(), Condvar::new(), Arc::clone(models.scheduler()));
        let runtime = Handle::current();
        let queue = Arc::new(Self { state, changed, scheduler, runtime, models, limits, pixels, metrics });
        let own = Arc::clone(&queue);
        let run = move || {
            own.opens();
            let done = own.models.engine(0, &|| own.opens()).and_then(|engine| own.warm_up(&engine));
            let is_open = done.is_ok();
            own.change(|state| (state.is_ready, state.opening) = (is_open, None));
            opened(done);
            let mut switched = Instant::now();
            // The thread must survive a panic, since no other model is opened without it.
            while is_open && catch_unwind(AssertUnwindSafe(|| own.look(&mut switched))).unwrap_or(true) {}
        };
        thread::Builder::new().name("queue".to_string()).spawn(run).map_err(|e| flux::Error::no_thread(&e))?;
        Ok(queue)
    }

    /// Generates a small image, so that the first client does not wait for weights.
    ///
    /// Errors if generating fails.
    fn warm_up(&self, engine: &Engine) -> flux::Result<()> {
        engine.prepare_previews();
        let request = Request { width: Some(64), height: Some(64), steps: Some(1), ..Request::new("", 0) };
        engine.generate_images(&request, 1, &self.models.cancel, &mut |_| self.opens()).map(drop)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.notify_all();
        changed
    }

    /// Errors if a request of this many bytes cannot be accepted now.
    pub fn check(&self, bytes: usize) -> Result<()> {
        let state = self.state.lock();
        state.check_open()?;
        self.check_room(&state, bytes)
    }

    /// Reads the images of a job, and submits it unless it was cancelled.
    ///
    /// Errors if the job is invalid, or there is too much work already.
    pub fn take(self: &Arc<Self>, record: &Arc<JobRecord>, mut asked: Asked, cancel: &CancelFlag) -> Result<()> {
        let (model, mut job) = match &asked.enlarging {
            Some(_) => {
                (self.models.last_used(), enlarging::job(&mut asked, record, &self.models, &self.limits, cancel)?)
            }
            None => {
                let (model, _) = self.models.find(asked.model.as_deref())?;
                (model, work::read(&mut asked, record, &self.models, cancel)?)
            }
        };
        let (engine, mut takes) = (self.models.resident(model), None);
        record.note(asked.notes);
        if let Some(engine) = &engine {
            self.plan(&mut job, asked.feedback.as_ref(), record, engine)?;
            takes = job.deadline.map(|_| engine.seconds_with(&job)).transpose()?.flatten();
        }
        let (pixels, bytes) = (work::pixels(&job, record), work::bytes(&job, asked.edits_whole));
        let submitted = self.change(|state| {
            // The queue may have been closed or filled while the images were read.
            state.check_open()?;
            if record.status().is_over() {
                return Ok(None);
            }
            let share = &record.owner.share;
            self.check_share(state, share, record.count)?;
            if let Some(late) = takes.filter(|takes| record.time_left().is_some_and(|left| *takes > left.as_secs_f64()))
            {
                let message = format!("the job would be done in {late:.1} s, after its deadline");
                return Err(ApiError::too_many("would_miss_deadline", message, seconds(late)));
            }
            self.check_room(state, bytes)?;
            self.check_part(state, share, bytes)?;
            self.take_pixels(share, pixels)?;
            let (priority, waiting, ids) = (job.priority, job.count, Vec::new());
            let (submitted, pending) = match engine {
                Some(engine) => (Some((job, engine)), None),
                None => (None, Some((job, asked.feedback))),
            };
            let record = Arc::clone(record);
            let unfinished = Unfinished { record, model, priority, bytes, pending, ids, waiting, running: 0 };
            state.jobs.insert(unfinished.record.id.clone(), unfinished);
            Ok(submitted)
        })?;
        if let Some((job, engine)) = submitted {
            self.submit(record, model, &job, &engine);
        }
        Ok(())
    }

    fn plan(&self, job: &mut Job, feedback: Option<&Feedback>, record: &JobRecord, engine: &Engine) -> Result<()> {
        work::plan(job, feedback, record, engine, &self.models, self.limits.max_pixels)
    }

    /// Errors if the client has requested too many pixels recently.
    fn take_pixels(&self, client: &str, pixels: f64) -> Result<()> {
        self.pixels.take(client, pixels, Instant::now()).map_err(|wait| {
            ApiError::too_many("rate_limited", "the client has reached its limit of pixels per minute", wait)
        })
    }

    fn check_room(&self, state: &State, bytes: usize) -> Result<()> {
        let (requests, held) = held(state.waiting());
        if requests >= self.limits.queue_max || (requests > 0 && held + bytes > self.limits.queue_bytes) {
            return Err(ApiError::too_many("queue_full", "too many requests are already waiting", self.wait(0.5)));
        }
        Ok(())
    }

    /// Errors if a client would exceed its part of the queue. A quarter of the places and half of the memory are
    /// reserved for other clients.
    fn check_part(&self, state: &State, client: &str, bytes: usize) -> Result<()> {
        let Limits { queue_max, queue_bytes, .. } = self.limits;
        let (requests, held) = held(state.waiting().filter(|job| job.record.owner.share == client));
        if requests < queue_max - queue_max / 4 && (requests == 0 || held + bytes <= queue_bytes / 2) {
            return Ok(());
        }
        Err(ApiError::too_many(
            "too_many_waiting",
            "too many requests of this client are already waiting",
            self.wait(0.5),
        ))
    }

    /// Errors if too many images of a client would wait.
    fn check_share(&self, state: &State, client: &str, images: usize) -> Result<()> {
        let own = state.waiting().filter(|job| job.record.owner.share == client);
        let (waiting, most) = (own.map(|job| job.waiting).sum::<usize>(), self.limits.client_images);
        if waiting + images <= most {
            return Ok(());
        }
        if waiting == 0 {
            return Err(ApiError::value("n", format!("{images} images were requested, but at most {most} can wait")));
        }
        let message = format!("{waiting} images of this client are waiting, the maximum is {most}");
        Err(ApiError::too_many("too_many_waiting", message, self.wait(1.0)))
    }

    /// Returns this part of the time until everything is generated, for clients that may retry.
    fn wait(&self, part: f64) -> Duration {
        self.scheduler.seconds_left().map_or(SOON, |left| seconds(left * part))
    }

    /// Submits the images of a job that was planned to its engine. The job fails if the engine refuses it.
    fn submit(self: &Arc<Self>, record: &Arc<JobRecord>, model: usize, job: &Job, engine: &Engine) {
        let Limits { batch_max, batch_latency, batch_window, .. } = self.limits;
        let owner = Owner { key: (*record.owner.share).into(), user: (*record.owner.user).into() };
        let mut images = Vec::new();
        let jobs = (0..job.count).map(|image| {
            let (sender, messages) = mpsc::unbounded_channel();
            images.push((
                Image::new(Arc::clone(self) as Arc<dyn ImageQueue>, Arc::clone(record), model, image)
                    .with_enlarging(job.enlarging.clone()),
                messages,
            ));
            let job = Job {
                owner: owner.clone(),
                max_together: batch_max,
                max_latency: Some(batch_latency),
                window: batch_window,
                ..job.part(image)
            };
            // Without a receiver, the image has ended.
            let sink: Sink = Arc::new(move |message| drop(sender.send(message)));
            (job, sink)
        });
        let jobs: Vec<_> = jobs.collect();
        self.models.touch(model);
        match engine.submit_to(jobs) {
            Ok(ids) => self.change(|state| {
                state.jobs.get_mut(&record.id).into_iter().for_each(|job| job.ids.clone_from(&ids));
            }),
            Err(error) => {
                record.fail(ApiError::from(&error));
            }
        }
        for (image, messages) in images {
            self.runtime.spawn(image.follow(messages));
        }
    }

    /// Cancels a job. Returns `true` if it had not ended.
    pub fn cancel(&self, record: &Arc<JobRecord>) -> bool {
        let was_there = record.cancel();
        let ids = self.change(|state| {
            if state.jobs.get(&record.id).is_some_and(|job| job.pending.is_some()) {
                state.jobs.remove(&record.id);
            }
            state.jobs.get(&record.id).map(|job| job.ids.clone())
        });
        ids.unwrap_or_default().into_iter().for_each(|id| self.scheduler.cancel(id));
        was_there
    }

    /// Returns the position of an unfinished job. Behind a model that must be opened first, no time is known.
    pub fn ahead(&self, record: &JobRecord) -> Option<Ahead> {
        let state = self.state.lock();
        let Unfinished { ids, .. } = state.jobs.get(&record.id)?;
        if !ids.is_empty() {
            let ids = ids.clone();
            drop(state);
            return self.scheduler.ahead(&ids);
        }
        let is_before = |job: &&Unfinished| job.pending.is_none() || job.record.arrived < record.arrived;
        let others = state.waiting().filter(|job| job.record.id != record.id);
        let images = others.filter(is_before).map(|job| job.waiting).sum();
        Some(Ahead { images: Some(images), eta_s: None })
    }

    pub fn stats(&self) -> QueueStats {
        let state = self.state.lock();
        let (requests, bytes) = held(state.waiting());
        QueueStats {
            waiting: state.jobs.values().map(|job| job.waiting).sum(),
            running: state.jobs.values().map(|job| job.running).sum(),
            bytes,
            is_ready: state.is_ready,
            is_closed: state.is_closed,
            is_full: requests >= self.limits.queue_max,
            away: None,
        }
    }

    /// Returns `true` unless a batch or the loading of a model has made no progress for too long.
    pub fn moves(&self) -> bool {
        let opening = self.state.try_lock().and_then(|state| state.opening);
        let start = self.limits.start;
        opening.is_none_or(|moved| moved.elapsed() <= start) && !self.scheduler.is_stuck(start)
    }

    /// Accepts no more jobs, and waits until the accepted ones are done. Fails the rest after `timeout`.
    pub fn drain(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.change(|state| state.is_closed = true);
        let mut state = self.state.lock();
        while !state.jobs.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        let rest: Vec<_> = state.jobs.values().map(|job| Arc::clone(&job.record)).collect();
        state.jobs.retain(|_, job| job.pending.is_none());
        drop(state);
        for record in rest {
            record.fail(ApiError::unavailable("draining", "the server shut down before the job was done", SOON));
        }
        self.scheduler.sweep();
        self.models.cancel.cancel();
        self.changed.notify_all();
    }

    /// Ends late jobs, opens a model that is due, submits jobs that waited for it, and closes models that are idle.
    /// Then waits for a change. Returns `false` at the end.
    fn look(self: &Arc<Self>, switched: &mut Instant) -> bool {
        self.scheduler.sweep();
        let mut state = self.state.lock();
        if state.is_closed && state.jobs.is_empty() {
            return false;
        }
        state.jobs.retain(|_, job| {
            let is_pending = job.pending.is_some();
            if is_pending && job.record.time_left().is_some_and(|left| left.is_zero()) {
                job.record.fail(too_late());
            }
            !(is_pending && job.record.status().is_over())
        });
        if let Some(model) = self.due(&state, *switched) {
            drop(state);
            self.open(model);
            *switched = Instant::now();
            state = self.state.lock();
        }
        let mut pending = Vec::new();
        for unfinished in state.jobs.values_mut().filter(|job| job.pending.is_some()) {
            if let Some(engine) = self.models.resident(unfinished.model)
                && let Some((job, feedback)) = unfinished.pending.take()
            {
                pending.push((Arc::clone(&unfinished.record), unfinished.model, job, feedback, engine));
            }
        }
        if !pending.is_empty() {
            drop(state);
            pending.sort_by_key(|(record, ..)| record.arrived);
            for (record, model, mut job, feedback, engine) in pending {
                match self.plan(&mut job, feedback.as_ref(), &record, &engine) {
                    Ok(()) => self.submit(&record, model, &job, &engine),
                    Err(error) => {
                        record.fail(error);
                        self.change(|state| drop(state.jobs.remove(&record.id)));
                    }
                }
            }
            return true;
        }
        if state.jobs.is_empty()
            && let Some(time) = self.models.closes_after(self.limits.idle_unload)
        {
            drop(state);
            self.models.close_unused(time).iter().for_each(|name| {
                flux_runtime::progress::say(&format!("closed {name}, which was unused"));
            });
            state = self.state.lock();
        }
        if self.due(&state, *switched).is_none() {
            self.changed.wait_for(&mut state, LOOK);
        }
        true
    }

    /// Returns the model to open next, if any: that of the first waiting job whose model is not open.
    fn due(&self, state: &State, switched: Instant) -> Option<usize> {
        let is_open = |job: &&Unfinished| self.models.resident(job.model).is_some();
        let closed = state.waiting().filter(|job| !is_open(job) && !job.record.status().is_over());
        let next = closed.min_by_key(|job| (Reverse(job.priority), job.record.arrived))?;
        let has_waited = next.record.arrived.max(switched).elapsed() >= MODEL_WAITS;
        let others = state.waiting().filter(is_open).map(|job| job.priority).max();
        let is_due = others.is_none_or(|priority| has_waited && next.priority >= priority);
        is_due.then_some(next.model)
    }

    /// Opens a model once all devices are idle. If that fails, its jobs fail.
    fn open(&self, model: usize) {
        let opened = self.scheduler.while_idle(|| {
            self.opens();
            self.models.engine(model, &|| self.opens())
        });
        self.change(|state| {
            state.opening = None;
            let Err(error) = &opened else { return };
            for job in state.waiting().filter(|job| job.model == model) {
                job.record.fail(ApiError::from(error));
            }
        });
    }

    /// Records progress in loading a model.
    fn opens(&self) {
        self.state.lock().opening = Some(Instant::now());
    }
}

impl State {
    fn check_open(&self) -> Result<()> {
        match (self.is_closed, self.is_ready) {
            (true, _) => Err(ApiError::unavailable("draining", "the server is shutting down", SOON)),
            (_, false) => Err(ApiError::unavailable("loading", "the model is being opened", SOON)),
            _ => Ok(()),
        }
    }

    /// Returns the jobs with images that no device has started.
    fn waiting(&self) -> impl Iterator<Item = &Unfinished> {
        self.jobs.values().filter(|job| job.waiting > 0)
    }
}

/// Returns the number of jobs, and the bytes that they keep while they wait.
fn held<'a>(jobs: impl Iterator<Item = &'a Unfinished>) -> (usize, usize) {
    jobs.fold((0, 0), |(requests, held), job| (requests + 1, held + job.bytes))
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
}

impl ImageQueue for Queue {
    fn started(&self, record: &JobRecord) {
        self.change(|state| {
            if let Some(job) = state.jobs.get_mut(&record.id) {
                (job.waiting, job.running) = (job.waiting - 1, job.running + 1);
            }
        });
    }

    fn ended(&self, record: &JobRecord, model: usize, was_started: bool) {
        self.models.touch(model);
        self.change(|state| {
            let Some(job) = state.jobs.get_mut(&record.id) else { return };
            *if was_started { &mut job.running } else { &mut job.waiting } -= 1;
            if job.waiting + job.running == 0 {
                state.jobs.remove(&record.id);
            }
        });
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
