//! Admission control for the work that a request causes before its images are generated.
//!
//! Decoding, scaling, inflating and evaluating happen before the queue, and a small request may ask for a lot of them.
//! So every request holds a [`Permit`]. The permit counts the bytes that the request keeps and the work that its
//! headers announce, before any of the work is done, against limits per request, per owner and for the whole server. A
//! few threads do the work, and owners take turns. If a request is cancelled, its work ends early. Dropping the permit
//! returns everything.

mod estimate;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use flux::engine::EmbeddedFiles;
use flux::stage::CancelFlag;
use parking_lot::Mutex;
use scopeguard::guard;
use tokio::sync::oneshot;

use crate::http::error::{ApiError, Result, SOON};

pub use estimate::Estimate;

/// Max work of a request, of an owner, and of all owners, in pixels, see [`Estimate::cost`].
const MAX_REQUEST: u64 = 1 << 30;
const MAX_OWNER: u64 = 8 * MAX_REQUEST;
const MAX_SERVER: u64 = 4 * MAX_OWNER;
/// Max pixels of images decoded at the same time. Each pixel takes up to 16 bytes.
const MAX_PEAK: u64 = 128 << 20;
/// Max cost of a small task, which takes less than 0.1 s. Two more threads run small tasks only.
const SMALL: u64 = 8 << 20;
const SMALL_THREADS: usize = 2;
/// The approximate speed at which a thread decodes or scales.
const PIXELS_PER_SECOND: u64 = 100 << 20;

/// Work that changes the files of a request, unless it is cancelled.
type FileWork = dyn FnOnce(&mut EmbeddedFiles, &CancelFlag) -> Result<()> + Send;

/// Work on the files of a request, to be run when its turn comes.
pub struct Preparation {
    pub estimate: Estimate,
    pub work: Box<FileWork>,
}

impl Debug for Preparation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.estimate.fmt(f)
    }
}

/// The permits of all requests, and the threads that do their work. See the [module](self).
pub struct Admission {
    state: Mutex<State>,
    /// Threads for any work, and the max of them that one owner may use.
    threads: usize,
    owner_threads: usize,
    /// Max bytes kept by all requests, and by those of one owner.
    kept: usize,
    owner_kept: usize,
}

#[derive(Default)]
struct State {
    owners: HashMap<Arc<str>, Share>,
    /// Waiting and running tasks, in order of arrival.
    tasks: Vec<Task>,
    kept: usize,
    cost: u64,
    /// The numbers of tasks and of turns so far.
    tasks_seen: u64,
    turns: u64,
    is_closed: bool,
}

/// The usage of an owner.
#[derive(Default)]
struct Share {
    permits: usize,
    kept: usize,
    cost: u64,
    /// The number of the owner's last turn.
    turn: u64,
}

/// A task.
struct Task {
    id: u64,
    owner: Arc<str>,
    cost: u64,
    largest: u64,
    purpose: Purpose,
    cancel: CancelFlag,
    /// Starts the task. `None` once it runs.
    start: Option<oneshot::Sender<()>>,
}

impl Task {
    fn is_small(&self) -> bool {
        self.cost <= SMALL
    }

    fn is_running(&self) -> bool {
        self.start.is_none()
    }
}

/// The purpose of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Prepares a job. Pointless once the server accepts no jobs.
    Job,
    /// Produces a response.
    Answer,
}

/// The admission of a request, returned on drop.
pub struct Permit {
    admission: Arc<Admission>,
    owner: Arc<str>,
    kept: AtomicUsize,
    /// The total cost of the request's work so far.
    cost: AtomicU64,
}

/// The turn of a task, which ends on drop.
struct Turn {
    admission: Arc<Admission>,
    id: u64,
}

impl Admission {
    /// Creates the admission for a server whose requests keep at most `kept` bytes. The largest request has `largest`
    /// bytes.
    pub fn new(kept: usize, largest: usize) -> Arc<Self> {
        let threads = thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
        Self::with_threads(threads, kept, largest)
    }

    /// As [`Admission::new`], with a number of threads for work that is not small.
    pub fn with_threads(threads: usize, kept: usize, largest: usize) -> Arc<Self> {
        let owner_kept = (kept / 2).max(largest.min(kept));
        let state = Mutex::default();
        Arc::new(Self { state, threads, owner_threads: threads / 2, kept, owner_kept })
    }

