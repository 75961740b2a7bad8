//! `flux worker`: an engine that consumes jobs from the broker.
//!
//! ```text
//! online, batch -> delivery -> (there already? cancelled? late?) -> turns -> draw -> store -> ack
//! ```
//!
//! Each delivered message is a task until it is answered. The engine groups compatible jobs into batches, and prefers
//! the online queue. If a worker dies, the broker redelivers its messages to other workers at once. Redelivered jobs
//! run alone, see [`turns`]. This folder must not know the HTTP server. Start with [`delivery`].

mod cancelled;
mod delivery;
mod draw;
mod events;
mod inputs;
mod trials;
mod turns;
mod watchdog;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flux::engine::{Engine, ModelRecipe};
use flux::error::ErrorKind;
use flux::files::ModelPaths;
use flux::{Error, Result};
use futures_util::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

use self::cancelled::Cancelled;
use self::delivery::Delivered;
use self::inputs::Spool;
use self::trials::Trials;
use self::turns::Turns;
use self::watchdog::Watchdog;
use super::broker::{Broker, Link};
use super::message::ControlMessage;
use super::names::{self, CONTROL, Lane};
use super::store::Store;
use super::wait::Backoff;
use flux_runtime::progress::say;

/// The interval between checks for shutdown.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The interval between updates of the heartbeat file.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// The max size of a model's description, in bytes.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// The configuration of a worker.
pub struct Config {
    /// The name of the model in queues and in the store.
    pub model: String,
    pub broker: Broker,
    pub store: Store,
    /// Max images per batch of the engine.
    pub batch_max: usize,
    /// Max pixels of an image.
    pub max_pixels: usize,
    /// The time limit of an image. The worker exits if an image exceeds it.
    pub job_limit: Duration,
    /// The time limit for running jobs at shutdown.
    pub drain: Duration,
    /// A file that is touched while the worker, the broker and the store are alive.
    pub heartbeat: Option<PathBuf>,
    /// `true` to log each job.
    pub is_verbose: bool,
    pub is_quiet: bool,
}

/// Counters of a worker.
#[derive(Debug, Default)]
pub struct Done {
    pub drawn: AtomicUsize,
    /// Jobs whose result already existed.
    pub there: AtomicUsize,
    pub failed: AtomicUsize,
    /// Messages sent to the dead-letter queue.
    pub dead: AtomicUsize,
}

/// The state shared by all tasks of a worker.
struct Worker {
    config: Config,
    engine: Arc<Engine>,
    /// The description of the model, without name and paths.
    model: ModelRecipe,
    turns: Turns,
    trials: Trials,
    cancelled: Cancelled,
    watchdog: Arc<Watchdog>,
    spool: Spool,
    /// Locks by key: jobs with equal keys wait for each other.
    same: Mutex<HashMap<blake3::Hash, Arc<tokio::sync::Mutex<()>>>>,
    done: Arc<Done>,
    /// Consecutive failures.
    failures: AtomicUsize,
    /// `true` if the last request to the store failed.
    store_is_away: AtomicBool,
    /// `true` once the broker has accepted a connection.
    was_connected: AtomicBool,
    /// Set at shutdown, when retries stop.
    gives_up: AtomicBool,
}

/// Returns the description of a model as stored: without name and paths.
pub fn description(model: ModelRecipe) -> ModelRecipe {
    ModelRecipe { name: String::new(), paths: ModelPaths::default(), ..model }
}

/// Registers a model in the store under this name.
///
/// Errors if the name belongs to another model, unless `replaces` is set.
pub async fn register(store: &Store, name: &str, model: &ModelRecipe, replaces: bool) -> Result<()> {
    let object = names::model(name);
    let json = serde_json::to_vec(model).map_err(|e| Error::new(format!("cannot describe the model: {e}")))?;
    if replaces {
        return store.put(&object, json).await;
    }
    if store.put_new(&object, json.into()).await? || described(store, name).await?.as_ref() == Some(model) {
        return Ok(());
    }
    Err(Error::usage(format!("the store has another model named `{name}`, with other weights, formats or precision"))
        .at("--name")
        .hint("choose another name, or replace the model in the store with `--register`"))
}

