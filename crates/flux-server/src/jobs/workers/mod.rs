//! The backend with remote workers behind a queue. This process loads no model.
//!
//! ```text
//! submit -> store (inputs) -> broker -> worker -> store (result)
//!                               |                    |
//!                   events -> hub -> follow <--------+
//! ```
//!
//! Each image of a request is a message in the online queue of its model, with a task that follows it to its result.
//! Events from the broker report progress. They may be lost, so the store is checked from time to time as well. Start
//! with `submit`. This folder must not know routes or HTTP bodies.

mod batches;
mod follow;
mod hub;
mod submit;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flux::engine::ModelRecipe;
use parking_lot::{Mutex, MutexGuard};

use self::hub::Hub;
use crate::http::config::{self, Limits};
use crate::http::error::{ApiError, Result, SOON};
use crate::http::rate::RateLimits;
use crate::jobs::metrics::{Metrics, QueueStats};
use crate::jobs::models::Models;
use crate::jobs::record::{JobRecord, Status};
use flux_queue::names;
use flux_queue::online::Online;
use flux_queue::overview::Overview;
use flux_queue::store::Store;
use flux_queue::worker::described;
use flux_runtime::progress::say;

/// The timeout for small requests to the store.
const STORE_WITHIN: Duration = Duration::from_secs(5);
/// The interval between checks of the store.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The interval between checks until the server is first ready.
const FIRST_LOOKS_EVERY: Duration = Duration::from_millis(250);
/// The time for which the description of a model is cached.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// The time for sending cancellations at shutdown.
const LAST_ORDERS: Duration = Duration::from_secs(2);
/// The interval between checks during shutdown.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// The backend. See the [module](self).
pub struct Workers {
    pub models: Models,
    limits: Limits,
    /// Pixels that clients requested recently.
    pixels: RateLimits,
    metrics: Arc<Metrics>,
    store: Store,
    presigns: bool,
    online: Arc<Online>,
    overview: Overview,
    hub: Arc<Hub>,
    /// Unfinished jobs.
    open: Mutex<Vec<Arc<JobRecord>>>,
    /// The number of images being followed.
    followed: AtomicUsize,
    /// Descriptions of models, with the time at which they were read.
    described: Mutex<HashMap<String, (Instant, ModelRecipe)>>,
    /// Adapter files that are in the store, with their object names.
    adapters: Mutex<HashMap<PathBuf, String>>,
    is_closed: AtomicBool,
    store_is_away: AtomicBool,
}

impl Workers {
    /// Connects to broker and store. Must be called within a runtime. `is_ready` is called once both are reachable.
    pub fn start(
        config: config::Workers,
        models: Models,
        limits: Limits,
        metrics: Arc<Metrics>,
        is_ready: Box<dyn FnOnce() + Send>,
    ) -> Arc<Self> {
        let hub = Arc::new(Hub::default());
        let receiver = Arc::clone(&hub);
        let names = models.names().map(str::to_string).collect();
        let online = Online::start(config.broker, names, move |event| receiver.receive(event));
        let workers = Arc::new(Self {
            models,
            pixels: RateLimits::new(limits.client_pixels),
            limits,
            metrics,
            store: config.store,
            presigns: config.presigns,
            online,
            overview: Overview::default(),
            hub,
            open: Mutex::default(),
            followed: AtomicUsize::new(0),
            described: Mutex::default(),
            adapters: Mutex::default(),
            is_closed: AtomicBool::new(false),
            store_is_away: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&workers).look_after_the_store(is_ready));
        workers
    }

    async fn look_after_the_store(self: Arc<Self>, is_ready: Box<dyn FnOnce() + Send>) {
        let mut is_ready = Some(is_ready);
        let model = names::model(self.models.name(0));
        loop {
            let _ = self.await_store(STORE_WITHIN, self.store.has(&model)).await;
            if self.away().is_none()
                && let Some(is_ready) = is_ready.take()
            {
                is_ready();
            }
            tokio::time::sleep(if is_ready.is_some() { FIRST_LOOKS_EVERY } else { LOOK_EVERY }).await;
        }
    }

    /// Awaits a request to the store.
    ///
    /// Errors if the store fails, or does not answer within `time`.
    async fn await_store<T>(&self, time: Duration, asks: impl Future<Output = flux::Result<T>>) -> Result<T> {
        let answer = tokio::time::timeout(time, asks).await;
        let is_away = !matches!(answer, Ok(Ok(_)));
        if self.store_is_away.swap(is_away, Ordering::Relaxed) != is_away {
            match &answer {
                Ok(Err(error)) => say(&format!("note: {error}; trying again")),
                Err(_) => say("note: the store does not answer; trying again"),
                Ok(Ok(_)) => say("note: the store is back"),
            }
        }
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(ApiError::unavailable("store_away", "the result store does not answer", SOON)),
        }
    }

    /// Returns the description of a model, as registered by workers.
    ///
    /// Errors if no worker has registered it.
    async fn description(&self, name: &str) -> Result<ModelRecipe> {
        let known = self.described.lock().get(name).filter(|(since, _)| since.elapsed() < KNOWN_FOR).cloned();
        if let Some((_, model)) = known {
            return Ok(model);
        }
        let model = self.await_store(STORE_WITHIN, described(&self.store, name)).await?;
        let model = model.ok_or_else(|| {
            ApiError::unavailable("no_workers", format!("the store has no model `{name}`: no worker has run yet"), SOON)
        })?;
        self.described.lock().insert(name.to_string(), (Instant::now(), model.clone()));
        Ok(model)
    }

    pub fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("draining", "the server is shutting down", SOON));
        }
        Ok(())
    }

    /// Returns the unreachable part, if any.
    fn away(&self) -> Option<&'static str> {
        match () {
            () if !self.online.is_there() => Some("broker_away"),
            () if self.store_is_away.load(Ordering::Relaxed) => Some("store_away"),
            () => None,
        }
    }

    pub fn stats(&self) -> QueueStats {
        let mut stats = QueueStats { is_ready: true, away: self.away(), ..QueueStats::default() };
        stats.is_closed = self.is_closed.load(Ordering::Relaxed);
        let mut requests = 0;
        for job in self.open().iter() {
            match job.status() {
                Status::Queued => {
                    requests += 1;
                    stats.waiting += job.count;
                }
                Status::Running => stats.running += job.count,
                _ => {}
            }
        }
        stats.is_full = requests >= self.limits.queue_max;
        stats
    }

    /// Returns the unfinished jobs.
    fn open(&self) -> MutexGuard<'_, Vec<Arc<JobRecord>>> {
        let mut open = self.open.lock();
        open.retain(|job| !job.status().is_over());
        open
    }

    /// Accepts no more jobs, and waits until the accepted ones are done. After `timeout`, fails the rest and sends
    /// cancellations to the workers.
    pub fn drain(&self, timeout: Duration) {
        self.is_closed.store(true, Ordering::Relaxed);
        let wait_until = |is_done: &dyn Fn() -> bool, time: Duration| {
            let end = Instant::now() + time;
            while !is_done() && Instant::now() < end {
                std::thread::sleep(DRAIN_LOOK);
            }
        };
        wait_until(&|| self.open().is_empty(), timeout);
        let rest = self.open().clone();
        for job in rest {
            job.fail(ApiError::unavailable("draining", "the server shut down before the job was done", SOON));
        }
        wait_until(&|| self.followed.load(Ordering::Relaxed) == 0, LAST_ORDERS);
    }
}
