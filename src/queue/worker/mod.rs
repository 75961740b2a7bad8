//! `flux worker`: an engine behind a consumer.
//!
//! ```text
//! online, batch -> delivery -> (there already? cancelled? late?) -> turns -> draw -> store -> ack
//! ```
//!
//! Each message that the broker hands over is a task of its own until it is answered. The engine groups those that it
//! may make as one batch, and begins those of the online queue first. A worker that dies has its messages handed to
//! another one at once; each of them was delivered once more then, and is drawn alone, see [`turns`].

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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flux::engine::{Engine, ModelRecipe};
use flux::error::ErrorKind;
use flux::files::ModelPaths;
use flux::{Error, Result};
use futures_util::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
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
use crate::progress::say;

/// How often it is looked whether the worker is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the file for probes is touched.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// The longest description of a model.
const MOST_DESCRIPTION: u64 = 1 << 20;

/// What a worker is started with.
pub struct Config {
    /// How the model is called in queues and in the store.
    pub model: String,
    pub broker: Broker,
    pub store: Store,
    /// Images that are made at once.
    pub batch_max: usize,
    /// Pixels of an image.
    pub max_pixels: usize,
    /// How long an image may take before the worker ends itself.
    pub job_limit: Duration,
    /// How long what was begun may take once the worker is to end.
    pub drain: Duration,
    /// A file that is touched while the worker lives, and the broker and the store are there.
    pub heartbeat: Option<PathBuf>,
    /// Whether each job is told.
    pub is_verbose: bool,
    pub is_quiet: bool,
}

/// What a worker did.
#[derive(Debug, Default)]
pub struct Done {
    pub drawn: AtomicUsize,
    /// Jobs whose result was there.
    pub there: AtomicUsize,
    pub failed: AtomicUsize,
    /// Messages that went to the dead.
    pub dead: AtomicUsize,
}

/// What all tasks of a worker share.
struct Worker {
    config: Config,
    engine: Arc<Engine>,
    /// What it draws with, without paths.
    model: ModelRecipe,
    turns: Turns,
    trials: Trials,
    cancelled: Cancelled,
    watchdog: Arc<Watchdog>,
    spool: Spool,
    /// Jobs that ask for one result wait for each other.
    same: Mutex<HashMap<blake3::Hash, Arc<tokio::sync::Mutex<()>>>>,
    done: Arc<Done>,
    /// Images that failed here since the last one that did not.
    failures: AtomicUsize,
    /// Whether the store is away, as far as the worker knows.
    store_is_away: AtomicBool,
    /// Whether the broker ever took this worker.
    was_connected: AtomicBool,
    /// Nothing is waited for any more.
    gives_up: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the store says of a model.
pub fn description(model: ModelRecipe) -> ModelRecipe {
    ModelRecipe { name: String::new(), paths: ModelPaths::default(), ..model }
}

/// Tells the store what workers draw with under this name.
///
/// Errors when the name is that of another model, unless it `replaces` that one.
pub async fn register(store: &Store, name: &str, model: &ModelRecipe, replaces: bool) -> Result<()> {
    let object = names::model(name);
    let json = serde_json::to_vec(model).map_err(|e| Error::new(format!("cannot describe the model: {e}")))?;
    if replaces {
        return store.put(&object, json).await;
    }
    if store.put_new(&object, json.into()).await? || described(store, name).await?.as_ref() == Some(model) {
        return Ok(());
    }
    Err(Error::usage(format!("the store knows another model as `{name}`: other weights, formats or precision"))
        .at("--name")
        .hint("give this one another name, or replace that one with `--register`"))
}

/// What workers draw with under this name, if one ever did.
pub async fn described(store: &Store, name: &str) -> Result<Option<ModelRecipe>> {
    let Some(json) = store.get(&names::model(name), MOST_DESCRIPTION).await? else { return Ok(None) };
    let model = serde_json::from_slice(&json).map_err(|e| {
        Error::new(format!("what the store says of the model `{name}` is damaged: {e}"))
            .hint("write it anew with `flux worker --register`")
    });
    model.map(Some)
}

/// Works until it is told to end; then what was begun is finished, within [`Config::drain`].
///
/// Errors when the store knows another model by this name, the model cannot draw, or the broker refuses this worker.
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
    // Tasks wait, for the most part: one thread is enough for them, and drawing has its own.
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

