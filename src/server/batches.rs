//! `/v1/batches`: how far the batches of the store are, where the server has a queue.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;

use super::error::{ApiError, Result};
use super::{App, answer};

/// All batches, the newest first.
pub async fn list(State(app): State<Arc<App>>) -> Result<Response> {
    let (shown, others) = app.queue.batches().await?;
    Ok(answer::json(&json!({"object": "list", "data": shown, "others": others})))
}

/// One of them.
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response> {
    let (shown, _) = app.queue.batches().await?;
    let batch = shown.into_iter().find(|batch| batch["id"] == *id);
    batch.map(|batch| answer::json(&batch)).ok_or_else(|| ApiError::not_found("there is no such batch"))
}
