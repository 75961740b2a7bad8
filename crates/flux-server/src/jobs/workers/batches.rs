//! Batches in the store, in addition to this server's jobs.

use serde_json::{Value, json};

use super::Workers;
use crate::http::error::{ApiError, Result, SOON};
use flux_queue::overview::{BatchProgress, Batches};
use flux_runtime::progress::say;

impl Workers {
    /// Returns the batches in the API's format, newest first, and the number of older ones.
    ///
    /// Errors if the store does not answer.
    pub async fn batches(&self) -> Result<(Vec<Value>, usize)> {
        let looked = self.overview.look(&self.store, self.online.dead()).await;
        let batches = looked.map_err(|error| {
            say(&format!("note: {error}"));
            ApiError::unavailable("store_away", "the result store does not answer", SOON)
        })?;
        let Batches { shown, others } = &*batches;
        Ok((shown.iter().map(batch_json).collect(), *others))
    }
}

fn batch_json(batch: &BatchProgress) -> Value {
    let mut json = json!(batch);
    json["object"] = "batch".into();
    json
}
