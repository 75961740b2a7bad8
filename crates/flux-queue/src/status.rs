//! Status and cancellation of batches, using the store and the broker alone.

use std::collections::HashSet;

use flux::{Error, Result};
use futures_util::StreamExt;
use lapin::Consumer;
use serde::Serialize;

use super::batch::{Found, Manifest, cursor, no_batch};
use super::broker::{Broker, Link, Outgoing};
use super::dead::{self, Fate, Which};
use super::message::{EventMessage, Happened};
use super::names::{self, DEAD, EVENTS, Key, Lane};
use super::store::Store;

/// The progress of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BatchStatus {
    pub batch: String,
    pub jobs: usize,
    /// Jobs that were sent to the broker.
    pub submitted: usize,
    pub done: usize,
    /// Jobs whose request is invalid.
    pub failed: usize,
    /// Jobs that were dead-lettered.
    pub dead: usize,
    pub queued: usize,
    pub is_cancelled: bool,
}

/// A queue of the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStatus {
    pub queue: String,
    pub waiting: u32,
    pub workers: u32,
}

impl BatchStatus {
    /// Reads the status of a batch.
    ///
    /// Errors if the batch does not exist.
    pub async fn read(store: &Store, link: &Link, batch: &str) -> Result<Self> {
        let Manifest { keys, .. } = Manifest::read(store, batch).await?;
        let submitted = cursor(store, batch).await?;
        let found = Found::look_up(store, &keys).await?;
        let dead = dead::treat(link, &Which::Named(batch.to_string()), Fate::Stay).await?.jobs;
        let is_over = |hash: &blake3::Hash| found.done.contains(hash) || found.failed.contains(hash);
        let dead: HashSet<_> = dead.iter().filter_map(|dead| dead.hash).filter(|hash| !is_over(hash)).collect();
        let (done, failed, dead) = (found.done.len(), found.failed.len(), dead.len());
        let is_cancelled = store.has(&names::cancelled(batch)).await?;
        let queued = keys.len().saturating_sub(done + failed + dead);
        Ok(Self { batch: batch.to_string(), jobs: keys.len(), submitted, done, failed, dead, queued, is_cancelled })
    }

    /// Returns the number of jobs that are finished, failed or cancelled.
    pub fn over(&self) -> usize {
        if self.is_cancelled { self.jobs } else { self.done + self.failed + self.dead }
    }
}

/// Returns the IDs of all batches in a store, sorted.
pub async fn batches(store: &Store) -> Result<Vec<String>> {
    let mut batches = store.names("batches").await?;
    batches.retain(|name| names::is_batch(name));
    batches.sort();
    Ok(batches)
}

/// Returns the queues of all models registered in a store, and the dead-letter queue.
pub async fn queues(store: &Store, link: &Link) -> Result<Vec<QueueStatus>> {
    let mut models = store.names("models").await?;
    models.sort();
    let models = models.iter().filter_map(|name| name.strip_suffix(".json"));
    let lanes = models.flat_map(|model| Lane::ALL.map(|lane| lane.queue(model)));
    let mut queues = Vec::new();
    for queue in lanes.chain([DEAD.to_string()]) {
        if let Some([waiting, workers]) = link.waiting(&queue).await? {
            queues.push(QueueStatus { queue, waiting, workers });
        }
    }
    Ok(queues)
}

/// Cancels a batch or a job. Waiting jobs are dropped, and running ones are stopped.
///
/// Errors if the batch does not exist.
pub async fn cancel(store: &Store, broker: &Broker, name: &str) -> Result<()> {
    if names::is_batch(name) {
        if !store.has(&names::manifest(name)).await? {
            return Err(no_batch(name));
        }
        store.put(&names::cancelled(name), "").await?;
    } else if names::is_job(name) {
        store.put(&names::cancelled_job(name), "").await?;
    } else {
        return Err(Error::usage(format!("`{}` is not the ID of a batch or a job", flux::error::shown(name)))
            .hint("use an ID that `flux submit` or `flux queue status` prints"));
    }
    let link = broker.connect().await?;
    link.send(&[Outgoing::cancel(name)?]).await.map(drop)
}

/// A subscription to the end of a batch's jobs.
pub struct Watch {
    events: Consumer,
    batch: String,
}

impl Watch {
    /// Subscribes to the events of a batch.
    ///
    /// Errors if the broker refuses.
    pub async fn new(link: &Link, batch: &str) -> Result<Self> {
        let events = link.subscribe(EVENTS, &["*.done", "*.failed"]).await?;
        Ok(Self { events, batch: batch.to_string() })
    }

    /// Returns the next job of the batch that ends, or `None` if the connection is lost.
    pub async fn next(&mut self) -> Option<(Key, Happened)> {
        loop {
            let event = self.events.next().await?.ok()?;
            if let Ok(EventMessage { batch: Some(batch), key, event, .. }) = serde_json::from_slice(&event.data)
                && batch == self.batch
            {
                return Some((key, event));
            }
        }
    }
}