/// Returns the model registered under this name, if any.
pub async fn described(store: &Store, name: &str) -> Result<Option<ModelRecipe>> {
    let Some(json) = store.get(&names::model(name), MAX_DESCRIPTION).await? else { return Ok(None) };
    let model = serde_json::from_slice(&json).map_err(|e| {
        Error::new(format!("the description of the model `{name}` in the store is damaged: {e}"))
            .hint("replace it with `flux worker --register`")
    });
    model.map(Some)
}

/// Runs a worker until `is_ended` returns `true`. Running jobs then have [`Config::drain`] to finish. Calls `is_ready`
/// with the address of the broker.
///
/// Errors if the store knows another model by this name, the system starts no thread, or the broker refuses this
/// worker.
pub async fn run(
    engine: Arc<Engine>,
    config: Config,
    is_ended: impl Fn() -> bool + Send + 'static,
    is_ready: impl FnOnce(&str),
) -> Result<Arc<Done>> {
    let model = description(engine.model());
    register(&config.store, &config.model, &model, false).await?;
    let watchdog = Watchdog::start(config.job_limit)?;
    let worker = Arc::new(Worker {
        engine,
        model,
        turns: Turns::default(),
        trials: Trials::default(),
        cancelled: Cancelled::default(),
        watchdog,
        spool: Spool::new()?,
        same: Mutex::default(),
        done: Arc::default(),
        failures: AtomicUsize::new(0),
        store_is_away: AtomicBool::new(false),
        was_connected: AtomicBool::new(false),
        gives_up: AtomicBool::new(false),
        config,
    });
    let (end, ends) = watch::channel(false);
    tokio::spawn(async move {
        while !is_ended() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let _ = end.send(true);
    });
    is_ready(&worker.config.broker.address());
    // The tasks mostly wait, so one thread is enough. Generation runs on threads of its own.
    LocalSet::new().run_until(worker.serve(ends)).await?;
    Ok(Arc::clone(&worker.done))
}

impl Worker {
    fn note(&self, text: &str) {
        if !self.config.is_quiet {
            say(&format!("note: {text}"));
        }
    }

    fn detail(&self, text: &str) {
        if self.config.is_verbose {
            say(text);
        }
    }

    /// Consumes, and reconnects as needed.
    ///
    /// Errors if the broker refuses the first connection.
    async fn serve(self: &Arc<Self>, mut ends: watch::Receiver<bool>) -> Result<()> {
        let (mut tasks, mut backoff) = (JoinSet::new(), Backoff::default());
        while !*ends.borrow() {
            match self.consume(&mut tasks, &mut ends, &mut backoff).await {
                Ok(()) => break,
                // A broker that is starting may refuse a client that it accepted before.
                Err(error) if error.kind() == ErrorKind::Usage && !self.was_connected.load(Ordering::Relaxed) => {
                    return Err(error);
                }
                Err(error) => self.note(&format!("{error}; trying again")),
            }
            let wait = backoff.next();
            let _ = tokio::time::timeout(wait, ends.wait_for(|is_ended| *is_ended)).await;
        }
        // Unacknowledged results are in the store, or another worker generates them.
        self.gives_up.store(true, Ordering::Relaxed);
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        self.trials.take_back(&self.config.store).await;
        Ok(())
    }

    /// Consumes until the worker is stopped. Events use a second connection, since a broker whose disk is full stops
    /// reading from connections that publish, but still delivers over the others.
    ///
    /// Errors if a connection ends, or the handler of a message panicked. The broker then redelivers the message.
    async fn consume(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        ends: &mut watch::Receiver<bool>,
        backoff: &mut Backoff,
    ) -> Result<()> {
        let (link, event_link) = (self.config.broker.connect().await?, self.config.broker.connect().await?);
        let event_link = Arc::new(event_link);
        let done = self.deliver(&link, &event_link, tasks, ends, backoff).await;
        // Without closing, the broker would leave unanswered messages with this worker.
        link.close().await;
        event_link.close().await;
        done
    }

