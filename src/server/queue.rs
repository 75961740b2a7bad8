//! One queue in front of the engines: it takes jobs, and hands out what waits.
//!
//! A thread hands groups of images that may be made as one batch to the engine of their model: as many as devices, and
//! one more, so that no device waits for work. Everything else waits here, where the order may still change.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use flux::engine::Engine;

use super::backlog::{Ahead, Backlog, SOON, too_late};
use super::config::Limits;
use super::error::{ApiError, Result};
use super::fair::Waiting;
use super::follow::{self, Image, Item};
use super::ids::new_id;
use super::metrics::{Metrics, QueueStats};
use super::models::Models;
use super::rate::RateLimits;
use super::rates::Rates;
use super::record::{JobRecord, NewJob, Owner};
use super::request::Asked;
use super::running::{Patience, Running};
use super::work::Work;

/// How often the thread looks for what is late, and for models that nobody uses.
const LOOK: Duration = Duration::from_millis(500);
/// How long requests for a model that is not open wait for those for the one that is.
const MODEL_WAITS: Duration = Duration::from_secs(5);

/// See the module.
pub struct Queue {
    state: Mutex<Backlog>,
    changed: Condvar,
    pub models: Models,
    pub limits: Limits,
    /// Pixels that clients asked for lately.
    pixels: RateLimits,
    pub metrics: Arc<Metrics>,
}

/// A group that an engine has; dropped when it has done with all of its images.
struct Group {
    queue: Arc<Queue>,
    number: u64,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.queue.change(|state| state.running.retain(|running| running.number != self.number));
    }
}