    /// Consumes, and connects again where the connection ends.
    ///
    /// Errors when the broker refuses it from the first.
    async fn serve(self: &Arc<Self>, mut ends: watch::Receiver<bool>) -> Result<()> {
        let (mut tasks, mut backoff) = (JoinSet::new(), Backoff::default());
        while !*ends.borrow() {
            match self.consume(&mut tasks, &mut ends, &mut backoff).await {
                Ok(()) => break,
                // One that it took before may be refused while the broker starts.
                Err(error) if error.kind() == ErrorKind::Usage && !self.was_connected.load(Ordering::Relaxed) => {
                    return Err(error);
                }
                Err(error) => self.note(&format!("{error}; trying again")),
            }
            let wait = backoff.next();
            let _ = tokio::time::timeout(wait, ends.wait_for(|is_ended| *is_ended)).await;
        }
        // What could not be acknowledged is in the store, or is drawn by another worker.
        self.gives_up.store(true, Ordering::Relaxed);
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        self.trials.take_back(&self.config.store).await;
        Ok(())
    }

    /// Works over two connections, until the worker is to end. What is told goes over one of its own: a broker without
    /// disk reads nothing more from those that send, and hands out what it has over the others.
    ///
    /// Errors when a connection ends, or the handling of a message panicked: the broker delivers it again then.
    async fn consume(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        ends: &mut watch::Receiver<bool>,
        backoff: &mut Backoff,
    ) -> Result<()> {
        let (link, telling) = (self.config.broker.connect().await?, self.config.broker.connect().await?);
        let telling = Arc::new(telling);
        let done = self.deliver(&link, &telling, tasks, ends, backoff).await;
        // Without it, messages that nobody answers any more would stay with this worker.
        link.close().await;
        telling.close().await;
        done
    }

    /// Handles what a connection delivers.
    ///
    /// Errors as [`Worker::consume`].
    async fn deliver(
        self: &Arc<Self>,
        link: &Link,
        telling: &Arc<Link>,
        tasks: &mut JoinSet<()>,
        ends: &mut watch::Receiver<bool>,
        backoff: &mut Backoff,
    ) -> Result<()> {
        link.declare_model(&self.config.model).await?;
        let group = self.config.batch_max * self.engine.stats().devices.max(1);
        let (online_channel, mut online) = self.consumer(link, Lane::Online, 2 * group).await?;
        let (batch_channel, mut batch) = self.consumer(link, Lane::Batch, group).await?;
        let mut control = link.hear(CONTROL, &[""]).await?;
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
                    telling.check()?;
                    continue;
                }
            };
            let delivered = Delivered::new(received(link, delivery)?, Arc::clone(telling), lane, &self.turns);
            let worker = Arc::clone(self);
            tasks.spawn_local(async move { worker.handle(delivered).await });
        }
        for (channel, consumer) in [(&online_channel, &online), (&batch_channel, &batch)] {
            // Where this fails the connection is gone, and nothing is delivered any more.
            let _ = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
        }
        self.finish(tasks).await;
        Ok(())
    }

    /// Finishes what was delivered, as far as there is time.
    async fn finish(&self, tasks: &mut JoinSet<()>) {
        if tasks.is_empty() {
            return;
        }
        self.note(&format!("finishing {} jobs", tasks.len()));
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.config.drain, all).await.is_err() {
            self.note(&format!("{} jobs go back to the queue", tasks.len()));
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
            _ => self.note("an order that is none was passed over"),
        }
    }

    /// Shows probes that the worker lives.
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

/// Forgets messages that were answered.
///
/// Errors when a task panicked, whose message has no answer.
fn forget_ended(tasks: &mut JoinSet<()>) -> Result<()> {
    while let Some(ended) = tasks.try_join_next() {
        if let Err(e) = ended
            && e.is_panic()
        {
            return Err(Error::new("the handling of a message panicked, which is an error of this program")
                .hint("it is delivered again, and is dead after several times"));
        }
    }
    Ok(())
}

/// A delivery of a consumer, which has none once its connection is gone.
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
        tasks.spawn(async { panic!("a message that nobody thought of") });
        tokio::task::yield_now().await;
        assert!(forget_ended(&mut tasks).is_err_and(|e| e.to_string().contains("panicked")));
    }
}
