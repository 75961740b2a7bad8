//! Jobs that workers make, behind a queue: this process opens no model.
//!
//! ```text
//! submit -> store (inputs) -> broker -> worker -> store (result)
//!                               |                    |
//!                   events -> hub -> follow <--------+
//! ```
//!
//! An image of a request is a message of the online queue of its model, and a task here that follows it to its result.
//! Events of the broker say how far it is. They may be lost: the store is looked at, too, now and then.

mod batches;
mod follow;
mod hub;
mod submit;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flux::engine::ModelRecipe;

use self::hub::Hub;
use super::backlog::SOON;
use super::config::{self, Limits};
use super::error::{ApiError, Result};
use super::metrics::{Metrics, QueueStats};
use super::models::Models;
use super::rate::RateLimits;
use super::record::{JobRecord, Status};
use crate::progress::say;
use crate::queue::names;
use crate::queue::online::Online;
use crate::queue::overview::Overview;
use crate::queue::store::Store;
use crate::queue::worker::described;

/// How long the store may take for a small answer.
const STORE_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether the store is there.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The same until the server was ready once.
const FIRST_LOOKS_EVERY: Duration = Duration::from_millis(250);
/// How long it holds what workers said of their model.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// How long workers may take to be told what is not wanted any more.
const LAST_ORDERS: Duration = Duration::from_secs(2);
/// How often that is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// See the module.
pub struct Workers {
    pub models: Models,
    limits: Limits,
    /// Pixels that clients asked for lately.
    pixels: RateLimits,
    metrics: Arc<Metrics>,
    store: Store,
    presigns: bool,
    online: Arc<Online>,
    overview: Overview,
    hub: Arc<Hub>,
    /// Jobs that are not over.
    open: Mutex<Vec<Arc<JobRecord>>>,
    /// Images that are followed.
    followed: AtomicUsize,
    /// What workers said of their models, and when.
    described: Mutex<HashMap<String, (Instant, ModelRecipe)>>,
    /// Files of adapters that the store has, by its names.
    adapters: Mutex<HashMap<PathBuf, String>>,
    is_closed: AtomicBool,
    store_is_away: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Connects. Must be called within a runtime. `is_ready` hears when broker and store are there for the first time.
    pub fn start(
        config: config::Workers,
        models: Models,
        limits: Limits,
        metrics: Arc<Metrics>,
        is_ready: Box<dyn FnOnce() + Send>,
    ) -> Arc<Self> {
        let hub = Arc::new(Hub::default());
        let hears = Arc::clone(&hub);
        let names = models.names().map(str::to_string).collect();
        let online = Online::start(config.broker, names, move |heard| hears.hear(heard));
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
            let _ = self.of_store(STORE_WITHIN, self.store.has(&model)).await;
            if self.away().is_none()
                && let Some(is_ready) = is_ready.take()
            {
                is_ready();
            }
            tokio::time::sleep(if is_ready.is_some() { FIRST_LOOKS_EVERY } else { LOOK_EVERY }).await;
        }
    }

    /// What the store answers.
    ///
    /// Errors when it does not, within `time`.
    async fn of_store<T>(&self, time: Duration, asks: impl Future<Output = flux::Result<T>>) -> Result<T> {
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
            _ => Err(ApiError::unavailable("store_away", "the store of results does not answer", SOON)),
        }
    }

    /// What workers draw with under this name.
    ///
    /// Errors when none ever said so.
    async fn description(&self, name: &str) -> Result<ModelRecipe> {
        let known = locked(&self.described).get(name).filter(|(since, _)| since.elapsed() < KNOWN_FOR).cloned();
        if let Some((_, model)) = known {
            return Ok(model);
        }
        let model = self.of_store(STORE_WITHIN, described(&self.store, name)).await?;
        let model = model.ok_or_else(|| {
            ApiError::unavailable("no_workers", format!("the store knows no model `{name}`: no worker has run"), SOON)
        })?;
        locked(&self.described).insert(name.to_string(), (Instant::now(), model.clone()));
        Ok(model)
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("draining", "the server is going down", SOON));
        }
        Ok(())
    }

    /// What is away, if something is.
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

    /// The jobs that are not over.
    fn open(&self) -> MutexGuard<'_, Vec<Arc<JobRecord>>> {
        let mut open = locked(&self.open);
        open.retain(|job| !job.status().is_over());
        open
    }

    /// Takes nothing more, and waits until all that is there is made. After `timeout` the rest is ended, and workers
    /// are told.
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
            job.fail(ApiError::unavailable("draining", "the server went down before the job was made", SOON));
        }
        wait_until(&|| self.followed.load(Ordering::Relaxed) == 0, LAST_ORDERS);
    }
}
