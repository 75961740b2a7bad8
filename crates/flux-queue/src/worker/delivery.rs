//! The handling of a message, from its delivery to its acknowledgement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flux::error::ErrorKind;
use flux::{Error, Result};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use tokio::sync::{Mutex, mpsc};

use super::draw::{self, How, Undrawn, public_text};
use super::events::event;
use super::trials::Tried;
use super::turns::{Redelivered, Turn, Turns};
use super::{Worker, watchdog};
use crate::broker::{DELIVERY_LIMIT, Link, Outgoing};
use crate::dead::{ORIGIN, REASON};
use crate::message::{self, EventMessage, Happened, JobMessage};
use crate::names::{self, DEAD, Lane};
use crate::wait::Backoff;

/// The delay before a job is requeued after an error of this worker.
const PAUSE: Duration = Duration::from_secs(3);
/// Consecutive failures after which the worker exits, since its device must be broken.
const MAX_FAILURES: usize = 8;
/// The max length of a reason, in bytes.
const MAX_REASON: usize = 2000;

/// A delivered message.
pub struct Delivered {
    delivery: Delivery,
    /// The connection for events. The acknowledgement uses the connection of the delivery.
    link: Arc<Link>,
    lane: Lane,
    /// The number of the delivery, unique within this worker.
    number: u64,
    /// Earlier deliveries of the message.
    before: i64,
    /// The time of arrival.
    since: Instant,
    /// Set while this redelivery counts as innocent, see [`super::turns`].
    redelivered: Option<Redelivered>,
}

/// The answer to a message.
enum Answer {
    /// Done: acknowledge.
    Ack,
    /// No worker can process it: dead-letter with this reason.
    Dead(String),
    /// Another worker may process it: requeue.
    Back,
}

impl Delivered {
    pub fn new(delivery: Delivery, link: Arc<Link>, lane: Lane, turns: &Turns) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let headers = delivery.properties.headers().as_ref();
        let before =
            headers.and_then(|headers| headers.inner().get("x-delivery-count")).and_then(AMQPValue::as_long_long_int);
        // The header is untrusted.
        let before = before.unwrap_or(0).clamp(0, DELIVERY_LIMIT);
        let redelivered = (before > 0).then(|| turns.redelivered());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { delivery, link, lane, number, before, since: Instant::now(), redelivered }
    }
}

impl Worker {
    /// Processes a message and answers it.
    pub(super) async fn handle(self: Arc<Self>, mut delivered: Delivered) {
        let answer = match JobMessage::read(&delivered.delivery.data) {
            Ok(job) => {
                // `work` errors if the worker is giving up: requeue.
                let answer = self.work(&mut delivered, &job).await.unwrap_or(Answer::Back);
                self.cancelled.forget(delivered.number);
                answer
            }
            Err(error) => Answer::Dead(error.what().to_string()),
        };
        drop(delivered.redelivered.take());
        let Delivered { delivery, link, .. } = &delivered;
        let answered = match answer {
            Answer::Ack => delivery.ack(BasicAckOptions::default()).await,
            Answer::Back => delivery.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await,
            Answer::Dead(reason) => {
                self.done.dead.fetch_add(1, Ordering::Relaxed);
                self.note(&format!("moving a message to the dead letters: {}", flux::error::shown(&reason)));
                match self.bury(link, delivery, &reason).await {
                    Ok(()) => delivery.ack(BasicAckOptions::default()).await,
                    // The broker then dead-letters it, with a less specific reason.
                    Err(_) => delivery.reject(BasicRejectOptions { requeue: false }).await,
                }
            }
        };
        if let Err(e) = answered {
            // The connection is lost, so the broker redelivers the message. The next worker finds the result.
            self.detail(&format!("an acknowledgement was lost: {e}"));
        }
    }

    /// Sends a message to the dead-letter queue, with the reason.
    async fn bury(&self, link: &Link, delivery: &Delivery, reason: &str) -> Result<()> {
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        let mut headers = FieldTable::default();
        headers.insert(REASON.into(), text(&flux::error::shortened(reason, MAX_REASON)));
        headers.insert(ORIGIN.into(), text(delivery.routing_key.as_str()));
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let bytes = delivery.data.clone();
        let refused = link.send(&[Outgoing { exchange: DEAD, key: String::new(), bytes, properties }]).await?;
        if refused.is_empty() { Ok(()) } else { Err(Error::new("the dead-letter queue is full")) }
    }

    /// Processes a job.
    ///
    /// Errors if the worker is giving up.
    async fn work(self: &Arc<Self>, delivered: &mut Delivered, job: &JobMessage) -> Result<Answer> {
        if let Some(reason) = self.refuse(job, delivered.lane) {
            return Ok(Answer::Dead(reason));
        }
        let wanted_for = job.wanted_for();
        if self.is_unwanted(delivered, job, wanted_for).await? {
            return Ok(Answer::Ack);
        }
        // Jobs with equal keys, and repeated deliveries of a job, are generated once.
        let same = Arc::clone(self.same.lock().entry(job.key.hash).or_default());
        let answer = self.work_once(delivered, job, wanted_for, &same).await;
        let mut all = self.same.lock();
        // Two references are left: this one and the one in the map.
        if Arc::strong_count(&same) == 2 {
            all.remove(&job.key.hash);
        }
        answer
    }