impl Queue {
    /// Starts the thread that hands out work, which begins by opening the default model: `opened` hears of that.
    ///
    /// Errors when the system starts no thread.
    pub fn start(
        models: Models,
        limits: Limits,
        metrics: Arc<Metrics>,
        opened: impl FnOnce(flux::Result<()>) + Send + 'static,
    ) -> flux::Result<Arc<Self>> {
        let pixels = RateLimits::new(limits.client_pixels);
        let queue =
            Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), models, limits, pixels, metrics });
        let own = Arc::clone(&queue);
        let run = move || {
            own.change(|state| state.opening = Some(Instant::now()));
            let done = own.models.engine(0).and_then(|engine| follow::warm_up(&engine, &own.models.cancel));
            let is_open = done.is_ok();
            own.change(|state| (state.is_ready, state.opening) = (is_open, None));
            opened(done);
            if is_open {
                own.hand_out();
            }
        };
        thread::Builder::new().name("queue".to_string()).spawn(run).map_err(|e| flux::Error::no_thread(&e))?;
        Ok(queue)
    }

    fn state(&self) -> MutexGuard<'_, Backlog> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Backlog) -> T) -> T {
        let mut state = self.state();
        state.ahead = None;
        let changed = change(&mut state);
        self.changed.notify_all();
        changed
    }

    /// Takes a request. Reads its images, so it may take a while.
    ///
    /// Errors when it cannot be carried out, or there is too much work already.
    pub fn submit(&self, mut asked: Asked, owner: Owner) -> Result<Arc<JobRecord>> {
        let arrived = Instant::now();
        self.check_open()?;
        let (model, note) = self.models.find(asked.model.as_deref())?;
        self.check_room(asked.files.values().map(Vec::len).sum())?;
        let work = Arc::new(Work::new(&mut asked, &self.models, model, arrived)?);
        let input_bytes = work.bytes();
        let engine = self.models.resident(model);
        let ready = engine.map(|engine| work.prepare(&engine, &self.models, self.limits.max_pixels)).transpose()?;
        let job = NewJob {
            id: new_id(),
            owner,
            model: self.models.name(model).to_string(),
            prompt: work.prompt().to_string(),
            encoding: asked.encoding,
            count: asked.count,
            input_bytes,
        };
        let record = JobRecord::new(job, asked.notes.into_iter().chain(note).collect());
        if let Some(ready) = ready {
            record.plan(ready.plan, &ready.notes);
        }
        self.change(|state| {
            // It may have been closed meanwhile, and others may have come.
            state.check_open()?;
            state.check_share(&record.owner.key, asked.count, self.limits.client_images)?;
            state.check_deadline(&work, asked.count)?;
            state.check_room(&self.limits, input_bytes)?;
            self.take_pixels(&record.owner.key, work.pixels() * asked.count as f64)?;
            for image in 0..asked.count {
                let item = Item { record: Arc::clone(&record), work: Arc::clone(&work), image };
                let owner = (&*record.owner.key, &*record.owner.user);
                state.waiting.push(item, work.priority, owner, work.cost(), arrived);
            }
            Ok(record)
        })
    }

    fn check_open(&self) -> Result<()> {
        self.state().check_open()
    }

    /// Errors when the client asked for too many pixels lately.
    fn take_pixels(&self, client: &str, pixels: f64) -> Result<()> {
        self.pixels.take(client, pixels, Instant::now()).map_err(|wait| {
            ApiError::too_many("rate_limited", "the client asked for more pixels a minute than it may", wait)
        })
    }

    fn check_room(&self, bytes: usize) -> Result<()> {
        self.state().check_room(&self.limits, bytes)
    }

    /// Cancels a job wherever it is. Returns whether it was not over.
    pub fn cancel(&self, record: &Arc<JobRecord>) -> bool {
        let was_there = record.cancel();
        drop(self.change(|state| state.waiting.take_where(|item| Arc::ptr_eq(&item.record, record))));
        was_there
    }

    /// What is in front of a job that is not over.
    pub fn ahead(&self, record: &JobRecord) -> Option<Ahead> {
        let mut state = self.state();
        let now = Instant::now();
        if state.ahead.is_none() {
            state.ahead = Some((now, state.look_ahead(now)));
        }
        let (then, ahead) = state.ahead.as_ref()?;
        let Ahead { images, eta_s } = *ahead.get(&record.id)?;
        let passed = now.saturating_duration_since(*then).as_secs_f64();
        Some(Ahead { images, eta_s: eta_s.map(|seconds| (seconds - passed).max(0.0)) })
    }

    pub fn stats(&self) -> QueueStats {
        let state = self.state();
        let (requests, bytes) = state.held();
        QueueStats {
            waiting: state.waiting.len(),
            running: state.taken.len() + state.running.iter().map(|running| running.records.len()).sum::<usize>(),
            bytes,
            is_ready: state.is_ready,
            is_closed: state.is_closed,
            is_full: requests >= self.limits.queue_max,
            away: None,
        }
    }

    /// Whether the work moves: no group does nothing for longer than it should, and no model takes too long to open.
    pub fn moves(&self, patience: Patience) -> bool {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return true,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
        };
        let opens_for_long = state.opening.is_some_and(|since| since.elapsed() > patience.at_first);
        !opens_for_long && !state.running.iter().any(|group| group.is_late(&state.pace, patience, Instant::now()))
    }

    /// Takes nothing more, and waits until all that is there is made. After `timeout` the rest is ended.
    pub fn drain(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.change(|state| state.is_closed = true);
        let mut state = self.state();
        while !state.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let waiting = state.waiting.take_where(|_| true).into_iter().map(|item| item.record);
        let begun = state.running.iter().flat_map(|running| &running.records).chain(&state.taken).cloned();
        let rest: Vec<_> = waiting.chain(begun).collect();
        drop(state);
        for record in rest {
            record.fail(ApiError::unavailable("draining", "the server went down before the job was made", SOON));
        }
        self.models.cancel.cancel();
        self.changed.notify_all();
    }

    /// Hands out groups until the queue is closed and empty.
    fn hand_out(self: Arc<Self>) {
        while let Some(group) = self.next_group() {
            let records: Vec<_> = group.iter().map(|item| Arc::clone(&item.record)).collect();
            // The thread lives on, since nothing is made without it.
            if catch_unwind(AssertUnwindSafe(|| self.hand_out_group(group))).is_err() {
                for record in records {
                    record.fail(ApiError::internal("handing out the job panicked").for_good());
                }
            }
            self.change(|state| {
                state.taken.clear();
                state.opening = None;
            });
        }
    }

    fn hand_out_group(self: &Arc<Self>, group: Vec<Item>) {
        let mut group = group;
        let Some(model) = group.first().map(|item| item.work.model) else { return };
        match self.engine(model) {
            Ok(engine) => {
                group.retain(|item| self.prepare(item, &engine));
                self.hand_over(group, &engine);
            }
            Err(error) => group.iter().for_each(|item| {
                item.record.fail(ApiError::from(&error));
            }),
        }
    }

    /// The next images to be made together, once an engine may have them. None at the end.
    fn next_group(&self) -> Option<Vec<Item>> {
        let mut state = self.state();
        loop {
            self.drop_late(&mut state);
            let devices = state.waiting.iter().next().map_or(1, |next| self.devices(next.item.work.model));
            if state.waiting.len() > 0 && state.running.len() <= devices {
                if let Some(left) = self.window_left(&state) {
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                state.ahead = None;
                let is_open = |work: &Work| self.models.resident(work.model).is_some();
                let may_wait =
                    |waiting: &Waiting<Item>| waiting.since.elapsed() < MODEL_WAITS && !is_open(&waiting.item.work);
                let suits = |head: &Item, other: &Item| head.work.suits(&other.work);
                let Backlog { waiting, taken, rates, .. } = &mut *state;
                let most = |head: &Item| self.most_at_once(rates, &head.work);
                let group = waiting.take_group(most, may_wait, suits);
                *taken = group.iter().map(|item| Arc::clone(&item.record)).collect();
                return Some(group);
            }
            if state.is_closed && state.waiting.len() == 0 {
                return None;
            }
            if state.running.is_empty()
                && let Some(time) = self.limits.idle_unload
            {
                drop(state);
                self.models.close_unused(time).iter().for_each(|name| {
                    crate::progress::say(&format!("closed {name}, which nobody used"));
                });
                state = self.state();
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How long the next group may still wait for others that suit it; none where it goes now.
    fn window_left(&self, state: &Backlog) -> Option<Duration> {
        let window = self.limits.batch_window;
        if window.is_zero() || state.is_closed {
            return None;
        }
        let first = state.waiting.order().first().copied()?;
        let first = state.waiting.iter().nth(first)?;
        let suiting = state.waiting.iter().filter(|other| first.item.work.suits(&other.item.work)).count();
        let is_full = suiting >= self.most_at_once(&state.rates, &first.item.work);
        window.checked_sub(first.since.elapsed()).filter(|left| !left.is_zero() && !is_full)
    }

    /// How many images such as this one may be a group: all of them take no longer than a group may.
    fn most_at_once(&self, rates: &Rates, work: &Work) -> usize {
        let seconds = work.ready().and_then(|ready| rates.estimate(ready.kind));
        in_time(self.limits.batch_max, self.limits.batch_latency, seconds)
    }

    fn devices(&self, model: usize) -> usize {
        self.models.resident(model).map_or(1, |engine| engine.stats().devices.max(1))
    }

    /// Ends what cannot be made in time.
    fn drop_late(&self, state: &mut Backlog) {
        let is_late = |item: &Item| item.work.time_left().is_some_and(|left| left.is_zero());
        let late = state.waiting.take_where(|item| item.record.status().is_over() || is_late(item));
        if !late.is_empty() {
            state.ahead = None;
            // Whoever waits for the end of all work hears of it.
            self.changed.notify_all();
        }
        for item in late {
            item.record.fail(too_late());
        }
    }

    /// The engine of a model. One that is not open is opened once all others are idle, and all requests for it are
    /// planned.
    fn engine(&self, model: usize) -> flux::Result<Arc<Engine>> {
        if self.models.resident(model).is_none() {
            let mut state = self.state();
            while !state.running.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.change(|state| state.opening = Some(Instant::now()));
        let engine = self.models.engine(model);
        self.change(|state| state.opening = None);
        engine
    }

    /// Whether a job can be made; it ends with an error otherwise.
    fn prepare(&self, item: &Item, engine: &Engine) -> bool {
        let was_ready = item.work.ready().is_some();
        match item.work.prepare(engine, &self.models, self.limits.max_pixels) {
            Ok(ready) if !was_ready => item.record.plan(ready.plan, &ready.notes),
            Ok(_) => {}
            Err(error) => {
                item.record.fail(error);
                return false;
            }
        }
        !item.record.status().is_over()
    }

    /// Gives a group to an engine, and follows each image on a thread of its own.
    fn hand_over(self: &Arc<Self>, group: Vec<Item>, engine: &Arc<Engine>) {
        let Some(first) = group.first() else { return };
        let kind = first.work.ready().map(|ready| ready.kind);
        let records: Vec<_> = group.iter().map(|item| Arc::clone(&item.record)).collect();
        let images = records.len();
        let number = self.change(|state| {
            state.groups += 1;
            let takes = kind.and_then(|kind| state.rates.estimate(kind)).map(|seconds| seconds * images as f64);
            state.taken.clear();
            state.devices = engine.stats().devices;
            state.running.push(Running::new(state.groups, records, takes, Instant::now()));
            state.groups
        });
        let shared = Arc::new(Group { queue: Arc::clone(self), number });
        for item in group {
            let record = Arc::clone(&item.record);
            let queue = Arc::clone(self);
            let learn = Box::new(move |kind, seconds| queue.state().rates.learn(kind, seconds));
            let queue = Arc::clone(self);
            let moves = Box::new(move |to| queue.state().moves(number, to));
            let most_together = self.limits.batch_max;
            let (group, metrics) = (Arc::clone(&shared), Arc::clone(&self.metrics));
            let image = Image { item, group, learn, most_together, moves, metrics };
            if let Err(error) = image.follow(engine) {
                record.fail(error);
            }
        }
    }
}

/// How many images of so many seconds each take no longer than `latency` together: from one to `most`.
fn in_time(most: usize, latency: Duration, seconds: Option<f64>) -> usize {
    seconds.map_or(most, |seconds| most.min((latency.as_secs_f64() / seconds.max(1e-9)) as usize).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_takes_no_longer_than_it_may() {
        let of = |seconds| in_time(8, Duration::from_secs(1), seconds);
        assert_eq!([None, Some(0.01), Some(0.24), Some(0.6), Some(9.0)].map(of), [8, 8, 4, 1, 1]);
        assert_eq!(in_time(8, Duration::ZERO, Some(0.0)), 1);
    }
}