    /// Returns a permit for a request of an owner, with nothing counted yet.
    pub fn permit(self: &Arc<Self>, owner: &str) -> Permit {
        let mut state = self.state.lock();
        let owner = state.owners.get_key_value(owner).map_or_else(|| owner.into(), |(owner, _)| Arc::clone(owner));
        state.owners.entry(Arc::clone(&owner)).or_default().permits += 1;
        Permit { admission: Arc::clone(self), owner, kept: AtomicUsize::new(0), cost: AtomicU64::new(0) }
    }

    /// Cancels all work that prepares jobs, and refuses further such work.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        for task in state.tasks.iter_mut().filter(|task| task.purpose == Purpose::Job) {
            task.cancel.cancel();
            // Dropping the sender tells a waiting task that it never starts.
            task.start = None;
        }
    }

    /// Adds a task, which starts when its turn comes.
    ///
    /// Errors if there is too much work already.
    fn enter(
        self: &Arc<Self>,
        owner: &Arc<str>,
        estimate: Estimate,
        (purpose, cancel): (Purpose, CancelFlag),
    ) -> Result<(Turn, oneshot::Receiver<()>)> {
        let cost = estimate.cost();
        let mut state = self.state.lock();
        if state.is_closed && purpose == Purpose::Job {
            return Err(draining());
        }
        let wait = |cost: u64| Duration::from_secs(cost / PIXELS_PER_SECOND / self.owner_threads as u64).max(SOON);
        let own = state.owners.get(owner).map_or(0, |share| share.cost);
        if own > 0 && own.saturating_add(cost) > MAX_OWNER {
            let message = "too much work of this client is waiting";
            return Err(ApiError::too_many("too_many_waiting", message, wait(own)));
        }
        if state.cost > 0 && state.cost.saturating_add(cost) > MAX_SERVER {
            let message = "too much work is waiting";
            return Err(ApiError::too_many("queue_full", message, wait(state.cost)));
        }
        state.cost += cost;
        state.owners.entry(Arc::clone(owner)).or_default().cost += cost;
        state.tasks_seen += 1;
        let id = state.tasks_seen;
        let (start, started) = oneshot::channel();
        let (owner, largest, start) = (Arc::clone(owner), estimate.largest, Some(start));
        state.tasks.push(Task { id, owner, cost, largest, purpose, cancel, start });
        self.start_next(&mut state);
        drop(state);
        Ok((Turn { admission: Arc::clone(self), id }, started))
    }

    /// Starts all tasks that have a free thread.
    fn start_next(&self, state: &mut State) {
        while let Some(place) = self.next(state) {
            state.turns += 1;
            let turn = state.turns;
            let task = &mut state.tasks[place];
            let owner = Arc::clone(&task.owner);
            if let Some(start) = task.start.take() {
                // Fails if the task no longer waits. It then drops its turn.
                let _ = start.send(());
            }
            state.owners.entry(owner).or_default().turn = turn;
        }
    }

    /// Returns the next task: small ones first, from the owner whose last turn is the longest ago.
    fn next(&self, state: &State) -> Option<usize> {
        let running = || state.tasks.iter().filter(|task| task.is_running());
        let large = running().filter(|task| !task.is_small()).count();
        let peak: u64 = running().map(|task| task.largest).sum();
        let mut owners: HashMap<&str, [usize; 2]> = HashMap::new();
        for task in running() {
            owners.entry(&task.owner).or_default()[usize::from(task.is_small())] += 1;
        }
        let may_start = |task: &Task| {
            let [own_large, own_small] = owners.get(&*task.owner).copied().unwrap_or_default();
            let has_thread = match task.is_small() {
                true => running().count() < self.threads + SMALL_THREADS && own_large + own_small <= self.owner_threads,
                false => large < self.threads && own_large < self.owner_threads,
            };
            has_thread && (task.is_small() || peak == 0 || peak + task.largest <= MAX_PEAK)
        };
        let waiting = state.tasks.iter().enumerate().filter(|(_, task)| !task.is_running() && may_start(task));
        let turn = |task: &Task| state.owners.get(&task.owner).map_or(0, |share| share.turn);
        waiting.min_by_key(|(_, task)| (turn(task), !task.is_small(), task.id)).map(|(place, _)| place)
    }
}

fn draining() -> ApiError {
    ApiError::unavailable("draining", "the server is shutting down", SOON)
}

