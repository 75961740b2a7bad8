//! Submission of a batch to the broker. Submitting a batch again sends only the jobs without a result.

use std::time::{Duration, Instant};

use flux::error::ErrorKind;
use flux::{Error, Result};

use super::batch::{Batch, Found, Planned, cursor};
use super::broker::{Broker, Link, Outgoing};
use super::names::{self, Lane};
use super::store::Store;
use super::wait::Backoff;

/// Max messages in flight before the broker confirms them.
const AT_ONCE: usize = 2000;
/// Jobs between two updates of the cursor in the store.
const CURSOR_EVERY: usize = 10_000;
/// The time after which all workers know that a batch is no longer cancelled.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(3);
/// Options of a submission.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// `true` to send failed jobs again.
    pub retries_failed: bool,
    /// `true` to send nothing.
    pub is_dry: bool,
    /// The time for which the broker may be unreachable, or a queue full.
    pub patience: Duration,
}

/// The outcome of a submission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Submitted {
    pub jobs: usize,
    /// Jobs with a result.
    pub done: usize,
    /// Jobs with an error instead of a result.
    pub failed: usize,
    /// Jobs that were sent, or would be in a dry run.
    pub sent: usize,
    /// The position at which an interrupted submission was resumed.
    pub went_on_at: usize,
}

/// Sends the jobs of a batch that have no result. Calls `told` with the numbers of sent jobs and of jobs to send, and
/// `note` with the reasons for delays.
///
/// Errors if the store or the broker is unreachable for too long. Jobs that were sent stay sent, and calling this again
/// resumes.
pub async fn submit(
    batch: &Batch,
    store: &Store,
    broker: &Broker,
    model: &str,
    how: How,
    told: &mut dyn FnMut(usize, usize),
    note: &mut dyn FnMut(&str),
) -> Result<Submitted> {
    let keys: Vec<_> = batch.jobs.iter().map(|job| job.key).collect();
    let found = Found::look_up(store, &keys).await?;
    let was_cancelled = store.has(&names::cancelled(&batch.id)).await?;
    let before = cursor(store, &batch.id).await?;
    // Workers have dropped all jobs of a cancelled batch, so it starts from the beginning.
    let went_on_at = if before < batch.jobs.len() && !was_cancelled { before } else { 0 };
    let has_failed = |job: &Planned| found.failed.contains(&job.key.hash);
    let is_missing = |place: &usize| {
        let job = &batch.jobs[*place];
        let is_wanted = if has_failed(job) { how.retries_failed } else { *place >= went_on_at };
        is_wanted && !found.done.contains(&job.key.hash)
    };
    let places: Vec<_> = (0..batch.jobs.len()).filter(is_missing).collect();
    let (done, failed) = (found.done.len(), found.failed.len());
    let submitted = Submitted { jobs: batch.jobs.len(), done, failed, sent: places.len(), went_on_at };
    if how.is_dry {
        return Ok(submitted);
    }
    batch.keep(store).await?;
    if was_cancelled {
        note("the batch was cancelled; submitting it again");
        store.remove(&names::cancelled(&batch.id)).await?;
        tokio::time::sleep(FORGOTTEN_WITHIN).await;
    }
    // Errors of jobs that are retried no longer hold.
    for job in places.iter().map(|place| &batch.jobs[*place]).filter(|job| has_failed(job)) {
        store.remove(&job.key.error()).await?;
    }
    let mut sender = Sender { broker, model, link: None, was_connected: false, patience: how.patience, note };
    let (mut sent, mut kept) = (0, went_on_at);
    for chunk in places.chunks(AT_ONCE) {
        let message = |place: &usize| Ok(Outgoing::job(Lane::Batch.queue(model), batch.message(&batch.jobs[*place])?));
        sender.send(chunk.iter().map(message).collect::<Result<_>>()?).await?;
        sent += chunk.len();
        told(sent, places.len());
        let reached = chunk.last().map_or(kept, |place| place + 1);
        if reached >= kept + CURSOR_EVERY {
            keep_cursor(store, batch, reached).await?;
            kept = reached;
        }
    }
    keep_cursor(store, batch, batch.jobs.len()).await?;
    Ok(submitted)
}

async fn keep_cursor(store: &Store, batch: &Batch, reached: usize) -> Result<()> {
    store.put(&names::cursor(&batch.id), reached.to_string()).await
}

/// A publisher that reconnects as needed.
struct Sender<'a> {
    broker: &'a Broker,
    model: &'a str,
    link: Option<Link>,
    /// `true` once the broker has accepted a connection.
    was_connected: bool,
    patience: Duration,
    note: &'a mut dyn FnMut(&str),
}

impl Sender<'_> {
    /// Sends messages until the broker has accepted all of them.
    async fn send(&mut self, mut messages: Vec<Outgoing>) -> Result<()> {
        let (mut backoff, mut since) = (Backoff::default(), Instant::now());
        let mut was_full = false;
        while !messages.is_empty() {
            match self.try_to_send(&messages).await {
                Ok(refused) => {
                    if refused.len() < messages.len() {
                        (since, backoff) = (Instant::now(), Backoff::default());
                    }
                    if !refused.is_empty() && !was_full {
                        was_full = true;
                        (self.note)("the queue is full; waiting until there is room");
                    }
                    let mut place = 0;
                    messages.retain(|_| {
                        place += 1;
                        refused.binary_search(&(place - 1)).is_ok()
                    });
                    if !messages.is_empty() && since.elapsed() >= self.patience {
                        return Err(Error::new("the queue is full, and no jobs are taken from it")
                            .hint("start workers, and run the command again to continue"));
                    }
                }
                // A broker that is starting may refuse a client that it accepted before.
                Err(error) if error.kind() == ErrorKind::Usage && !self.was_connected => return Err(error),
                Err(error) if since.elapsed() >= self.patience => {
                    return Err(error.hint_instead("run the command again to continue when the broker is back"));
                }
                Err(error) => {
                    self.link = None;
                    (self.note)(&format!("{error}; trying again"));
                }
            }
            if !messages.is_empty() {
                backoff.wait().await;
            }
        }
        Ok(())
    }

    /// Sends messages once. Returns the indices of the messages that the queue refused.
    async fn try_to_send(&mut self, messages: &[Outgoing]) -> Result<Vec<usize>> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let link = self.broker.connect().await?;
                link.declare_model(self.model).await?;
                self.was_connected = true;
                link
            }
        };
        let refused = link.send(messages).await?;
        self.link = Some(link);
        Ok(refused)
    }
}
