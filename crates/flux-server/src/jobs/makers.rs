//! The backend that generates the images of jobs: engines of this process, or remote workers behind a queue.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use flux::engine::Ahead;
use serde_json::Value;

use crate::http::error::{ApiError, Result};
use crate::jobs::admission::Permit;
#[cfg(feature = "queue")]
use crate::jobs::enlarging;
use crate::jobs::metrics::QueueStats;
use crate::jobs::models::Models;
use crate::jobs::queue::Queue;
use crate::jobs::record::{JobRecord, Owner};
use crate::jobs::request::Asked;
#[cfg(feature = "queue")]
use crate::jobs::workers::Workers;

/// The backend. See the [module](self).
pub enum Makers {
    Here(Arc<Queue>),
    #[cfg(feature = "queue")]
    Workers(Arc<Workers>),
}

impl Makers {
    pub fn models(&self) -> &Models {
        match self {
            Self::Here(queue) => &queue.models,
            #[cfg(feature = "queue")]
            Self::Workers(workers) => &workers.models,
        }
    }

    /// Returns the queue of this process; `None` with remote workers.
    fn here(&self) -> Option<&Arc<Queue>> {
        match self {
            Self::Here(queue) => Some(queue),
            #[cfg(feature = "queue")]
            Self::Workers(_) => None,
        }
    }

    /// Creates the record of a request whose images were not read yet.
    ///
    /// Errors if the request is invalid, or there is too much work already.
    pub fn begin(&self, asked: &mut Asked, owner: Owner) -> Result<Arc<JobRecord>> {
        match self {
            Self::Here(queue) => queue.check(asked.files.values().map(Vec::len).sum())?,
            #[cfg(feature = "queue")]
            Self::Workers(workers) => {
                workers.check_open()?;
                enlarging::check_queue(asked)?;
            }
        }
        let models = self.models();
        let (name, note) = match &asked.enlarging {
            Some(enlargement) => (enlargement.name(models.upscalers())?, None),
            None => models.find(asked.model.as_deref()).map(|(model, note)| (models.name(model).to_string(), note))?,
        };
        let notes = std::mem::take(&mut asked.notes).into_iter().chain(note).collect();
        Ok(JobRecord::new(owner, &name, asked, notes))
    }

    /// Reads the images of a job when its turn comes, and queues the job.
    ///
    /// Errors if the job is invalid, there is too much work already, or no worker would accept it.
    pub async fn take(&self, permit: &Permit, record: Arc<JobRecord>, asked: Asked) -> Result<()> {
        let (estimate, cancel) = (asked.estimate(), record.cancel.clone());
        match self {
            Self::Here(queue) => {
                let queue = Arc::clone(queue);
                permit.run(estimate, &cancel, move |cancel| queue.take(&record, asked, cancel)).await
            }
            #[cfg(feature = "queue")]
            Self::Workers(workers) => {
                let (reading, own) = (Arc::clone(workers), Arc::clone(&record));
                let draft = permit.run(estimate, &cancel, move |cancel| reading.read(&own, asked, cancel)).await?;
                workers.submit(draft, record).await
            }
        }
    }

    /// Cancels a job. Returns `true` if it had not ended.
    pub fn cancel(&self, record: &Arc<JobRecord>) -> bool {
        // With remote workers, the task that follows the images notices the cancellation.
        self.here().map_or_else(|| record.cancel(), |queue| queue.cancel(record))
    }

    /// Returns the position of an unfinished job in the queue. `None` with remote workers.
    pub fn ahead(&self, record: &JobRecord) -> Option<Ahead> {
        self.here()?.ahead(record)
    }

    pub fn stats(&self) -> QueueStats {
        match self {
            Self::Here(queue) => queue.stats(),
            #[cfg(feature = "queue")]
            Self::Workers(workers) => workers.stats(),
        }
    }

    /// Returns `true` unless work is stuck. Remote workers have a watchdog of their own.
    pub fn moves(&self) -> bool {
        self.here().is_none_or(|queue| queue.moves())
    }

    /// Accepts no more jobs, and waits until the accepted ones are done. Cancels the rest after `timeout`.
    pub fn drain(&self, timeout: Duration) {
        match self {
            Self::Here(queue) => queue.drain(timeout),
            #[cfg(feature = "queue")]
            Self::Workers(workers) => workers.drain(timeout),
        }
    }

    /// Returns `true` with remote workers.
    pub fn is_queue(&self) -> bool {
        self.here().is_none()
    }

    /// Returns the batches in the store, newest first, and the number of older ones.
    ///
    /// Errors if there is no store, or it does not answer.
    pub async fn batches(&self) -> Result<(Vec<Value>, usize)> {
        match self {
            Self::Here(_) => {
                let message = "this server has no queue: start one with `flux serve --queue`";
                Err(ApiError::new(StatusCode::NOT_FOUND, "no_queue", message))
            }
            #[cfg(feature = "queue")]
            Self::Workers(workers) => workers.batches().await,
        }
    }

    /// Errors with remote workers: each frame would stay in the store and arrive late.
    pub fn check_live(&self) -> Result<()> {
        if self.is_queue() {
            let message = "live generation requires a server with a model, but this server has a queue";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_with_a_queue", message).for_good());
        }
        Ok(())
    }
}