impl Permit {
    /// Counts bytes that the request keeps.
    ///
    /// Errors if a limit is exceeded.
    pub fn keep(&self, bytes: usize) -> Result<()> {
        let mut state = self.admission.state.lock();
        self.kept.fetch_add(bytes, Ordering::Relaxed);
        state.kept += bytes;
        let all = state.kept;
        let share = state.owners.entry(Arc::clone(&self.owner)).or_default();
        share.kept += bytes;
        if all > self.admission.kept {
            return Err(ApiError::too_many("queue_full", "too many request bodies are being received", SOON));
        }
        if share.kept > self.admission.owner_kept {
            let message = "the requests of this client are too large in total";
            return Err(ApiError::too_many("too_many_waiting", message, SOON));
        }
        Ok(())
    }

    /// Returns the bytes that the request keeps.
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Counts work that the request is about to do. `field` is the field that asks for the work.
    ///
    /// Errors if the work exceeds the limit of a request.
    pub fn count(&self, estimate: Estimate, field: &'static str) -> Result<()> {
        let cost = estimate.cost();
        let all = self.cost.fetch_add(cost, Ordering::Relaxed).saturating_add(cost);
        if all <= MAX_REQUEST {
            return Ok(());
        }
        let millions = |pixels: u64| pixels.div_ceil(1 << 20);
        let message = format!(
            "the request has {} million pixels to decode and scale, expected at most {} million: send smaller images",
            millions(all),
            millions(MAX_REQUEST)
        );
        Err(ApiError::bad("too_much_work", message).with_param(field))
    }

    /// Runs work that prepares a job, on a thread of its own, when its turn comes. Cancels the work if `cancel` is set
    /// or the future is dropped. `work` should check its flag regularly.
    ///
    /// Errors if there is too much work already, or the server is shutting down.
    pub async fn run<T: Send + 'static>(
        &self,
        estimate: Estimate,
        cancel: &CancelFlag,
        work: impl FnOnce(&CancelFlag) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_for(Purpose::Job, estimate, cancel, work).await
    }

    /// As [`Permit::run`], for work that produces a response. A server that is shutting down still finishes it.
    pub async fn answer<T: Send + 'static>(
        &self,
        estimate: Estimate,
        work: impl FnOnce(&CancelFlag) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_for(Purpose::Answer, estimate, &CancelFlag::default(), work).await
    }

    async fn run_for<T: Send + 'static>(
        &self,
        purpose: Purpose,
        estimate: Estimate,
        cancel: &CancelFlag,
        work: impl FnOnce(&CancelFlag) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let flag = cancel.child();
        // Dropping the request cancels its work.
        let _ends_with_this = guard(flag.clone(), |flag| flag.cancel());
        let (turn, started) = self.admission.enter(&self.owner, estimate, (purpose, flag.clone()))?;
        started.await.map_err(|_| draining())?;
        let (done, result) = oneshot::channel();
        // Runs parallel iterators on this thread only, so that the engine keeps the other threads.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "admitted".to_string()).build();
        let no_thread = |e| ApiError::unavailable("overloaded", format!("cannot start a thread: {e}"), SOON);
        let pool = pool.map_err(no_thread)?;
        pool.spawn(move || {
            let worked =
                catch_unwind(AssertUnwindSafe(|| flag.check().map_err(ApiError::from).and_then(|()| work(&flag))));
            drop(turn);
            // Fails if the request was dropped.
            let _ = done.send(worked);
        });
        // The thread ends by itself.
        drop(pool);
        let worked = result.await.map_err(|_| ApiError::internal("the processing of the request ended early"))?;
        let worked = worked.unwrap_or_else(|_| Err(ApiError::internal("reading the request panicked").for_good()));
        // Shutting down sets the flag, too.
        let is_cut_off = worked.as_ref().is_err_and(ApiError::is_cancelled) && cancel.check().is_ok();
        if is_cut_off { Err(draining()) } else { worked }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let kept = *self.kept.get_mut();
        let mut state = self.admission.state.lock();
        state.kept -= kept;
        if let Some(share) = state.owners.get_mut(&self.owner) {
            share.kept -= kept;
            share.permits -= 1;
        }
        state.forget_idle(&self.owner);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        let Some(place) = state.tasks.iter().position(|task| task.id == self.id) else { return };
        let task = state.tasks.remove(place);
        state.cost -= task.cost;
        if let Some(share) = state.owners.get_mut(&task.owner) {
            share.cost -= task.cost;
        }
        state.forget_idle(&task.owner);
        self.admission.start_next(&mut state);
    }
}

impl State {
    /// Removes an owner without any usage.
    fn forget_idle(&mut self, owner: &str) {
        if self.owners.get(owner).is_some_and(|share| share.permits == 0 && share.cost == 0) {
            self.owners.remove(owner);
        }
    }
}
