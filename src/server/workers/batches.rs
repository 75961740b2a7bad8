//! The batches that the store has beside the jobs of this server.

use serde_json::{Value, json};

use super::Workers;
use crate::progress::say;
use crate::queue::overview::{BatchProgress, Batches};
use crate::server::backlog::SOON;
use crate::server::error::{ApiError, Result};

impl Workers {
    /// Batches as clients see them, the newest first, and how many older ones there are.
    ///
    /// Errors when the store does not answer.
    pub async fn batches(&self) -> Result<(Vec<Value>, usize)> {
        let looked = self.overview.look(&self.store, self.online.dead()).await;
        let batches = looked.map_err(|error| {
            say(&format!("note: {error}"));
            ApiError::unavailable("store_away", "the store of results does not answer", SOON)
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