    /// Returns the reason why this worker must not process a job, if there is one.
    fn refuse(&self, job: &JobMessage, lane: Lane) -> Option<String> {
        let model = &self.config.model;
        if job.model != *model {
            return Some(format!("the job is for the model `{}`, but was in a queue of `{model}`", job.model));
        }
        if job.priority != lane {
            return Some("the job was in the queue of another priority".to_string());
        }
        match message::key(&self.model, &job.recipe, job.format) {
            Ok(key) if key == job.key => None,
            Ok(_) => Some(format!(
                "its key does not match its recipe with the model `{model}`: the message was written by hand, or for \
                 another model or version of flux; submit its list again"
            )),
            Err(error) => Some(error.what().to_string()),
        }
    }

    /// Returns `true` if the job is past its deadline or cancelled.
    async fn is_unwanted(&self, delivered: &Delivered, job: &JobMessage, wanted_for: Option<Duration>) -> Result<bool> {
        if wanted_for.is_some_and(|wanted_for| delivered.since.elapsed() >= wanted_for) {
            self.detail(&format!("job {} is past its deadline", job.job));
            self.forget_order(job).await?;
            return Ok(true);
        }
        let is_cancelled = self.insist(async || self.cancelled.has(job, &self.config.store).await).await?;
        if is_cancelled {
            self.detail(&format!("job {} is cancelled", job.job));
            self.forget_order(job).await?;
        }
        Ok(is_cancelled)
    }

    /// Removes the object that marks a job as cancelled.
    async fn forget_order(&self, job: &JobMessage) -> Result<()> {
        if job.batch.is_some() && !self.cancelled.is_named(&job.job) {
            return Ok(());
        }
        let order = names::cancelled_job(&job.job);
        self.insist(async || self.config.store.remove(&order).await).await
    }

    async fn work_once(
        self: &Arc<Self>,
        delivered: &mut Delivered,
        job: &JobMessage,
        wanted_for: Option<Duration>,
        same: &Mutex<()>,
    ) -> Result<Answer> {
        let _only = match same.try_lock() {
            Ok(only) => only,
            Err(_) => {
                // The running job may wait until no innocent job is left, so this one must not count as innocent while
                // it waits.
                delivered.redelivered.take();
                same.lock().await
            }
        };
        if self.is_there(delivered, job).await? {
            self.end_trial(delivered, job).await?;
            return Ok(Answer::Ack);
        }
        let (store, name) = (&self.config.store, job.key.trial());
        let tried = match delivered.before {
            0 => Tried::default(),
            before => self.insist(async || Tried::read(store, &name, before).await).await?,
        };
        if let Some(reason) = tried.dead() {
            // A job that is sent again starts with fresh attempts.
            self.end_trial(delivered, job).await?;
            return Ok(Answer::Dead(reason));
        }
        let mut fetched = match self.insist(async || self.spool.fetch(job, store).await).await {
            Err(error) if error.kind() == ErrorKind::Usage => return self.fail(&delivered.link, job, &error).await,
            fetched => fetched?,
        };
        let is_alone = delivered.before > 0;
        let turn = self.turn(delivered, job, &tried).await?;
        // While this job waited, it may have been cancelled, or another worker may have generated it.
        if self.is_unwanted(delivered, job, wanted_for).await? || is_alone && self.is_there(delivered, job).await? {
            self.end_trial(delivered, job).await?;
            return Ok(Answer::Ack);
        }
        let began = Instant::now();
        let how = How {
            max_together: if is_alone { 1 } else { self.config.batch_max },
            max_pixels: self.config.max_pixels,
            cancel: self.cancelled.flag(delivered.number, job),
        };
        let (worker, number, message) = (Arc::clone(self), delivered.number, job.clone());
        let (says, mut said) = mpsc::unbounded_channel();
        let drawing = tokio::task::spawn_blocking(move || {
            let prepared = draw::prepare(&worker.engine, &worker.spool, &message, &mut fetched, &how);
            let prepared = prepared?;
            let plan = prepared.plan.clone();
            // The receiver lives as long as the task.
            let report = |progress| drop(says.send((progress, plan.clone())));
            draw::draw(&worker.engine, prepared, &message, (number, &worker.watchdog), &report)
        });
        while let Some((progress, plan)) = said.recv().await {
            self.send_progress(&delivered.link, job, progress, plan).await;
        }
        let drawn =
            drawing.await.unwrap_or_else(|e| Err(Undrawn::Failed(Error::new(format!("generation ended: {e}")))));
        if !matches!(drawn, Err(Undrawn::Busy(_) | Undrawn::Failed(_))) {
            self.end_trial(delivered, job).await?;
        }
        drop(turn);
        match drawn {
            Ok((file, device)) => self.keep(delivered, job, file.into(), &device, began.elapsed()).await,
            Err(Undrawn::Wrong(error)) => self.fail(&delivered.link, job, &error).await,
            Err(Undrawn::Cancelled) => {
                self.forget_order(job).await?;
                Ok(Answer::Ack)
            }
            Err(Undrawn::Busy(error)) => self.back(delivered, job, &tried, &error).await,
            Err(Undrawn::Failed(error)) => {
                let answer = self.back(delivered, job, &tried, &error).await?;
                if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES {
                    watchdog::end(&format!("{MAX_FAILURES} images failed in a row"));
                }
                Ok(answer)
            }
        }
    }

