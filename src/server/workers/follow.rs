//! Follows an image from its message to its result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flux::engine::ImageRecipe;
use flux::metadata::said_by;
use serde::Deserialize;
use tokio::time::{Instant as Time, sleep, sleep_until};

use super::hub::{Follows, Told};
use super::{STORE_WITHIN, Workers};
use crate::queue::message::PlanSaid;
use crate::queue::names::{Key, cancelled_job};
use crate::server::backlog::too_late;
use crate::server::error::{ApiError, Result};
use crate::server::record::{JobEvent, JobRecord, Made, Planned};

/// How often the store is looked at for a job of which nothing is heard.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long a result may take to come.
const FETCH_WITHIN: Duration = Duration::from_secs(60);
/// After which time a store that is away is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long the store lets whoever has its address read a result.
const PRESIGNED_FOR: Duration = Duration::from_secs(900);
/// The longest result, and the longest reason why there is none.
const MOST_RESULT: u64 = 1 << 30;
const MOST_REASON: u64 = 64 << 10;

/// An image that the broker has.
pub struct Image {
    pub record: Arc<JobRecord>,
    pub image: usize,
    pub key: Key,
    pub deadline: Instant,
    pub follows: Follows,
}

impl Image {
    /// Until it is made, or its job is over.
    pub async fn follow(mut self, workers: &Workers) {
        let (record, deadline) = (Arc::clone(&self.record), Time::from_std(self.deadline));
        let is_made = tokio::select! {
            is_made = self.hear(workers) => is_made,
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

    /// Hears of it until there is an end. Returns whether there is nothing left that a worker may still do.
    async fn hear(&mut self, workers: &Workers) -> bool {
        loop {
            let told = tokio::select! {
                told = self.follows.next() => told,
                () = sleep(LOOK_EVERY) => Told::Missed,
            };
            let end = match told {
                Told::Started(plan) => {
                    self.started(plan);
                    continue;
                }
                Told::Step([step, steps]) => {
                    self.record.tell(JobEvent::Step { image: self.image, step, steps });
                    continue;
                }
                Told::Failed(reason) => Some(Err(wrong(&reason))),
                Told::Dead(reason) => Some(Err(dead(&reason))),
                Told::Done | Told::Missed => self.look(workers).await,
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
        self.record.tell(JobEvent::Started { image: self.image });
    }

    /// What the store has of it. Asks until the store answers.
    async fn look(&self, workers: &Workers) -> Option<Result<Bytes>> {
        /// The error of a job in the store.
        #[derive(Deserialize)]
        struct Failed {
            job: String,
            error: String,
        }
        loop {
            let (name, reason) = (self.key.to_string(), self.key.error());
            let result = workers.of_store(FETCH_WITHIN, workers.store.get(&name, MOST_RESULT)).await;
            let failed = match result {
                Ok(Some(file)) => return Some(Ok(file)),
                Ok(None) => workers.of_store(STORE_WITHIN, workers.store.get(&reason, MOST_REASON)).await,
                Err(error) => Err(error),
            };
            match failed {
                Ok(Some(json)) => {
                    // It may be that of a job before it.
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
            made(workers, &self.key, file).await
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

    /// Has no worker draw it any more. The store keeps the order for those that do not hear it now.
    async fn call_off(&self, workers: &Workers) {
        let job = &self.follows.job;
        let order = cancelled_job(job);
        // The one that obeys it removes the order. Where the store is away, those that hear it now obey.
        let _ = workers.of_store(STORE_WITHIN, workers.store.put(&order, "")).await;
        workers.online.cancel(job).await;
    }
}

/// What a job asks for cannot be drawn.
fn wrong(reason: &str) -> ApiError {
    ApiError::bad("invalid_value", flux::error::shown(reason))
}

fn dead(reason: &str) -> ApiError {
    let message = format!("no worker could make the image: {}", flux::error::shown(reason));
    ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "job_dead", message).for_good()
}

/// What a file says of itself.
fn recipe_of(file: &[u8]) -> Result<ImageRecipe> {
    let recipe = said_by(file).and_then(|said| {
        let json = said.recipe.ok_or_else(|| flux::Error::new("it has no recipe"))?;
        ImageRecipe::of_json(&json)
    });
    recipe.map_err(|e| ApiError::internal(format!("the result in the store is damaged: {}", e.what())))
}

/// An image, of its file.
///
/// Errors when that is none that a worker has made.
pub async fn made(workers: &Workers, key: &Key, file: Bytes) -> Result<Made> {
    let url = match workers.presigns {
        true => workers.of_store(STORE_WITHIN, workers.store.presigned(&key.to_string(), PRESIGNED_FOR)).await?,
        false => None,
    };
    let made = recipe_of(&file)?;
    let [width, height] = [made.recipe.width, made.recipe.height].map(Option::unwrap_or_default);
    let recipe = serde_json::from_str(&made.to_json()).unwrap_or_default();
    Ok(Made { seed: made.recipe.seed, width, height, recipe, parameters: made.parameters(), url, file })
}

/// Plans a job by a result of it that was there, unless a worker has said more.
pub fn plan_of_file(record: &JobRecord, file: &[u8]) {
    if record.snapshot().plan.width > 0 {
        return;
    }
    let Ok(ImageRecipe { recipe, .. }) = recipe_of(file) else { return };
    let [width, height, steps] = [recipe.width, recipe.height, recipe.steps].map(Option::unwrap_or_default);
    let note = "the result was there: tokens of its input were not counted".to_string();
    record.plan(Planned { width, height, steps, ..Planned::default() }, &[note]);
}