    /// Handles the messages that a connection delivers.
    ///
    /// Errors as [`Worker::consume`].
    async fn deliver(
        self: &Arc<Self>,
        link: &Link,
        event_link: &Arc<Link>,
        tasks: &mut JoinSet<()>,
        ends: &mut watch::Receiver<bool>,
        backoff: &mut Backoff,
    ) -> Result<()> {
        link.declare_model(&self.config.model).await?;
        let group = self.config.batch_max * self.engine.stats().devices.max(1);
        let (online_channel, mut online) = self.consumer(link, Lane::Online, 2 * group).await?;
        let (batch_channel, mut batch) = self.consumer(link, Lane::Batch, group).await?;
        let mut control = link.subscribe(CONTROL, &[""]).await?;
        *backoff = Backoff::default();
        self.was_connected.store(true, Ordering::Relaxed);
        self.detail("connected");
        let mut beat = tokio::time::interval(BEAT_EVERY);
        loop {
            let (lane, delivery) = tokio::select! {
                biased;
                _ = ends.wait_for(|is_ended| *is_ended) => break,
                delivery = online.next() => (Lane::Online, delivery),
                delivery = batch.next() => (Lane::Batch, delivery),
                order = control.next() => {
                    let order = received(link, order)?;
                    self.obey(&order.data);
                    continue;
                }
                _ = beat.tick() => {
                    self.beat();
                    forget_ended(tasks)?;
                    event_link.check()?;
                    continue;
                }
            };
            let delivered = Delivered::new(received(link, delivery)?, Arc::clone(event_link), lane, &self.turns);
            let worker = Arc::clone(self);
            tasks.spawn_local(async move { worker.handle(delivered).await });
        }
        for (channel, consumer) in [(&online_channel, &online), (&batch_channel, &batch)] {
            // If this fails, the connection is lost, and nothing more is delivered.
            let _ = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
        }
        self.finish(tasks).await;
        Ok(())
    }

    /// Waits for running jobs, within the time limit.
    async fn finish(&self, tasks: &mut JoinSet<()>) {
        if tasks.is_empty() {
            return;
        }
        self.note(&format!("finishing {} jobs", tasks.len()));
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.config.drain, all).await.is_err() {
            self.note(&format!("returning {} jobs to the queue", tasks.len()));
        }
    }

    async fn consumer(&self, link: &Link, lane: Lane, prefetch: usize) -> Result<(Channel, Consumer)> {
        let consuming = async {
            let channel = link.connection.create_channel().await?;
            let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            let queue = lane.queue(&self.config.model);
            let options = BasicConsumeOptions::default();
            let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
            Ok::<_, lapin::Error>((channel, consumer))
        };
        consuming.await.map_err(|e| link.error(&e))
    }

    fn obey(&self, order: &[u8]) {
        match serde_json::from_slice::<ControlMessage>(order) {
            Ok(ControlMessage { cancel, .. }) if names::is_batch(&cancel) || names::is_job(&cancel) => {
                self.cancelled.cancel(&cancel);
            }
            _ => self.note("ignored an invalid control message"),
        }
    }

    /// Touches the heartbeat file, which liveness probes check.
    fn beat(&self) {
        let Some(file) = self.config.heartbeat.as_ref() else { return };
        if self.store_is_away.load(Ordering::Relaxed) {
            return;
        }
        if let Err(e) = std::fs::write(file, b"") {
            self.note(&format!("cannot write {}: {e}", file.display()));
        }
    }
}

/// Removes finished tasks.
///
/// Errors if a task panicked, which leaves its message unanswered.
fn forget_ended(tasks: &mut JoinSet<()>) -> Result<()> {
    while let Some(ended) = tasks.try_join_next() {
        if let Err(e) = ended
            && e.is_panic()
        {
            return Err(Error::new("the handler of a message panicked, which is a bug in flux")
                .hint("the message is delivered again, and is dead after several attempts"));
        }
    }
    Ok(())
}

/// Returns the next delivery of a consumer.
///
/// Errors if the connection is lost.
fn received(
    link: &Link,
    delivery: Option<lapin::Result<lapin::message::Delivery>>,
) -> Result<lapin::message::Delivery> {
    match delivery {
        Some(delivery) => delivery.map_err(|e| link.error(&e)),
        None => Err(Error::new("the broker ended the connection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_told_and_an_end_is_not() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        tokio::task::yield_now().await;
        forget_ended(&mut tasks).unwrap();
        assert!(tasks.is_empty());
        tasks.spawn(async { panic!("an unexpected message") });
        tokio::task::yield_now().await;
        assert!(forget_ended(&mut tasks).is_err_and(|e| e.to_string().contains("panicked")));
    }
}
