//! Admission control for the work that a request causes before its images are generated.
//!
//! Decoding, scaling, inflating and evaluating happen before the queue, and a small request may ask for a lot of them.
//! So every request holds a [`Permit`]. The permit counts the bytes that the request keeps and the work that its
//! headers announce, before any of the work is done, against limits per request, per owner and for the whole server. A
//! few threads do the work, and owners take turns. If a request is cancelled, its work ends early. Dropping the permit
//! returns everything.

use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::ops::{Add, AddAssign};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use flux::engine::EmbeddedFiles;
use flux::stage::CancelFlag;
use tokio::sync::oneshot;

use crate::http::error::{ApiError, Result, SOON};

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

/// Work, estimated from headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Pixels to decode.
    pub decoded: u64,
    /// Pixels of the largest image to decode.
    pub largest: u64,
    /// Pixels read and written by scaling, changing or encoding.
    pub scaled: u64,
    /// Bytes to parse, hash or inflate.
    pub inflated: u64,
    /// Nodes of a graph to evaluate.
    pub nodes: u64,
}

impl Estimate {
    /// Returns the work of decoding an image of this size.
    pub fn decode([width, height]: [usize; 2]) -> Self {
        let pixels = (width as u64).saturating_mul(height as u64);
        Self { decoded: pixels, largest: pixels, ..Self::default() }
    }

    /// Returns the work of scaling, changing or encoding this number of pixels.
    pub const fn scale(pixels: u64) -> Self {
        Self { decoded: 0, largest: 0, scaled: pixels, inflated: 0, nodes: 0 }
    }

    /// Returns the work of parsing, hashing or inflating this number of bytes.
    pub fn bytes(bytes: usize) -> Self {
        Self { inflated: bytes as u64, ..Self::default() }
    }

    /// Returns the total work, in pixels that take as long to decode.
    fn cost(&self) -> u64 {
        let Self { decoded, scaled, inflated, nodes, .. } = *self;
        decoded.saturating_add(scaled).saturating_add(inflated / 4).saturating_add(nodes.saturating_mul(1 << 10))
    }
}

impl Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            decoded: self.decoded.saturating_add(other.decoded),
            largest: self.largest.max(other.largest),
            scaled: self.scaled.saturating_add(other.scaled),
            inflated: self.inflated.saturating_add(other.inflated),
            nodes: self.nodes.saturating_add(other.nodes),
        }
    }
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

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