    /// Returns `true` if the result exists, from this job or from one with the same key.
    async fn is_there(&self, delivered: &Delivered, job: &JobMessage) -> Result<bool> {
        let (store, result) = (&self.config.store, job.key.to_string());
        let is_there = self.insist(async || store.has(&result).await).await?;
        if is_there {
            self.done.there.fetch_add(1, Ordering::Relaxed);
            self.detail(&format!("job {} was already done", job.job));
            self.send_event(&delivered.link, job, Happened::Done).await;
        }
        Ok(is_there)
    }

    /// Waits until the job may run, depending on its earlier attempts.
    async fn turn(&self, delivered: &mut Delivered, job: &JobMessage, tried: &Tried) -> Result<Turn> {
        if delivered.before == 0 {
            return Ok(self.turns.together().await);
        }
        let turn = match tried.count {
            0 => self.turns.alone().await,
            _ => self.turns.last(delivered.redelivered.take()).await,
        };
        let name = job.key.trial();
        self.insist(async || tried.and(None).write(&self.config.store, &name).await).await?;
        self.trials.begin(name, tried.clone());
        Ok(turn)
    }

    /// Removes the attempt counter of a redelivered job that has ended without killing this worker.
    async fn end_trial(&self, delivered: &Delivered, job: &JobMessage) -> Result<()> {
        if delivered.before == 0 {
            return Ok(());
        }
        let name = job.key.trial();
        self.trials.end(&name);
        self.insist(async || self.config.store.remove(&name).await).await
    }

    /// Returns the answer to a job that failed on this worker: requeue, or dead-letter after too many attempts.
    async fn back(&self, delivered: &Delivered, job: &JobMessage, tried: &Tried, error: &Error) -> Result<Answer> {
        let tried = tried.and(Some(public_text(error)));
        if let Some(reason) = tried.dead() {
            self.end_trial(delivered, job).await?;
            return Ok(Answer::Dead(reason));
        }
        let name = job.key.trial();
        self.insist(async || tried.write(&self.config.store, &name).await).await?;
        self.trials.end(&name);
        self.note(&format!("returning job {} to the queue: {error}", job.job));
        tokio::time::sleep(PAUSE).await;
        Ok(Answer::Back)
    }

    /// Stores a result. If another worker was faster, its result stays.
    async fn keep(
        &self,
        delivered: &Delivered,
        job: &JobMessage,
        file: Bytes,
        device: &str,
        took: Duration,
    ) -> Result<Answer> {
        let name = job.key.to_string();
        let is_first = self.insist(async || self.config.store.put_new(&name, file.clone()).await).await?;
        self.done.drawn.fetch_add(1, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        let second = if is_first { "" } else { ", after another worker" };
        let (hash, took) = (job.key.hash.to_hex(), took.as_secs_f64());
        self.detail(&format!("generated job {} {hash} on {device} in {took:.2} s{second}", job.job));
        self.send_event(&delivered.link, job, Happened::Done).await;
        Ok(Answer::Ack)
    }

    /// Stores the error of a job that can never succeed.
    async fn fail(&self, link: &Link, job: &JobMessage, error: &Error) -> Result<Answer> {
        self.done.failed.fetch_add(1, Ordering::Relaxed);
        let reason = public_text(error);
        self.note(&format!("job {} of line {} failed: {}", job.job, job.line, flux::error::shown(&reason)));
        let JobMessage { job: name, batch, line, n, .. } = job;
        let json = serde_json::json!({"job": name, "batch": batch, "line": line, "n": n, "error": reason});
        self.insist(async || self.config.store.put(&job.key.error(), json.to_string()).await).await?;
        self.publish_event(link, EventMessage { error: Some(reason), ..event(job, Happened::Failed) }).await;
        Ok(Answer::Ack)
    }

    /// Retries a request to the store until the store answers.
    ///
    /// Errors if the answer is a usage error, or the worker is giving up.
    async fn insist<T>(&self, ask: impl AsyncFn() -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::default();
        loop {
            match ask().await {
                Ok(answer) => {
                    if self.store_is_away.swap(false, Ordering::Relaxed) {
                        self.note("the store is back");
                    }
                    return Ok(answer);
                }
                Err(error) if error.kind() == ErrorKind::Usage || self.gives_up.load(Ordering::Relaxed) => {
                    return Err(error);
                }
                Err(error) => {
                    if !self.store_is_away.swap(true, Ordering::Relaxed) {
                        self.note(&format!("{error}; the worker keeps its jobs until the store is back"));
                    }
                }
            }
            backoff.wait().await;
        }
    }
}
