//! Gives a batch to the broker. Given again, what has no result is sent again: that is the repair.

use std::time::{Duration, Instant};

use flux::error::ErrorKind;
use flux::{Error, Result};

use super::batch::{Batch, Found, Planned, cursor};
use super::broker::{Broker, Link, Outgoing};
use super::names::{self, Lane};
use super::store::Store;
use super::wait::Backoff;

/// Messages that are sent before the broker has said that it has them.
const AT_ONCE: usize = 2000;
/// How often the store is told how far it is.
const CURSOR_EVERY: usize = 10_000;
/// After which workers know that a batch is not cancelled any more.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(3);
/// What is done beside sending.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// Whether jobs that failed are sent again.
    pub retries_failed: bool,
    /// Whether nothing is sent.
    pub is_dry: bool,
    /// How long a broker may be away, or a queue full.
    pub patience: Duration,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Submitted {
    pub jobs: usize,
    /// Results that are there.
    pub done: usize,
    /// Jobs that have an error in place of a result.
    pub failed: usize,
    /// Jobs that were sent, or would be.
    pub sent: usize,
    /// Where it went on, having been ended before.
    pub went_on_at: usize,
}

/// Sends those jobs of a batch that have no result. `told` hears how many of how many it has sent; `note` hears what
/// holds it up.
///
/// Errors when the store or the broker is away for longer than a while: what was sent stays sent, and the same command
/// goes on.
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
    let found = Found::of(store, &keys).await?;
    let was_cancelled = store.has(&names::cancelled(&batch.id)).await?;
    let before = cursor(store, &batch.id).await?;
    // Of a cancelled batch the broker has none any more, wherever it was ended.
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
        note("the batch was cancelled; it is submitted again");
        store.remove(&names::cancelled(&batch.id)).await?;
        tokio::time::sleep(FORGOTTEN_WITHIN).await;
    }
    // What is tried again has not failed.
    for job in places.iter().map(|place| &batch.jobs[*place]).filter(|job| has_failed(job)) {
        store.remove(&job.key.error()).await?;
    }
    let mut sender = Sender { broker, model, link: None, was_connected: false, patience: how.patience, note };
    let (mut sent, mut kept) = (0, went_on_at);
    for chunk in places.chunks(AT_ONCE) {
        let message = |place: &usize| Ok(Outgoing::job(Lane::Batch, model, batch.message(&batch.jobs[*place])?));
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

/// Sends, and connects again where that is needed.
struct Sender<'a> {
    broker: &'a Broker,
    model: &'a str,
    link: Option<Link>,
    /// Whether the broker ever took this program.
    was_connected: bool,
    patience: Duration,
    note: &'a mut dyn FnMut(&str),
}

impl Sender<'_> {
    /// Sends messages until the broker has all of them.
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
                        return Err(Error::new("the queue is full, and nothing is taken out of it")
                            .hint("start workers, and give the command again: it goes on"));
                    }
                }
                // One that it took before may be refused while the broker starts.
                Err(error) if error.kind() == ErrorKind::Usage && !self.was_connected => return Err(error),
                Err(error) if since.elapsed() >= self.patience => {
                    return Err(error.hint_instead("give the command again when the broker is back: it goes on"));
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

    /// Sends messages once. Returns the places of those that the queue refused.
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
