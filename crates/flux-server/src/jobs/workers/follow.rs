//! Follows an image from its message to its result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flux::engine::ImageRecipe;
use flux::metadata::{said_by, strip};
use serde::Deserialize;
use tokio::time::{Instant as Time, sleep, sleep_until};

use super::hub::{Follows, WorkerEvent};
use super::{STORE_WITHIN, Workers};
use crate::http::error::{ApiError, Result, too_late};
use crate::jobs::record::{JobEvent, JobRecord, Made, Planned};
use flux_queue::message::PlanSaid;
use flux_queue::names::{Key, cancelled_job};

/// The interval between checks of the store for a job without events.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// The timeout for fetching a result.
const FETCH_WITHIN: Duration = Duration::from_secs(60);
/// The delay before an unreachable store is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The validity of presigned URLs.
const PRESIGNED_FOR: Duration = Duration::from_secs(900);
/// Max bytes of a result, and of an error.
const MAX_RESULT: u64 = 1 << 30;
const MAX_REASON: u64 = 64 << 10;

/// An image that was sent to the broker.
pub struct Image {
    pub record: Arc<JobRecord>,
    pub image: usize,
    pub key: Key,
    pub deadline: Instant,
    pub follows: Follows,
}

impl Image {
    /// Follows the image until it is finished, or its job has ended.
    pub async fn follow(mut self, workers: &Workers) {
        let (record, deadline) = (Arc::clone(&self.record), Time::from_std(self.deadline));
        let is_made = tokio::select! {
            is_made = self.handle_events(workers) => is_made,
            () = record.end() => false,
            () = sleep_until(deadline) => {
                record.fail(too_late());
                false
            }
        };
        if !is_made {
            self.call_off(workers).await;
        }
    }

    /// Handles events until the image has ended. Always returns `true`, since no worker has anything left to do then.
    async fn handle_events(&mut self, workers: &Workers) -> bool {
        loop {
            let told = tokio::select! {
                told = self.follows.next() => told,
                () = sleep(LOOK_EVERY) => WorkerEvent::Missed,
            };
            let end = match told {
                WorkerEvent::Started(plan) => {
                    self.started(plan);
                    continue;
                }
                WorkerEvent::Step([step, steps]) => {
                    self.record.push_event(JobEvent::Step { image: self.image, step, steps });
                    continue;
                }
                WorkerEvent::Failed(reason) => Some(Err(wrong(&reason))),
                WorkerEvent::Dead(reason) => Some(Err(dead(&reason))),
                WorkerEvent::Done | WorkerEvent::Missed => self.look(workers).await,
            };
            if let Some(end) = end {
                self.end(workers, end).await;
                return true;
            }
        }
    }

    fn started(&self, plan: PlanSaid) {
        let PlanSaid { width, height, steps, text_tokens, image_tokens, notes } = plan;
        if self.record.snapshot().plan.width == 0 {
            self.record.plan(Planned { width, height, steps, text_tokens, image_tokens }, &notes);
        }
        self.record.push_event(JobEvent::Started { image: self.image });
    }

    /// Returns the result or the error in the store, if any. Retries until the store answers.
    async fn look(&self, workers: &Workers) -> Option<Result<Bytes>> {
        /// The error of a job in the store.
        #[derive(Deserialize)]
        struct Failed {
            job: String,
            error: String,
        }
        loop {
            let (name, reason) = (self.key.to_string(), self.key.error());
            let result = workers.await_store(FETCH_WITHIN, workers.store.get(&name, MAX_RESULT)).await;
            let failed = match result {
                Ok(Some(file)) => return Some(Ok(file)),
                Ok(None) => workers.await_store(STORE_WITHIN, workers.store.get(&reason, MAX_REASON)).await,
                Err(error) => Err(error),
            };
            match failed {
                Ok(Some(json)) => {
                    // The error may be that of an earlier job with this key.
                    let failed: Option<Failed> = serde_json::from_slice(&json).ok();
                    let own = failed.filter(|failed| failed.job == self.follows.job)?;
                    return Some(Err(wrong(&own.error)));
                }
                Ok(None) => return None,
                Err(_) => sleep(AGAIN_AFTER).await,
            }
        }
    }

    async fn end(&self, workers: &Workers, end: Result<Bytes>) {
        let done = async {
            let file = end?;
            plan_of_file(&self.record, &file);
            made(workers, &self.record, &self.key, file).await
        };
        match done.await {
            Ok(made) => {
                self.record.made(self.image, made);
                workers.metrics.images.inc();
            }
            Err(error) => {
                self.record.fail(error);
            }
        }
    }

    /// Cancels the job. The store keeps the cancellation for workers that miss the message.
    async fn call_off(&self, workers: &Workers) {
        let job = &self.follows.job;
        let order = cancelled_job(job);
        // The worker that drops the job removes the object. If the store is unreachable, the message below still
        // reaches running workers.
        let _ = workers.await_store(STORE_WITHIN, workers.store.put(&order, "")).await;
        workers.online.cancel(job).await;
    }
}

/// Returns the error of an invalid request.
fn wrong(reason: &str) -> ApiError {
    ApiError::bad("invalid_value", flux::error::shown(reason))
}

fn dead(reason: &str) -> ApiError {
    let message = format!("no worker could generate the image: {}", flux::error::shown(reason));
    ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "job_dead", message).for_good()
}

/// Returns the recipe in a file's metadata.
fn recipe_of(file: &[u8]) -> Result<ImageRecipe> {
    let recipe = said_by(file).and_then(|said| {
        let json = said.recipe.ok_or_else(|| flux::Error::new("it contains no recipe"))?;
        ImageRecipe::from_json(&json)
    });
    recipe.map_err(|e| ApiError::internal(format!("the result in the store is damaged: {}", e.what())))
}

/// Creates a finished image from its file. Workers always store a recipe, so that results can be shared and found
/// again; it is removed here if the client does not want it.
///
/// Errors if the file was not generated by a worker.
pub async fn made(workers: &Workers, record: &JobRecord, key: &Key, file: Bytes) -> Result<Made> {
    let url = match workers.presigns && !record.no_recipe {
        true => workers.await_store(STORE_WITHIN, workers.store.presigned(&key.to_string(), PRESIGNED_FOR)).await?,
        false => None,
    };
    let made = recipe_of(&file)?;
    let [width, height] = [made.recipe.width, made.recipe.height].map(Option::unwrap_or_default);
    let recipe = serde_json::from_str(&made.to_json()).unwrap_or_default();
    let file = match record.no_recipe {
        true => strip(&file, false).map_err(|e| ApiError::from(&e))?.file.into(),
        false => file,
    };
    Ok(Made { seed: made.recipe.seed, width, height, recipe, parameters: made.parameters(), url, file })
}

/// Sets the plan of a job from an existing result, unless it is set.
pub fn plan_of_file(record: &JobRecord, file: &[u8]) {
    if record.snapshot().plan.width > 0 {
        return;
    }
    let Ok(ImageRecipe { recipe, .. }) = recipe_of(file) else { return };
    let [width, height, steps] = [recipe.width, recipe.height, recipe.steps].map(Option::unwrap_or_default);
    let note = "the result already existed: its input tokens were not counted".to_string();
    record.plan(Planned { width, height, steps, ..Planned::default() }, &[note]);
}
