//! What makes the images of jobs: engines of this process, or workers behind a queue.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::Value;

use super::backlog::Ahead;
use super::error::{ApiError, Result};
use super::metrics::QueueStats;
use super::models::Models;
use super::queue::Queue;
use super::record::{JobRecord, Owner};
use super::request::Asked;
use super::running::Patience;
#[cfg(feature = "queue")]
use super::workers::Workers;
use super::{App, intake};

/// See the module.
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

    /// Takes a request.
    ///
    /// Errors when it cannot be carried out, or there is too much work already, or nobody is there who would do it.
    pub async fn submit(&self, app: &Arc<App>, asked: Asked, owner: Owner) -> Result<Arc<JobRecord>> {
        match self {
            Self::Here(queue) => {
                let queue = Arc::clone(queue);
                intake::blocking(app, move || queue.submit(asked, owner)).await
            }
            #[cfg(feature = "queue")]
            Self::Workers(workers) => {
                let reading = Arc::clone(workers);
                let draft = intake::blocking(app, move || reading.read(asked)).await?;
                workers.submit(draft, owner).await
            }
        }
    }

    /// Cancels a job wherever it is. Returns whether it was not over.
    pub fn cancel(&self, record: &Arc<JobRecord>) -> bool {
        match self {
            Self::Here(queue) => queue.cancel(record),
            // What follows its images hears of it.
            #[cfg(feature = "queue")]
            Self::Workers(_) => record.cancel(),
        }
    }

    /// What is in front of a job that is not over. Of the queue of workers nobody knows.
    pub fn ahead(&self, record: &JobRecord) -> Option<Ahead> {
        match self {
            Self::Here(queue) => queue.ahead(record),
            #[cfg(feature = "queue")]
            Self::Workers(_) => None,
        }
    }

    pub fn stats(&self) -> QueueStats {
        match self {
            Self::Here(queue) => queue.stats(),
            #[cfg(feature = "queue")]
            Self::Workers(workers) => workers.stats(),
        }
    }

    /// Whether the work moves. Workers look after themselves.
    pub fn moves(&self, patience: Patience) -> bool {
        match self {
            Self::Here(queue) => queue.moves(patience),
            #[cfg(feature = "queue")]
            Self::Workers(_) => true,
        }
    }

    /// Takes nothing more, and waits until all that is there is made. After `timeout` the rest is ended.
    pub fn drain(&self, timeout: Duration) {
        match self {
            Self::Here(queue) => queue.drain(timeout),
            #[cfg(feature = "queue")]
            Self::Workers(workers) => workers.drain(timeout),
        }
    }

    /// Whether workers behind a queue do it.
    pub fn is_queue(&self) -> bool {
        !matches!(self, Self::Here(_))
    }

    /// Batches that the store has beside the jobs of this server, the newest first, and how many older ones there are.
    ///
    /// Errors where there is no store, or it does not answer.
    pub async fn batches(&self) -> Result<(Vec<Value>, usize)> {
        match self {
            Self::Here(_) => {
                let message = "this server has no queue: `flux serve --queue` has one";
                Err(ApiError::new(StatusCode::NOT_FOUND, "no_queue", message))
            }
            #[cfg(feature = "queue")]
            Self::Workers(workers) => workers.batches().await,
        }
    }

    /// Errors where frames would go through a queue: each of them would stay in the store, and come late.
    pub fn check_live(&self) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            #[cfg(feature = "queue")]
            Self::Workers(_) => Err(ApiError::new(
                StatusCode::NOT_IMPLEMENTED,
                "not_with_a_queue",
                "live images are drawn by a server that has a model, and this one has a queue",
            )
            .for_good()),
        }
    }
}