/// Cancels work if its request is dropped.
struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a permit for a request of an owner, with nothing counted yet.
    pub fn permit(self: &Arc<Self>, owner: &str) -> Permit {
        let mut state = self.state();
        let owner = state.owners.get_key_value(owner).map_or_else(|| owner.into(), |(owner, _)| Arc::clone(owner));
        state.owners.entry(Arc::clone(&owner)).or_default().permits += 1;
        Permit { admission: Arc::clone(self), owner, kept: AtomicUsize::new(0), cost: AtomicU64::new(0) }
    }

    /// Cancels all work that prepares jobs, and refuses further such work.
    pub fn close(&self) {
        let mut state = self.state();
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
        let mut state = self.state();
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
        let mut state = self.admission.state();
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
        let millions = |pixels: u64| pixels >> 20;
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
        let _ends_with_this = CancelOnDrop(flag.clone());
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
        let mut state = self.admission.state();
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
        let mut state = self.admission.state();
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Starts work that runs until something is sent.
    async fn blocked(permit: Arc<Permit>, pixels: u64) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<()>>) {
        let (end, ends) = mpsc::channel();
        let (started, starts) = oneshot::channel();
        let task = tokio::spawn(async move {
            let estimate = Estimate::scale(pixels);
            let work = move |_: &CancelFlag| {
                let _ = started.send(());
                let _ = ends.recv();
                Ok(())
            };
            permit.run(estimate, &CancelFlag::default(), work).await
        });
        let _ = tokio::time::timeout(Duration::from_millis(200), starts).await;
        (end, task)
    }

    #[tokio::test]
    async fn a_client_that_fills_its_threads_delays_no_other_client() {
        let admission = Admission::new(1 << 20, 1);
        let greedy = Arc::new(admission.permit("greedy"));
        let mut held = Vec::new();
        for _ in 0..2 * admission.threads {
            held.push(blocked(Arc::clone(&greedy), SMALL + 1).await);
        }
        for pixels in [SMALL + 1, SMALL] {
            let other = admission.permit("other");
            let cancel = CancelFlag::default();
            let done = other.run(Estimate::scale(pixels), &cancel, |_| Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(10), done).await.unwrap().unwrap(), 7);
        }
        let cancel = CancelFlag::default();
        let small = greedy.run(Estimate::scale(1), &cancel, |_| Ok(8));
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), small).await.unwrap().unwrap(), 8);
        drop(greedy);
        for (end, task) in held {
            drop(end);
            task.await.unwrap().unwrap();
        }
        let state = admission.state();
        assert_eq!((state.owners.len(), state.tasks.len(), state.cost, state.kept), (0, 0, 0, 0));
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_ends_its_work_and_a_waiting_one_never_starts() {
        let admission = Admission::new(1 << 20, 1);
        let permit = Arc::new(admission.permit("a"));
        let (told, hears) = mpsc::channel();
        let endless = {
            let permit = Arc::clone(&permit);
            tokio::spawn(async move {
                let work = move |cancel: &CancelFlag| {
                    let _ = told.send("started");
                    while cancel.check().is_ok() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let _ = told.send("ended");
                    Ok(())
                };
                permit.run(Estimate::default(), &CancelFlag::default(), work).await
            })
        };
        let hears = tokio::task::spawn_blocking(move || {
            assert_eq!(hears.recv(), Ok("started"));
            hears
        });
        let hears = hears.await.unwrap();
        endless.abort();
        let ended = tokio::task::spawn_blocking(move || hears.recv_timeout(Duration::from_secs(10)));
        assert_eq!(ended.await.unwrap(), Ok("ended"));
        let mut held = Vec::new();
        for _ in 0..admission.owner_threads {
            held.push(blocked(Arc::clone(&permit), SMALL + 1).await);
        }
        let cancel = CancelFlag::default();
        let waiting = permit.run(Estimate::scale(SMALL + 1), &cancel, |_| Ok(()));
        assert!(tokio::time::timeout(Duration::from_millis(20), waiting).await.is_err());
        assert_eq!(admission.state().tasks.len(), held.len());
        let cancel = CancelFlag::default();
        cancel.cancel();
        let cancelled = permit.run(Estimate::default(), &cancel, |_| -> Result<()> { panic!("it never starts") }).await;
        assert!(cancelled.unwrap_err().is_cancelled());
        held.into_iter().for_each(|(end, _)| drop(end));
    }

    #[tokio::test]
    async fn a_server_that_goes_down_ends_work_for_jobs_and_finishes_answers() {
        let admission = Admission::new(1 << 20, 1);
        let permit = Arc::new(admission.permit("a"));
        let (end, running) = blocked(Arc::clone(&permit), SMALL + 1).await;
        let mut others = Vec::new();
        for _ in 0..admission.threads {
            others.push(blocked(Arc::clone(&permit), SMALL + 1).await);
        }
        admission.close();
        let (ends, waiting): (Vec<_>, Vec<_>) = others.into_iter().unzip();
        let last = waiting.into_iter().next_back().unwrap();
        assert_eq!(last.await.unwrap().unwrap_err().code, "draining");
        let refused = permit.run(Estimate::default(), &CancelFlag::default(), |_| Ok(())).await;
        assert_eq!(refused.unwrap_err().code, "draining");
        drop((end, ends));
        let _ = running.await;
        assert_eq!(permit.answer(Estimate::default(), |_| Ok(5)).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn work_is_bounded_by_request_and_by_client() {
        let admission = Admission::new(1 << 20, 1);
        let permit = admission.permit("a");
        permit.count(Estimate::decode([1 << 14, 1 << 14]), "image").unwrap();
        permit.count(Estimate::scale(768 << 20), "image").unwrap();
        let error = permit.count(Estimate::bytes(8), "image").unwrap_err();
        assert_eq!((error.status.as_u16(), error.code, error.param.as_deref()), (400, "too_much_work", Some("image")));
        let most = Estimate::scale(MAX_OWNER);
        let enter = |owner: &str| admission.enter(&owner.into(), most, (Purpose::Job, CancelFlag::default()));
        let (turn, _started) = enter("a").unwrap();
        let error = enter("a").err().unwrap();
        assert_eq!((error.status.as_u16(), error.code), (429, "too_many_waiting"));
        assert!(error.retry_after().is_some());
        let others: Vec<_> = ["b", "c", "d"].into_iter().map(|owner| enter(owner).unwrap()).collect();
        assert_eq!(enter("e").err().unwrap().code, "queue_full");
        drop((turn, others));
        assert!(enter("a").is_ok());
    }

    #[tokio::test]
    async fn a_panic_of_work_is_an_error_of_its_request_alone() {
        let admission = Admission::new(1 << 20, 1);
        let permit = admission.permit("a");
        let cancel = CancelFlag::default();
        let panics = permit.run(Estimate::default(), &cancel, |_| -> Result<()> { panic!("in a test") });
        assert_eq!(panics.await.unwrap_err().code, "internal_error");
        assert_eq!(permit.answer(Estimate::default(), |_| Ok(1)).await.unwrap(), 1);
    }

    #[test]
    fn bytes_are_returned_and_no_owner_takes_all_of_them() {
        let admission = Admission::new(100, 10);
        let (first, second) = (admission.permit("a"), admission.permit("a"));
        first.keep(45).unwrap();
        assert_eq!(second.keep(10).unwrap_err().code, "too_many_waiting");
        drop(second);
        let other = admission.permit("b");
        other.keep(50).unwrap();
        assert_eq!(admission.permit("c").keep(10).unwrap_err().code, "queue_full");
        drop(first);
        admission.permit("a").keep(50).unwrap();
        drop(other);
        let state = admission.state();
        assert_eq!((state.kept, state.owners.len()), (0, 0));
        drop(state);
        assert!(Admission::new(100, 200).permit("a").keep(100).is_ok(), "a request of the max size fits");
    }
}
